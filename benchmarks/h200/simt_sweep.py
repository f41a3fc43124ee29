"""A first look at the SIMT GEMM family on a device: many configs on many shapes, verified and timed against torch.

Needs torch, numpy and cuda-bindings on a host with an NVIDIA GPU; no installation of deepgen. For each shape it ranks
configs by a simple model, builds the best of them on all cores, checks each against a float64 reference and times it
with a cold L2. Then it varies the best ones knob by knob. Every result is a line in OUT/sweep.jsonl; a worker that
crashes or hangs costs the one config it was at.

    PYTHONPATH=src python benchmarks/h200/simt_sweep.py --seconds 420 --out $OUT
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import ceil, gcd, isnan
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from deepgen.generators.templates.simt.lower import lower, plan  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.space import parse  # noqa: E402
from deepgen.vocabulary import ScalarArg, TensorArg, WorkspaceArg  # noqa: E402

Config = dict[str, Any]
Shape = tuple[int, int, int, int]  # batch, M, N, K

SOURCES = ROOT / "src/deepgen/generators/templates/simt"
SUITE: list[Shape] = [
    (1, 512, 512, 512), (1, 1024, 1024, 1024), (1, 2048, 2048, 2048), (1, 4096, 4096, 4096), (1, 16, 4096, 4096),
    (1, 64, 4096, 4096), (1, 128, 11008, 4096), (1, 256, 4096, 14336), (1, 1024, 4096, 4096), (1, 128, 128, 16384),
    (1, 256, 256, 65536), (1, 1536, 3072, 768), (1, 3072, 768, 3072), (1, 384, 384, 4096), (1, 4096, 128, 4096),
    (512, 64, 64, 64), (64, 512, 512, 64), (64, 512, 64, 512), (16, 1024, 1024, 128), (32, 2048, 2048, 128),
    (1, 6144, 6144, 1024), (1, 2048, 11008, 4096), (1, 8192, 1024, 8192), (1, 4096, 4096, 14336),
    (1, 4096, 14336, 4096), (1, 8192, 8192, 8192),
]  # fmt: skip
SMS, SHARED, RATE = 132, 227 << 10, 62e12
FLUSH_BYTES = 256 << 20

# (BM, BN, TM, TN, LANES_M): what a warp covers is LANES_M * TM by 32 / LANES_M * TN.
TILES = [
    (128, 128, 16, 8, 4), (128, 128, 8, 16, 8), (128, 128, 8, 8, 4), (256, 128, 16, 8, 4), (128, 256, 8, 16, 8),
    (128, 64, 16, 8, 4), (64, 128, 8, 16, 8), (64, 128, 8, 8, 4), (128, 64, 8, 8, 4), (96, 128, 12, 8, 4),
    (128, 96, 8, 12, 8), (96, 96, 12, 6, 4), (96, 96, 6, 12, 8), (192, 128, 12, 16, 8), (192, 96, 12, 12, 4),
    (64, 64, 8, 8, 4), (64, 64, 8, 4, 4), (64, 32, 8, 4, 4), (32, 64, 4, 8, 4), (32, 128, 8, 8, 4), (32, 32, 4, 8, 8),
    (64, 96, 8, 12, 8), (96, 64, 12, 8, 4), (16, 64, 4, 8, 4), (16, 64, 8, 4, 2), (16, 128, 8, 8, 2),
    (16, 128, 4, 8, 4), (16, 32, 4, 4, 4), (32, 96, 4, 12, 8),
]  # fmt: skip


def operator(shape: Shape) -> Gemm:
    batch, m, n, k = shape
    return Gemm(m, n, k, batch=batch, layout="nt")


def config(tile: tuple[int, ...], bk: int, stages: int, split_u: int, fixup: str, splits: int, **other: Any) -> Config:
    bm, bn, tm, tn, lanes_m = tile
    registers = tm * tn + 4 * (tm + tn) + 40
    threads = bm // tm * (bn // tn) * split_u
    made = {
        "BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn, "LANES_M": lanes_m, "SPLIT_U": split_u, "STAGES": stages,
        "MAPPING": 8, "STORE": gcd(tn, 4), "LOAD_A": 4, "LOAD_B": 4, "PAD_A": 4, "PAD_B": 4, "LANE_ORDER": 1,
        "WARP_SCATTER_A": tm, "WARP_SCATTER_B": tn, "THREAD_SCATTER_A": 1, "THREAD_SCATTER_B": gcd(tn, 4),
        "LOAD_CONTINUOUS": True, "INNER_A": "k", "INNER_B": "k", "COPY": "async", "REG_PREFETCH": False, "UNROLL": 4,
        "STAGE_ROWS": 0, "REDUCE_CONTINUOUS": True, "FIXUP": fixup, "SPLITS": splits, "GUARD": "sizes",
        "MIN_BLOCKS": max(1, min(8, 65536 // (min(registers, 255) * threads))), **other,
    }  # fmt: skip
    if split_u > 1:  # the sums of all groups must fit where the tiles were
        rows = tm
        while rows > 1 and split_u * (bm // tm) * rows * (bn + 8) * 4 > 96 << 10:
            rows = next(r for r in range(rows - 1, 0, -1) if tm % r == 0)
        made["STAGE_ROWS"] = rows
        made["STORE"] = 4
    if fixup == "stream":
        made["BLOCKS"] = SMS * resident(made)
    return made


def with_rows_inside(c: Config, **other: Any) -> Config:
    """The same with K outermost in shared memory: tiles are turned in registers on their way."""
    runs = {"THREAD_SCATTER_A": gcd(c["TM"], 4), "THREAD_SCATTER_B": gcd(c["TN"], 4)}
    steps = c["BK"] // c["SPLIT_U"]
    registers = c["TM"] * c["TN"] + 2 * (c["TM"] + c["TN"]) + 40
    blocks = max(1, min(8, 65536 // (min(registers, 255) * threads_of(c))))
    made = {
        **c, **runs, "INNER_A": "row", "INNER_B": "row", "COPY": "registers", "STAGES": 2, "UNROLL": min(8, steps),
        "MIN_BLOCKS": blocks, **other,
    }  # fmt: skip
    if c["SPLIT_U"] == 1:
        made["STORE"] = runs["THREAD_SCATTER_B"]
    if c["FIXUP"] == "stream":
        made["BLOCKS"] = SMS * resident(made)
    return made


def threads_of(c: Config) -> int:
    return int(c["BM"] // c["TM"] * (c["BN"] // c["TN"]) * c["SPLIT_U"])


def resident(c: Config) -> int:
    """Blocks that a multiprocessor holds, if the compiler keeps to MIN_BLOCKS."""
    shared = (c["BM"] + c["BN"]) * (c["BK"] + 4) * 4 * c["STAGES"] + 1024
    return int(max(1, min(c["MIN_BLOCKS"], (228 << 10) // shared, 2048 // threads_of(c))))


def valid(c: Config) -> bool:
    shared = (c["BM"] + c["BN"]) * (c["BK"] + 4) * 4 * c["STAGES"]
    lines = threads_of(c) % (c["BK"] // 4) == 0
    group = 4 if c["INNER_A"] == "k" else 1
    fits = c["BK"] % (group * c["SPLIT_U"]) == 0 and threads_of(c) <= 512 and shared <= SHARED
    lanes_n = 32 // c["LANES_M"]
    covers = c["BM"] % (c["LANES_M"] * c["TM"]) == 0 and c["BN"] % (lanes_n * c["TN"]) == 0
    return fits and lines and covers and c["TM"] * c["TN"] <= 128 + 64 * (c["MIN_BLOCKS"] == 1)


def predicted(shape: Shape, c: Config) -> float:
    """Seconds: the busiest multiprocessor's arithmetic, the memory's time, and what adding the parts up costs."""
    batch, m, n, k = shape
    tiles = ceil(m / c["BM"]) * ceil(n / c["BN"]) * batch
    blocks = tiles * c["SPLITS"]
    steps = ceil(ceil(k / c["BK"]) / c["SPLITS"]) * c["BK"]
    warps = threads_of(c) // 32
    work = tiles * k / SMS if c["FIXUP"] == "stream" else ceil(blocks / SMS) * steps
    alive = min(ceil(blocks / SMS), resident(c)) * warps
    ratio = c["TM"] * c["TN"] / (c["TM"] * c["TN"] + 4.0 * (c["TM"] + c["TN"]))  # arithmetic against loads
    speed = RATE / SMS * min(1.0, 0.55 + alive / 16) * min(1.0, 0.45 + ratio) * (1.0 if c["INNER_A"] == "row" else 0.93)
    arithmetic = work * c["BM"] * c["BN"] * 2 / speed
    if c["SPLIT_U"] > 1:  # each block's sums go through shared memory
        arithmetic += ceil(blocks / SMS) * c["SPLIT_U"] * c["BM"] * c["BN"] * 8 / (128 * 1.7e9)
    memory = 4.0 * batch * (m * k + n * k + m * n) / 4.2e12
    sums = 4.0 * m * n * batch * c["SPLITS"]
    extra = {
        "none": 0.0,
        "step": 2.0e-6 + 2 * sums / 3e12,
        "last": 1.0e-6 + c["SPLITS"] * c["BM"] * c["BN"] * 4 / 120e9,
        "stream": 3e-6,
    }[c["FIXUP"]]
    return float(3e-6 + max(arithmetic, memory) + 0.2 * min(arithmetic, memory) + extra)


def candidates(shape: Shape, most: int) -> list[Config]:
    batch, m, n, k = shape
    found: list[tuple[float, Config]] = []
    for tile in TILES:
        if tile[0] > 2 * m or tile[1] > 2 * n:
            continue
        tiles = ceil(m / tile[0]) * ceil(n / tile[1]) * batch
        for split_u in (1, 2, 4, 8) if tiles < 3 * SMS else (1, 2):
            for bk, stages in ((8, 2), (8, 4), (16, 2), (16, 3), (16, 4), (32, 2), (32, 3), (64, 2), (64, 3)):
                for fixup, splits in splittings(tiles, k, bk):
                    c = config(tile, bk, stages, split_u, fixup, splits)
                    some = (
                        [c]
                        if stages > 2 or bk > 16
                        else [c, with_rows_inside(c), with_rows_inside(c, REG_PREFETCH=True)]
                    )
                    found += [(predicted(shape, each), each) for each in some if valid(each)]
    found.sort(key=lambda pair: pair[0])
    return varied([c for _, c in found], most)


def varied(ranked: list[Config], most: int) -> list[Config]:
    """The best, but no more than a few of one tile and of one way to split: the model is not that good."""
    seen: dict[tuple[Any, ...], int] = {}
    out = []
    for c in ranked:
        tile = (c["BM"], c["BN"], c["TM"])
        way = (*tile, c["FIXUP"], c["SPLIT_U"], c["INNER_A"])
        if seen.get(tile, 0) < 10 and seen.get(way, 0) < 3:
            seen[tile] = seen.get(tile, 0) + 1
            seen[way] = seen.get(way, 0) + 1
            out.append(c)
        if len(out) == most:
            break
    return out


def splittings(tiles: int, k: int, bk: int) -> Iterator[tuple[str, int]]:
    yield "none", 1
    if tiles < 8 * SMS:
        yield "stream", 1
    for waves in (1, 2, 3, 4):
        splits = waves * SMS // tiles
        if splits >= 2 and k // splits >= 2 * bk:
            yield "step", splits
            if splits <= 8:
                yield "last", splits


def neighbours(c: Config) -> Iterator[Config]:
    """One knob changed at a time."""
    rows, split_u = c["INNER_A"] == "row", c["SPLIT_U"]
    runs = (c["THREAD_SCATTER_B"],) if rows else (1, 2, 4)
    for knob, values in (
        ("LANE_ORDER", (0, 1)), ("MAPPING", (1, 4, 16)), ("UNROLL", (2, 4, 8, 16) if rows else (1, 2, 4)),
        ("STAGES", (1, 2) if c["COPY"] == "registers" else (2, 3, 4, 5)), ("THREAD_SCATTER_B", runs),
        ("REG_PREFETCH", (False, True)), ("PAD_A", (0, 4)), ("PAD_B", (0, 4)), ("BK", (8, 16, 32, 64)),
        ("MIN_BLOCKS", tuple(b for b in (c["MIN_BLOCKS"] - 1, c["MIN_BLOCKS"] + 1) if b > 0)),
        ("STAGE_ROWS", (0, 1, 2, c["TM"])), ("SPLITS", (c["SPLITS"] - 1, c["SPLITS"] + 1, c["SPLITS"] * 2)),
        ("WARP_SCATTER_A", (c["THREAD_SCATTER_A"], c["TM"])), ("WARP_SCATTER_B", (c["THREAD_SCATTER_B"], c["TN"])),
        ("LANES_M", (2, 4, 8)), ("FIXUP", ("none", "stream")),
    ):  # fmt: skip
        for value in values:
            other = {**c, knob: value}
            if knob == "THREAD_SCATTER_B" and not c["STAGE_ROWS"]:
                other["STORE"] = value
            if knob == "STAGE_ROWS":
                other["STORE"] = c["STORE"] if value == 0 else 4
                if (value == 0 and split_u > 1) or (split_u > 1 and value > c["STAGE_ROWS"]):
                    continue
            if (knob == "SPLITS" and (c["SPLITS"] == 1 or value < 2)) or (knob == "FIXUP" and c["SPLITS"] > 1):
                continue
            if other["FIXUP"] == "stream":
                other["BLOCKS"] = SMS * resident(other)
            if other != c and valid(other) and c["TM"] % max(other["STAGE_ROWS"], 1) == 0:
                yield other


def turned(c: Config) -> Iterator[Config]:
    """Other ways to hold the tiles: K innermost or outermost, turned in registers or copied element by element."""
    if c["INNER_A"] == "k":
        for unroll in (4, 8, 16):
            yield with_rows_inside(c, UNROLL=unroll)
            yield with_rows_inside(c, UNROLL=unroll, REG_PREFETCH=True)
    else:
        single = {"COPY": "async", "LOAD_A": 1, "LOAD_B": 1, "PAD_A": 4, "PAD_B": 4}
        yield {**c, **single, "STAGES": 2}
        yield {**c, **single, "STAGES": 3}
        tile = (c["BM"], c["BN"], c["TM"], c["TN"], c["LANES_M"])
        yield config(tile, 16, 3, c["SPLIT_U"], c["FIXUP"], c["SPLITS"])


# On the device -------------------------------------------------------------------------------------------------------


class Builder:
    """Builds in threads; NVRTC does not hold Python's lock."""

    def __init__(self, arch: str, cores: int) -> None:
        self._pool = ThreadPoolExecutor(cores)
        self._built: dict[tuple[Any, ...], Future[tuple[bytes, str]]] = {}
        self._arch = arch

    def start(self, gemm: Gemm, c: Config) -> Future[tuple[bytes, str]]:
        lowered = lower(gemm, c, 32, {"i8": 4})
        macros = tuple(sorted(lowered.macros.items()))
        if macros not in self._built:
            self._built[macros] = self._pool.submit(self._build, macros)
        return self._built[macros]

    def _build(self, macros: tuple[tuple[str, Any], ...]) -> tuple[bytes, str]:
        from cuda.bindings import nvrtc

        def check(result: tuple[Any, ...]) -> Any:
            if int(result[0]) != 0:
                raise RuntimeError(str(result[0]))
            return result[1] if len(result) > 1 else None

        source = (SOURCES / "gemm_simt.cu").read_bytes()
        program = check(nvrtc.nvrtcCreateProgram(source, b"gemm_simt.cu", 0, [], []))
        options = [f"-arch={self._arch}", "-std=c++17", f"-I{SOURCES}", "--ptxas-options=-v"]
        options += [f"-D{name}={value}" for name, value in macros]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        check(nvrtc.nvrtcGetProgramLog(program, log))
        if int(status) != 0:
            raise RuntimeError(log.decode(errors="replace")[:600])
        code = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, code))
        return code, log.decode(errors="replace")


class Bench:
    """The tensors of one shape, and how a call on them is timed."""

    def __init__(self, shape: Shape, flush: Any) -> None:
        import torch

        self.shape, self.torch, self.flush = shape, torch, flush
        batch, m, n, k = shape
        make = torch.Generator(device="cuda").manual_seed(1)
        self.a = torch.randn(batch, m, k, device="cuda", generator=make)
        self.b = torch.randn(batch, n, k, device="cuda", generator=make)
        self.c = torch.empty(batch, m, n, device="cuda")
        self.reference = self.a.double() @ self.b.double().transpose(1, 2)
        self.scale = self.reference.norm().item()

    def peer(self) -> None:
        if self.shape[0] == 1:
            self.torch.mm(self.a[0], self.b[0].t(), out=self.c[0])
        else:
            self.torch.bmm(self.a, self.b.transpose(1, 2), out=self.c)

    def error(self) -> float:
        value = ((self.c.double() - self.reference).norm() / self.scale).item()
        return float("inf") if isnan(value) else float(value)

    def time(self, call: Callable[[], Any], most: int, beat: float = 0.0) -> list[float]:
        """Microseconds of single calls with a cold L2; fewer of them where the first are hopeless."""
        torch = self.torch
        call()
        samples: list[float] = []
        for _ in range(4):
            pairs = []
            for _ in range(max(most // 4, 2)):
                self.flush.zero_()
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                call()
                end.record()
                pairs.append((begin, end))
            torch.cuda.synchronize()
            samples += [b.elapsed_time(e) * 1e3 for b, e in pairs]
            if beat and min(samples) > 1.3 * beat:
                break
        return samples


class Loaded:
    """A kernel on the device with its arguments bound to a bench."""

    def __init__(self, bench: Bench, gemm: Gemm, c: Config, code: bytes) -> None:
        import torch
        from cuda.bindings import driver

        def check(result: tuple[Any, ...]) -> Any:
            if int(result[0]) != 0:
                raise RuntimeError(str(result[0]))
            return result[1] if len(result) > 1 else None

        self._check, self._driver = check, driver
        self._module = check(driver.cuModuleLoadData(code))
        lowered = lower(gemm, c, 32, {"i8": 4})
        scalars = dict(gemm.scalars())

        def size(e: int | float | str) -> Any:
            return parse(e).evaluate(scalars) if isinstance(e, str) else e

        space: dict[str, Any] = {}
        self._keep: list[Any] = []
        self._steps = []
        tensors = {"A": bench.a, "B": bench.b, "C": bench.c}
        for step in plan(gemm, c, lowered).steps:
            function = check(driver.cuModuleGetFunction(self._module, step.entry.encode()))
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, attribute, size(step.shared_bytes)))
            values: list[Any] = []
            for arg in step.args:
                if isinstance(arg, TensorArg):
                    values.append(ctypes.c_void_p(tensors[arg.tensor].data_ptr()))
                elif isinstance(arg, WorkspaceArg):
                    if arg.name not in space:
                        space[arg.name] = torch.zeros(size(arg.bytes), dtype=torch.uint8, device="cuda")
                    values.append(ctypes.c_void_p(space[arg.name].data_ptr()))
                elif isinstance(arg, ScalarArg):
                    kind: Any = {"i32": ctypes.c_int, "i64": ctypes.c_longlong, "f32": ctypes.c_float}[arg.ctype]
                    values.append(kind(size(arg.value)))
            packed = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
            self._keep += [values, packed, space]
            grid, block = [size(g) for g in step.grid], [size(b) for b in step.block]
            self._steps.append((function, grid, block, size(step.shared_bytes), ctypes.addressof(packed)))
        self._stream = torch.cuda.current_stream().cuda_stream

    def __call__(self) -> None:
        for function, grid, block, shared, packed in self._steps:
            self._check(self._driver.cuLaunchKernel(function, *grid, *block, shared, self._stream, packed, 0))

    def close(self) -> None:
        self._check(self._driver.cuModuleUnload(self._module))


def key_of(shape: Shape, c: Config) -> str:
    return json.dumps([shape, c], sort_keys=True)


class Sweep:
    """One worker: goes through the shapes, notes every result, skips what an earlier worker tried."""

    def __init__(self, out: Path, seconds: float, cores: int) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        self.torch, self.began, self.seconds = torch, time.monotonic(), seconds
        major, minor = torch.cuda.get_device_capability()
        self.builder = Builder(f"sm_{major}{minor}" + ("a" if major >= 9 else ""), cores)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        journal = out / "sweep.jsonl"
        self.done = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
        self.tried = {row["key"] for row in self.done if "key" in row}
        self.stream = journal.open("a", buffering=1)

    def note(self, **row: Any) -> None:
        self.stream.write(json.dumps(row) + "\n")

    def run(self, shapes: list[Shape], most: int) -> None:
        # Builds of the first shapes run while nothing is measured yet; later ones overlap with measuring.
        plans = {shape: candidates(shape, most) for shape in shapes}
        for shape in shapes:
            for c in plans[shape]:
                self.builder.start(operator(shape), c)
        for number, shape in enumerate(shapes):
            if any(row.get("finished") == list(shape) for row in self.done):
                continue
            left = self.seconds - (time.monotonic() - self.began) - 2
            self._shape(shape, plans[shape], max(1.0, min(left, 1.5 * left / (len(shapes) - number))))
            self.torch.cuda.empty_cache()

    def _shape(self, shape: Shape, some: list[Config], seconds: float) -> None:
        torch, latest = self.torch, time.monotonic() + seconds
        bench = Bench(shape, self.flush)
        earlier = [row for row in self.done if row.get("verdict") == "correct" and tuple(row["shape"]) == shape]
        best = sorted(((row["us"], row["config"]) for row in earlier), key=lambda pair: pair[0])
        peers = {}
        for library in ("cublas", "cublaslt"):
            torch.backends.cuda.preferred_blas_library(library)
            peers[library] = statistics.median(bench.time(bench.peer, 16))
        self.note(shape=shape, torch=peers)
        self._measure(bench, some, best, latest - 0.4 * seconds)
        for rank in (0, 1, 2, 0, 1):
            if rank < len(best):
                chosen = best[rank][1]
                self._measure(bench, [c for c in (*turned(chosen), *neighbours(chosen)) if valid(c)], best, latest)
        if best:
            gemm = operator(shape)
            run = Loaded(bench, gemm, best[0][1], self.builder.start(gemm, best[0][1]).result()[0])
            again = statistics.median(bench.time(run, 40))
            other = statistics.median(bench.time(bench.peer, 40))
            self.note(final=shape, us=again, torch=other, config=best[0][1])
            if shape == (1, 4096, 4096, 4096):
                self.note(steady={"ours": steady(run), "torch": steady(bench.peer)})
            run.close()
        self.note(finished=shape)

    def _measure(self, bench: Bench, some: list[Config], best: list[tuple[float, Config]], latest: float) -> None:
        gemm = operator(bench.shape)
        todo = [(c, self.builder.start(gemm, c)) for c in some if key_of(bench.shape, c) not in self.tried]
        for c, built in todo:
            if time.monotonic() > latest:
                return
            key = key_of(bench.shape, c)
            self.tried.add(key)
            self.note(key=key, started=True)
            row: dict[str, Any] = {"key": key, "shape": bench.shape, "config": c}
            try:
                row.update(self._result(bench, gemm, c, built, best[0][0] if best else 0.0))
            except RuntimeError as error:
                self.note(**row, verdict="failed", detail=str(error)[:400])
                if "CUDA_ERROR" in str(error) and "INVALID_VALUE" not in str(error):
                    raise
                continue
            self.note(**row)
            if row["verdict"] == "correct":
                best.append((row["us"], c))
                best.sort(key=lambda pair: pair[0])

    def _result(self, bench: Bench, gemm: Gemm, c: Config, built: Future[tuple[bytes, str]], beat: float) -> Config:
        code, log = built.result()
        told = [line.strip() for line in log.splitlines() if "registers" in line or "spill" in line][:2]
        run = Loaded(bench, gemm, c, code)
        bench.c.fill_(float("nan"))
        run()
        self.torch.cuda.synchronize()
        error = bench.error()
        row: dict[str, Any] = {"log": told, "error": error, "verdict": "wrong" if error > 1e-5 else "correct"}
        if row["verdict"] == "correct":
            samples = bench.time(run, 12, beat)
            row.update(us=statistics.median(samples), low=min(samples), n=len(samples))
            if bench.error() > 1e-5:
                row["verdict"] = "wrong"
        run.close()
        return row


def steady(call: Callable[[], Any]) -> dict[str, float]:
    """Clock and power after a second of nothing else: whether the card slows down for heat or power."""
    import torch

    until = time.monotonic() + 1.0
    event: Any = torch.cuda.Event
    count, begin, end = 0, event(enable_timing=True), event(enable_timing=True)
    begin.record()
    while time.monotonic() < until:
        for _ in range(20):
            call()
        count += 20
        torch.cuda.current_stream().synchronize()
    end.record()
    query = "clocks.sm,power.draw,temperature.gpu"
    for _ in range(100):
        call()
    told = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    torch.cuda.synchronize()
    numbers = [float(x) for x in told.strip().split(",")] if told.strip() else []
    return {"us": begin.elapsed_time(end) * 1e3 / count, **dict(zip(query.split(","), numbers, strict=False))}


def replay(file: Path, shape: Shape) -> None:
    """Run the best config of each tile once, and torch: for a profiler to look at."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    top = json.loads(file.read_text())["shapes"][str(list(shape))]["top"]
    bench = Bench(shape, None)
    seen: set[tuple[Any, ...]] = set()
    bench.peer()
    for row in top:
        c = row["config"]
        tile = (c["BM"], c["BN"], c["TM"], c["TN"], c["INNER_A"])
        if tile in seen or len(seen) == 4:
            continue
        seen.add(tile)
        print(tile, row["us"], c)
        Loaded(bench, operator(shape), c, Builder("sm_90a", 1).start(operator(shape), c).result()[0])()
    torch.cuda.synchronize()


def report(out: Path, shapes: Iterable[Shape]) -> None:
    rows = [json.loads(line) for line in (out / "sweep.jsonl").read_text().splitlines()]
    results = [row for row in rows if "verdict" in row]
    summary: dict[str, Any] = {"shapes": {}, "steady": [row["steady"] for row in rows if "steady" in row]}
    names = ("ours us", "TFLOP/s", "cublas", "cublasLt", "ratio")
    print(f"{'(batch, M, N, K)':>24} " + " ".join(f"{name:>9}" for name in names) + "  config")
    ratios = []
    for shape in shapes:
        mine = sorted(
            (r for r in results if tuple(r["shape"]) == shape and r["verdict"] == "correct"), key=lambda r: r["us"]
        )
        peers = next((r["torch"] for r in rows if "torch" in r and tuple(r.get("shape", ())) == shape), None)
        final = next((r for r in rows if "final" in r and tuple(r["final"]) == shape), None)
        if not mine or peers is None:
            print(f"{shape!s:>24} nothing measured")
            continue
        us = final["us"] if final else mine[0]["us"]
        other = min(peers.values())
        ratios.append(other / us)
        flops = 2.0 * shape[0] * shape[1] * shape[2] * shape[3]
        c = mine[0]["config"]
        words = f"{c['BM']}x{c['BN']}x{c['BK']} {c['TM']}x{c['TN']} u{c['SPLIT_U']} s{c['STAGES']}"
        words += f" {c['FIXUP']}:{c['SPLITS']} b{c['MIN_BLOCKS']} {'pf ' if c['REG_PREFETCH'] else ''}"
        words += mine[0].get("log", [""])[-1][:40]
        print(
            f"{shape!s:>24} {us:9.1f} {flops / us / 1e6:9.1f} {peers['cublas']:9.1f} {peers['cublaslt']:9.1f} "
            f"{other / us:9.2f}  {words}"
        )
        summary["shapes"][str(list(shape))] = {"us": us, "peers": peers, "top": mine[:40]}
    wrong = [r for r in results if r["verdict"] != "correct"]
    print(f"{len(results)} measured, {len(wrong)} not right:")
    for row in wrong[:8]:
        print("  ", row["shape"], row["verdict"], row.get("error"), row.get("detail", "")[:200], row["config"])
    if ratios:
        print(f"geometric mean over torch's better: {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
    for row in summary["steady"]:
        print("steady", row)
    (out / "sweep.json").write_text(json.dumps(summary))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--configs", type=int, default=48, help="of each shape, before the variations")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--only", type=int, nargs="*", help="places in the list of shapes")
    parser.add_argument("--replay", type=Path, help="a sweep.json: run its best configs once and end")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shapes = SUITE if options.only is None else [SUITE[i] for i in options.only]
    if options.replay:
        replay(options.replay, shapes[0])
        return
    if options.worker:
        Sweep(options.out, options.seconds, options.cores).run(shapes, options.configs)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    journal = options.out / "sweep.jsonl"
    journal.unlink(missing_ok=True)
    ends = time.monotonic() + options.seconds
    while ends - time.monotonic() > 5:
        command = [sys.executable, *sys.argv, "--worker", "--seconds", str(ends - time.monotonic())]
        child = subprocess.Popen(command)
        seen, since = 0, time.monotonic()
        while child.poll() is None:
            time.sleep(0.5)
            size = journal.stat().st_size if journal.exists() else 0
            if size != seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > 90 or time.monotonic() > ends + 20:
                child.kill()
                child.wait()
        if child.returncode == 0:
            break
        print(f"the worker ended with {child.returncode}; going on after the config it was at")
    report(options.out, shapes)


if __name__ == "__main__":
    main()
