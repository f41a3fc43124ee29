"""Triton kernels on this processor: a matrix product against numpy, softmax and layer norm against torch, f32.

    python benchmarks/triton_cpu.py --threads 2 --out benchmarks/results/triton_cpu

Every contender runs in a process of its own: threads of OpenBLAS spin after a call. The kernels are those of
`examples/triton`, called through `deepgen.triton_cpu` with the blocks listed here; the fastest counts. `--cpu-time`
counts the processor's time in place of the wall clock's, with one thread, for machines that do other work, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent / "examples" / "triton")]

SIZE = 1024  # of all sides of the product
ROWS, COLUMNS = 4096, 1024
BLOCKS: Mapping[str, list[dict[str, int]]] = {
    "matmul": [
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8}
        for m, n, k in ((128, 128, 64), (128, 256, 128), (256, 256, 64), (256, 256, 256), (256, 512, 128))
    ],
    "softmax": [{"COLUMNS": COLUMNS, "ROWS": rows} for rows in (1, 4, 8)],
    "layer_norm": [{"BLOCK": block} for block in (256, 512, 1024)],
}
PEERS = {"matmul": "numpy", "softmax": "torch", "layer_norm": "torch"}
Call = Callable[[], Any]


def ours(name: str) -> list[tuple[str, Call]]:
    """The kernel with each of its blocks."""
    import numpy as np

    import deepgen.triton_cpu  # noqa: F401
    from deepgen.vocabulary.finding import module_at

    kernel = getattr(module_at(HERE.parent / "examples" / "triton" / f"{name}.py"), name)
    rng = np.random.default_rng(0)
    threads = int(os.environ["THREADS"])

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    def call(block: Mapping[str, int]) -> Call:
        if name == "matmul":
            a, b, c = draw(SIZE, SIZE), draw(SIZE, SIZE), draw(SIZE, SIZE)
            grid = (-(-SIZE // block["BLOCK_M"]) * -(-SIZE // block["BLOCK_N"]),)
            return lambda: kernel[grid](a, b, c, SIZE, SIZE, SIZE, SIZE, 1, SIZE, 1, **block, num_threads=threads)
        x, y = draw(ROWS, COLUMNS), draw(ROWS, COLUMNS)
        if name == "softmax":
            grid = (-(-ROWS // block["ROWS"]),)
            return lambda: kernel[grid](y, x, ROWS, COLUMNS, **block, num_threads=threads)
        w, b = draw(COLUMNS), draw(COLUMNS)
        return lambda: kernel[(ROWS,)](y, x, w, b, COLUMNS, 1e-5, **block, num_threads=threads)

    return [(" ".join(f"{k}={v}" for k, v in block.items()), call(block)) for block in BLOCKS[name]]


def theirs(name: str) -> list[tuple[str, Call]]:
    if name == "matmul":
        import numpy as np

        rng = np.random.default_rng(0)
        left, right, out = (rng.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(3))
        return [("numpy", lambda: np.matmul(left, right, out=out))]
    import torch

    torch.set_num_threads(int(os.environ["THREADS"]))
    x, w, b = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS), torch.randn(COLUMNS)
    if name == "softmax":
        return [("torch", lambda: torch.softmax(x, 1))]
    return [("torch", lambda: torch.nn.functional.layer_norm(x, (COLUMNS,), w, b, 1e-5))]


def measure(name: str, who: str, rounds: int, cpu_time: bool) -> dict[str, float]:
    """The least milliseconds of each contender, rounds taken in turn."""
    calls = (ours if who == "ours" else theirs)(name)
    clock = time.process_time if cpu_time else time.perf_counter
    best = {label: float("inf") for label, _ in calls}
    for turn in range(rounds + 1):
        for label, call in calls:
            start = clock()
            call()
            if turn:  # the first call compiles
                best[label] = min(best[label], (clock() - start) * 1e3)
    return best


def in_own_process(name: str, who: str, given: argparse.Namespace) -> dict[str, float]:
    threads = str(1 if given.cpu_time else given.threads)
    env = {**os.environ, "THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    command = [sys.executable, __file__, "--measure", name, who, "--rounds", str(given.rounds)]
    done = subprocess.run(
        [*command, *(["--cpu-time"] if given.cpu_time else [])], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *BLOCKS], help="these [all]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, help="a folder for the figures as JSON")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.measure:
        name, who = given.measure
        print(json.dumps(measure(name, who, given.rounds, given.cpu_time)))
        return 0
    from common import conditions

    rows = []
    print(f"{'':12}{'ours':>10}{'peer':>10}{'ratio':>8}  blocks")
    for name in given.names or BLOCKS:
        found = in_own_process(name, "ours", given)
        peer = in_own_process(name, "theirs", given)[PEERS[name]]
        label = min(found, key=lambda one: found[one])
        rows.append({"kernel": name, "peer": PEERS[name], "peer_ms": peer, "blocks": label, "all_ms": found})
        print(f"{name:12}{found[label]:7.2f} ms{peer:7.2f} ms{peer / found[label]:8.2f}  {label}", flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        told = {"threads": given.threads, "cpu_time": given.cpu_time, "rows": rows, **conditions()}
        (given.out / "triton_cpu.json").write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    from common import run_main

    run_main(main)
