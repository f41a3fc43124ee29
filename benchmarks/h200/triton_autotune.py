"""Three scripts written for triton.autotune, with deepgen.autotune in its place, on an H200.

    PYTHONPATH=src python benchmarks/h200/triton_autotune.py --out benchmarks/h200/triton_autotune.json

Each is run with both decorators: the same results, the time of the winners as they are called, and the wall time of the
first call. Ours is called again with what is on disk, as another process would. The second script has a config that
never ends, and the third one that writes where nothing is: these are given to deepgen only.
"""

# Triton reads the annotations of its kernels: no `from __future__ import annotations` here.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import deepgen  # noqa: E402
from common import run_main, save  # noqa: E402
from gpu_bench import conditions  # noqa: E402

NOWHERE = tl.constexpr(1 << 44)
ROUNDS = 5


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + place, mask=place < n) + tl.load(y + place, mask=place < n)
    tl.store(out + place, total, mask=place < n)


@triton.jit
def row_sums(x, out, columns, BLOCK: tl.constexpr, HANG: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.load(x + row * columns + start + place, mask=start + place < columns, other=0.0)
    if HANG:
        waiting = 1
        while waiting == 1:
            waiting = tl.where(tl.load(x, volatile=True) == 12345.0, 0, 1)
    tl.store(out + row, tl.sum(total, axis=0))


@triton.jit
def relu(x, out, n, BLOCK: tl.constexpr, CRASH: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.maximum(tl.load(x + place, mask=place < n), 0.0)
    if CRASH:
        tl.store(out + place.to(tl.int64) + NOWHERE, value)
    tl.store(out + place, value, mask=place < n)


def _configs(**more: Any) -> list[Any]:
    return [
        triton.Config({"BLOCK": block, **more}, num_warps=warps) for block in (512, 1024, 2048) for warps in (2, 4, 8)
    ]


class Script:
    """A kernel, its configs, how it is called, and what torch gives."""

    def __init__(self, kernel: Any, key: str, configs: list[Any], faulty: list[Any]) -> None:
        import torch

        self.kernel, self.key, self.configs, self.faulty = kernel, key, configs, faulty
        rows, columns = 4096, 4096
        self.x = torch.randn(rows, columns, device="cuda")
        self.n, self.rows, self.columns = rows * columns, rows, columns

    def tuned(self, autotune: Any, *, faulty: bool = False) -> Callable[[], Any]:
        import torch

        made = autotune(configs=self.configs + (self.faulty if faulty else []), key=[self.key])(self.kernel)
        x, n = self.x, self.n
        if self.kernel is row_sums:
            out = torch.empty(self.rows, device="cuda")
            return lambda: (made[(self.rows,)](x, out, self.columns), out)[1]
        out = torch.empty_like(x)
        given = (x, x, out, n) if self.kernel is add else (x, out, n)
        return lambda: (made[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](*given), out)[1]

    def wanted(self) -> Any:
        import torch

        return {add: lambda: 2 * self.x, row_sums: lambda: self.x.sum(dim=1), relu: lambda: torch.relu(self.x)}[
            self.kernel
        ]()


def first_call(run: Callable[[], Any]) -> tuple[Any, float]:
    import torch

    started = time.perf_counter()
    out = run()
    torch.cuda.synchronize()
    return out, time.perf_counter() - started


def measured(script: Script) -> dict[str, Any]:
    import torch
    from triton.testing import do_bench

    ours, theirs = script.tuned(deepgen.autotune, faulty=True), script.tuned(triton.autotune)
    got, wall = first_call(ours)
    right = bool(torch.allclose(got, script.wanted(), atol=1e-3, rtol=1e-4))
    _, again = first_call(script.tuned(deepgen.autotune, faulty=True))
    _, their_wall = first_call(theirs)
    rounds = [[do_bench(run, warmup=5, rep=40, return_mode="median") for run in (ours, theirs)] for _ in range(ROUNDS)]
    ratio = median(a / b for a, b in rounds)
    row = {"kernel": script.kernel.fn.__name__, "right": right, "ratio": ratio, "rounds": rounds}
    walls = {"wall_seconds": wall, "wall_from_disk": again, "their_wall_seconds": their_wall}
    return {**row, **walls, "ok": right and ratio <= 1.02}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("triton_autotune.json"))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CACHE_HOME": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        hang, crash = _configs(HANG=True)[:1], _configs(CRASH=True)[:1]
        for kernel, key, configs, faulty in (
            (add, "n", _configs(), []),
            (row_sums, "columns", _configs(HANG=False), hang),
            (relu, "n", _configs(CRASH=False), crash),
        ):
            try:
                row = measured(Script(kernel, key, configs, faulty))
                walls = f"{row['wall_seconds']:.1f} s, from disk {row['wall_from_disk']:.2f} s"
                told = f"ratio {row['ratio']:.3f}; wall {walls}; Triton {row['their_wall_seconds']:.1f} s"
            except Exception as error:
                row, told = {"kernel": kernel.fn.__name__, "ok": False, "error": repr(error)}, repr(error)
            rows.append(row)
            print(f"{row['kernel']:10} {'ok ' if row['ok'] else 'BAD'}  {told}", flush=True)
    save(given.out, rows, gpu=conditions(), triton=triton.__version__)
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    run_main(main)
