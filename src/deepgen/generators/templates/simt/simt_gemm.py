"""The space, the launch and the defaults of the SIMT GEMM family in `gemm_simt.cu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from math import ceil
from typing import Any

from deepgen.generators.templates.simt.lower import lower, plan
from deepgen.operators import Gemm, Operator
from deepgen.space import Expr, Space, divides, implies, maximum, minimum, where
from deepgen.targets import Target
from deepgen.targets.gpu import Gpu
from deepgen.targets.hip import Hip
from deepgen.vocabulary import Kernel, Source
from deepgen.vocabulary.dtypes import dtype

_SOURCES = ("gemm_simt.cu", "tiles.h", "epilogue.h", "schedule.h", "dialect.h")
_SERVED = {  # (A and B, sums): C
    ("f32", "f32"): ("f32",),
    ("f64", "f64"): ("f64",),
    ("f16", "f32"): ("f16", "f32"),
    ("bf16", "f32"): ("bf16", "f32"),
    ("i8", "i32"): ("i32",),
}
_WIDEST = 16  # bytes of one load or store
_RESERVED = 24  # registers for addresses and counters
_LEAST_SLICE = 64  # steps of K; below it adding parts up costs more than it gains


class SimtGemm:
    """Block, warp and thread tiles, staged copies, split-K and stream-K: any sizes, all layouts, CUDA and HIP."""

    name = "simt_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it serves GPUs only"
        if not isinstance(operator, Gemm):
            return "it serves gemm only"
        if operator.a != operator.b or operator.c not in _SERVED.get((operator.a, operator.acc), ()):
            return "it computes f32 and f64, and f16, bf16 and i8 with wider sums"
        if operator.c == "i32" and not (operator.alpha.is_integer() and operator.beta.is_integer()):
            return "alpha and beta of integers must be whole"
        if operator.bias or operator.activation != "none" or operator.scales != "none":
            return "it has no bias, activation or scales yet"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, gpu = _served(operator, target)
        a, _, c, acc = gemm.dtypes
        s = Space(self.name)
        bm = s.knob("BM", _tile_sizes(gemm.m))
        bn = s.knob("BN", _tile_sizes(gemm.n))
        bk = s.knob("BK", [8, 16, 32, 64])
        tm, tn = s.knob("TM", [2, 4, 6, 8, 12, 16]), s.knob("TN", [2, 4, 6, 8, 12, 16])
        lanes_m = s.knob("LANES_M", [n for n in (1, 2, 4, 8, 16) if gpu.warp // n <= 32])
        order = s.knob("LANE_ORDER", [0, 1])
        split_u = s.knob("SPLIT_U", [1, 2, 4, 8])
        inner_a = s.knob("INNER_A", ["k", "row"])
        inner_b = s.knob("INNER_B", ["k", "row"])
        copy = s.knob("COPY", ["async", "registers"] if gpu.has("cp_async") else ["registers"])
        stages = s.knob("STAGES", [1, 2, 3, 4, 5])
        load_a = s.knob("LOAD_A", _load_widths(gemm, 0))
        load_b = s.knob("LOAD_B", _load_widths(gemm, 1))
        s.knob("LOAD_CONTINUOUS", [True, False])
        pads = [0, _WIDEST // a.bytes]
        pad_a, pad_b = s.knob("PAD_A", pads), s.knob("PAD_B", pads)
        scatter = {}
        for side, tile in (("A", tm), ("B", tn)):
            run = s.knob(f"THREAD_SCATTER_{side}", [1, 2, 4])
            span = s.knob(f"WARP_SCATTER_{side}", [1, 2, 4, 6, 8, 12, 16])
            scatter[side] = run
            s.require(divides(run, span) & divides(span, tile), f"scatter widths of {side} divide the thread's tile")
            s.require((span == run) | (span == tile), f"a warp's run of {side} is a thread's or the whole tile")
        prefetch = s.knob("REG_PREFETCH", [False, True])
        unroll = s.knob("UNROLL", [1, 2, 4, 8])
        stage_rows = s.knob("STAGE_ROWS", [0, 1, 2, 4, 8, 16])
        continuous = s.knob("REDUCE_CONTINUOUS", [True, False])
        store = s.knob("STORE", _store_widths(gemm))
        s.knob("MAPPING", [1, 4, 8, 16])
        fixup = s.knob("FIXUP", _fixups(gemm, gpu))
        splits = s.knob("SPLITS", _splits(gemm, gpu), when=fixup.isin(["step", "last"]))
        blocks = s.knob("BLOCKS", [gpu.multiprocessors * n for n in (1, 2, 3, 4)], when=fixup == "stream")
        min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6])
        s.knob("GUARD", ["sizes"])

        lanes_n = gpu.warp // lanes_m
        s.require(divides(lanes_m * tm, bm), "warps cover the block's rows")
        s.require(divides(lanes_n * tn, bn), "warps cover the block's columns")
        threads = s.derive("threads", (bm // tm) * (bn // tn) * split_u)
        s.require(threads <= gpu.threads_per_block, "a block has no more threads than the chip allows")
        s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
        s.require(order * lanes_m != 1, "pairs of rows need an even number of them")
        any_inner = (inner_a == "k") | (inner_b == "k")
        group = s.derive("group_k", where(any_inner, minimum(_WIDEST // a.bytes, bk // split_u), 1))
        s.require(divides(split_u * group, bk), "the groups of steps divide BK")
        s.require(unroll * group * split_u <= bk, "the unrolled loop is no longer than the tile")
        s.require(implies(prefetch, unroll > 1), "fragments alternate in an unrolled loop")
        for side, inner, load, rows, run, pad in (
            ("A", inner_a, load_a, bm, scatter["A"], pad_a),
            ("B", inner_b, load_b, bn, scatter["B"], pad_b),
        ):
            along_k = _along_k(gemm, side)
            s.require(divides(load, bk if along_k else rows), f"loads divide a line of the tile of {side}")
            s.require(threads * load <= rows * bk, f"every thread loads a part of {side}")
            turned = inner != ("k" if along_k else "row")
            s.require(implies((copy == "async") & turned, (load == 1) & (a.bytes >= 4)), f"copies cannot turn {side}")
            s.require(implies(copy == "async", load * a.bytes >= 4), f"copies of {side} move at least 4 bytes")
            s.require(implies(inner == "row", run * a.bytes <= _WIDEST), f"a fragment of {side} is one load wide")
            vector = where(inner == "k", group, run)
            s.require(
                divides(vector, pad) & divides(vector, where(inner == "k", bk, rows)), f"lines of {side} are aligned"
            )
            s.require(implies(~turned, divides(load, pad)), f"lines of {side} are aligned for whole loads")
        s.require(implies(copy == "async", stages >= 2), "copies need a buffer to fly to")
        s.require(implies(copy == "registers", stages <= 2), "loads through registers run one step ahead")

        through = (split_u > 1) | (stage_rows > 0)
        s.require(implies(split_u > 1, stage_rows > 0), "groups are added up through shared memory")
        s.require(implies(stage_rows > 0, divides(stage_rows, tm)), "passes divide the thread's rows")
        s.require(implies(~through, continuous), "the order of the sums matters only in shared memory")
        s.require(implies(~through, divides(store, scatter["B"])), "a store takes neighbours of one thread")
        s.require(divides(store, bn), "stores divide a row of the tile")
        lines = {side: where(i == "k", r * (bk + p), bk * (r + p)) for side, i, r, p in (
            ("A", inner_a, bm, pad_a), ("B", inner_b, bn, pad_b))}  # fmt: skip
        tiles = s.derive("tile_bytes", (lines["A"] + lines["B"]) * a.bytes * stages)
        sums = split_u * (bm // tm) * stage_rows * (bn + where(scatter["B"] == 1, lanes_n, 0)) * acc.bytes
        shared = s.derive("shared_bytes", maximum(tiles, sums))
        s.require(shared <= gpu.shared_per_block, "tiles fit in shared memory")
        s.require((shared + gpu.shared_reserved) * min_blocks <= gpu.shared_per_sm, "so many blocks' tiles fit too")
        words = group * a.bytes // 4 + where(group * a.bytes < 4, 1, 0)
        held = where(copy == "registers", (bm * bk + bn * bk) * a.bytes // 4 // threads, 0)
        fragments = (tn + 3) * words + where(prefetch, (tm + tn) * words, 0)
        registers = s.derive("registers", tm * tn * (acc.bytes // 4) + fragments + held + _RESERVED)
        s.require(registers <= gpu.registers_per_thread, "sums and fragments fit in a thread's registers")
        s.require(registers * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
        if gemm.m * gemm.n * gemm.batch > 1 << 20:
            s.require(bm * bn >= 1024, "tiles are not tiny where the result is large")
        s.require(implies(fixup.isin(["step", "last"]), splits * bk * 2 <= gemm.k), "every part of K has two steps")
        s.require(
            implies(fixup == "stream", blocks <= gpu.multiprocessors * min_blocks), "streaming blocks run at once"
        )
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, gpu = _served(operator, target)
        lowered = lower(gemm, config, gpu.warp, dots(gpu))
        dialect = "dialect_hip.h" if isinstance(gpu, Hip) else "dialect_cuda.h"
        return Kernel(
            name=self.name,
            language="hip" if isinstance(gpu, Hip) else "cuda",
            sources=tuple(Source(name, source(name)) for name in (*_SOURCES, dialect)),
            flags=("-std=c++17", *(f"-D{name}={value}" for name, value in lowered.macros.items())),
            plan=plan(gemm, config, lowered),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        from deepgen.generators.templates.simt.defaults import choose

        gemm, gpu = _served(operator, target)
        return choose(gemm, gpu)


def dots(gpu: Gpu) -> dict[str, int]:
    """By dtype, how many products one instruction adds up."""
    found = {"i8": 4} if gpu.has("dp4a") or gpu.has("dot4") else {}
    return {**found, "f16": 2} if gpu.has("dot2") else found


def source(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()


def _served(operator: Operator, target: Target) -> tuple[Gemm, Gpu]:
    assert isinstance(operator, Gemm) and isinstance(target, Gpu), "ask refuses() first"
    return operator, target


def _along_k(gemm: Gemm, side: str) -> bool:
    return gemm.layout[0] == "n" if side == "A" else gemm.layout[1] == "t"


def _tile_sizes(size: int) -> list[int]:
    """Not more than twice what there is: the rest of the tile would be idle."""
    return [t for t in (16, 32, 48, 64, 96, 128, 192, 256) if t < 2 * size or t == 16]


def _load_widths(gemm: Gemm, side: int) -> list[int]:
    """Whole loads must not cross the end of a line of memory, and lines must begin aligned."""
    scalars = gemm.scalars()
    line = int(scalars[("lda", "ldb")[side]])
    stride = int(scalars[("stride_a", "stride_b")[side]]) if gemm.batch > 1 else line
    most = _WIDEST // dtype(gemm.a).bytes
    return [w for w in (1, 2, 4, 8, 16) if w <= most and line % w == 0 and stride % w == 0]


def _store_widths(gemm: Gemm) -> list[int]:
    most = _WIDEST // max(dtype(gemm.c).bytes, dtype(gemm.acc).bytes)
    return [w for w in (1, 2, 4) if w <= most and gemm.n % w == 0]


def _fixups(gemm: Gemm, gpu: Gpu) -> list[str]:
    """K is divided where the tiles alone would not fill the chip a few times."""
    few = ceil(gemm.m / 64) * ceil(gemm.n / 64) * gemm.batch < 16 * gpu.multiprocessors
    deep = gemm.k >= 2 * _LEAST_SLICE
    return ["none", *(["stream"] if deep else []), *(["step", "last"] if few and deep else [])]


def _splits(gemm: Gemm, gpu: Gpu) -> list[int]:
    most = max(2, min(gemm.k // _LEAST_SLICE, 2 * gpu.multiprocessors))
    return [n for n in (2, 3, 4, 5, 6, 8, 11, 14, 16, 22, 29, 33, 44, 66, 88, 132) if n <= most]
