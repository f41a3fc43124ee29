"""Triton kernels on a processor beside numpy and torch: products of matrices, softmax and layer norm.

    python benchmarks/triton_cpu.py --threads 2 --out benchmarks/results/triton_cpu.json
    python benchmarks/triton_cpu.py --pack FOLDER --target x86:amx    builds for another processor, with Triton 3.9
    python benchmarks/triton_cpu.py --packed FOLDER                   measures there: numpy and torch are enough

The kernels are those of `examples/triton` with the blocks listed here; each is verified, and the fastest counts. Every
contender runs in a process of its own, since threads of OpenBLAS spin after a call, and contenders take turns.
`--cpu-time` counts the processor's time in place of the wall clock's, with one thread, for machines that do other work.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent / "examples" / "triton")]

SIZE = 1024  # of all sides of a product
ROWS, COLUMNS = 4096, 1024
INDEX = "kernels.json"
ENTRY = "deepgen_triton"
TURNS, CALLS = 5, 15
Array: TypeAlias = "np.ndarray[Any, Any]"
Call: TypeAlias = "Callable[[], Any]"
Block: TypeAlias = "dict[str, int]"

_PRODUCTS = (
    (128, 128, 64), (128, 256, 128), (256, 256, 64), (256, 256, 256), (256, 512, 128), (512, 256, 256), (256, 512, 256),
    (512, 512, 128), (256, 1024, 128),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One kernel in one format, with the blocks to try and whom it is compared with."""

    name: str
    kernel: str  # the example
    dtype: str  # of what it reads: f32, bf16, i8
    result: str
    peer: str
    blocks: tuple[Block, ...]
    tolerance: float


def _product(dtype: str, result: str, peer: str, tolerance: float) -> Case:
    blocks = tuple({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8} for m, n, k in _PRODUCTS)
    return Case(f"matmul_{dtype}", "matmul", dtype, result, peer, blocks, tolerance)


CASES = {
    case.name: case
    for case in (
        _product("f32", "f32", "numpy", 1e-3),
        Case(
            "softmax_f32", "softmax", "f32", "f32", "torch",
            tuple({"COLUMNS": COLUMNS, "ROWS": rows} for rows in (1, 4, 8)), 1e-5,
        ),
        Case(
            "layer_norm_f32", "layer_norm", "f32", "f32", "torch",
            tuple({"BLOCK": block} for block in (256, 512, 1024)), 1e-4,
        ),
        _product("bf16", "f32", "torch", 1e-3),
        _product("i8", "i32", "torch", 0),
    )
}  # fmt: skip


def pack(folder: Path, cases: list[Case], target_name: str) -> None:
    """Libraries of all kernels with all their blocks, and an index of them."""
    from deepgen import targets
    from deepgen.toolchains import build_once
    from deepgen.vocabulary import Kernel, LaunchPlan
    from deepgen.vocabulary.finding import module_at
    from deepgen_triton_cpu.lowering import lower, ttir_of
    from deepgen_triton_cpu.lowering.lower import flags, sources

    target = targets.resolve(target_name)
    rows = []
    for case in cases:
        file = (
            HERE / "triton_i8.py" if case.dtype == "i8" else HERE.parent / "examples" / "triton" / f"{case.kernel}.py"
        )
        kernel = getattr(module_at(file), case.kernel)
        for number, block in enumerate(case.blocks):
            signature, ones = _signature(case, block)
            made = lower(ttir_of(kernel, signature, {**block, **ones}, {}))
            built = build_once(Kernel(made.name, "c", sources(made.text, made.name), flags(), LaunchPlan(())), target)
            library = f"{case.name}_{number}.so"
            shutil.copyfile(built.binary, folder / library)
            rows.append({"case": case.name, "block": block, "file": library, "scratch": made.scratch})
    (folder / INDEX).write_text(json.dumps({"target": target.name, "kernels": rows}, indent=1))


def _signature(case: Case, block: Block) -> tuple[dict[str, str], Block]:
    """The parameters' types in Triton's words, and those that are 1."""
    words = {"f32": "*fp32", "bf16": "*bf16", "i8": "*i8", "i32": "*i32"}
    reads, writes = words[case.dtype], words[case.result]
    constants = dict.fromkeys(block, "constexpr")
    if case.kernel == "matmul":
        strides = {"stride_am": "i32", "stride_ak": "constexpr", "stride_bk": "i32", "stride_bn": "constexpr"}
        arrays = {"a": reads, "b": reads, "c": writes}
        return {**arrays, **dict.fromkeys("MNK", "i32"), **strides, **constants}, {"stride_ak": 1, "stride_bn": 1}
    if case.kernel == "softmax":
        return {"y": writes, "x": reads, "rows": "i32", "columns": "i32", **constants}, {}
    arrays = {"y": writes, "x": reads, "weight": reads, "bias": reads}
    return {**arrays, "columns": "i32", "epsilon": "fp32", **constants}, {}


def drawn(case: Case) -> list[Array]:
    """What a case reads. bf16 is drawn as numbers that it holds, in f32."""
    rng = np.random.default_rng(0)
    shapes = {"matmul": [(SIZE, SIZE)] * 2, "softmax": [(ROWS, COLUMNS)]}
    found: list[Array] = []
    for shape in shapes.get(case.kernel, [(ROWS, COLUMNS), (COLUMNS,), (COLUMNS,)]):
        if case.dtype == "i8":
            found.append(rng.integers(-128, 128, shape).astype(np.int8))
        else:
            array = rng.standard_normal(shape, dtype=np.float32)
            found.append((array.view(np.uint32) & 0xFFFF0000).view(np.float32) if case.dtype == "bf16" else array)
    return found


def wanted(case: Case, given: list[Array]) -> Array:
    first, *others = (array.astype(np.float64) for array in given)
    if case.kernel == "matmul":
        return first @ others[0]
    if case.kernel == "softmax":
        raised = np.exp(first - first.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))
    centred = first - first.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * others[0] + others[1])


def ours(case: Case, folder: Path, threads: int) -> Iterator[tuple[str, Call]]:
    """The kernel with each of its blocks, verified."""
    given = drawn(case)
    want = wanted(case, given)
    if case.dtype == "bf16":
        given = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in given]
    read = [_apart(array) for array in given]
    out = _apart(np.zeros(want.shape, np.int32 if case.result == "i32" else np.float32))
    for row in json.loads((folder / INDEX).read_text())["kernels"]:
        if row["case"] == case.name:
            call = _bound(case, row, folder, [array.ctypes.data for array in (*read, out)], threads)
            out.fill(-1)
            call()
            off = np.abs(out - want)
            if not (off <= case.tolerance * np.maximum(np.abs(want), 1)).all():
                raise SystemExit(f"{case.name} with {row['block']} is wrong by {off.max():.3g}")
            yield " ".join(f"{name}={value}" for name, value in row["block"].items()), call


def _apart(array: Array) -> Array:
    """A copy at a multiple of 64 bytes."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    out: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def _bound(case: Case, row: Mapping[str, Any], folder: Path, addresses: list[int], threads: int) -> Call:
    function = ctypes.CDLL(str((folder / row["file"]).resolve()))[ENTRY]
    function.restype = None
    scratch = _apart(np.zeros(max(row["scratch"], 1) * threads, np.uint8))
    block, i32 = row["block"], ctypes.c_int32
    *read, out = map(ctypes.c_void_p, addresses)
    if case.kernel == "matmul":
        grid = -(-SIZE // block["BLOCK_M"]) * -(-SIZE // block["BLOCK_N"])
        passed = [*read, out, *(i32(SIZE) for _ in range(5))]
    elif case.kernel == "softmax":
        grid = -(-ROWS // block["ROWS"])
        passed = [out, *read, i32(ROWS), i32(COLUMNS)]
    else:
        grid = ROWS
        passed = [out, *read, i32(COLUMNS), ctypes.c_float(1e-5)]
    passed += [i32(grid), i32(1), i32(1), i32(threads), ctypes.c_void_p(scratch.ctypes.data)]

    def call(kept: Any = scratch) -> None:
        function(*passed)

    return call


def theirs(case: Case, threads: int) -> tuple[str, Call]:
    given = drawn(case)
    if case.peer == "numpy":
        left, right = given
        out = np.empty_like(left)
        return "numpy", lambda: np.matmul(left, right, out=out)
    import torch

    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(array) for array in given]
    if case.dtype == "bf16":
        tensors = [tensor.to(torch.bfloat16) for tensor in tensors]
    if case.kernel == "matmul":
        multiply = torch._int_mm if case.dtype == "i8" else torch.matmul
        return "torch", lambda: multiply(*tensors)
    if case.kernel == "softmax":
        return "torch", lambda: torch.softmax(tensors[0], 1)
    return "torch", lambda: torch.nn.functional.layer_norm(tensors[0], (COLUMNS,), *tensors[1:], 1e-5)


def measure(case: Case, who: str, folder: Path, threads: int, cpu_time: bool) -> dict[str, float]:
    """The median of the milliseconds of each contender's calls."""
    clock = time.process_time if cpu_time else time.perf_counter
    found = {}
    for label, call in ours(case, folder, threads) if who == "ours" else [theirs(case, threads)]:
        times = []
        for _ in range(CALLS + 2):
            start = clock()
            call()
            times.append((clock() - start) * 1e3)
        found[label] = statistics.median(times[2:])
    return found


def in_own_process(case: Case, who: str, given: argparse.Namespace, folder: Path) -> dict[str, float]:
    threads = str(given.threads)
    env = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1" if who == "ours" else threads}
    command = [sys.executable, __file__, "--measure", case.name, who, "--packed", str(folder), "--threads", threads]
    command += ["--cpu-time"] if given.cpu_time else []
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(case: Case, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both sides in turns; the ratio is the median of those of the turns."""
    turns = [
        (in_own_process(case, "ours", given, folder), in_own_process(case, "theirs", given, folder)[case.peer])
        for _ in range(given.turns)
    ]
    medians = {label: statistics.median(own[label] for own, _ in turns) for label in turns[0][0]}
    best = min(medians, key=lambda label: medians[label])
    return {
        "case": case.name,
        "peer": case.peer,
        "ms": round(medians[best], 4),
        "peer_ms": round(statistics.median(peer for _, peer in turns), 4),
        "ratio": round(statistics.median(peer / own[best] for own, peer in turns), 3),
        "blocks": best,
        "all_ms": {label: round(ms, 4) for label, ms in medians.items()},
    }


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    if given.measure:
        name, who = given.measure
        print(json.dumps(measure(CASES[name], who, given.packed, given.threads, given.cpu_time)))
        return 0
    cases = [CASES[name] for name in given.names or CASES]
    if given.pack:
        given.pack.mkdir(parents=True, exist_ok=True)
        pack(given.pack, cases, given.target)
        return 0
    from common import by_lines, conditions

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = given.packed or Path(made)
        if not given.packed:
            pack(folder, cases, "cpu")
        print(f"{'':16}{'ours':>10}{'peer':>10}{'ratio':>8}  blocks")
        for case in cases:
            rows.append(row := compare(case, given, folder))
            line = f"{case.name:16}{row['ms']:7.3f} ms{row['peer_ms']:7.3f} ms{row['ratio']:8.2f}"
            print(f"{line}  {row['blocks']}, {case.peer}", flush=True)
            if given.out:
                told = {"threads": given.threads, "cpu_time": given.cpu_time, **conditions()}
                given.out.write_text(by_lines({"conditions": told, "results": rows}))
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *CASES], help="these [all]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for the figures as JSON")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="build into this folder, and measure nothing")
    parser.add_argument("--target", default="cpu", help="what to build for [cpu]")
    parser.add_argument("--packed", type=Path, metavar="FOLDER", help="measure what was built into this folder")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.cpu_time:
        given.threads = 1
    return given


if __name__ == "__main__":
    from common import run_main

    run_main(main)
