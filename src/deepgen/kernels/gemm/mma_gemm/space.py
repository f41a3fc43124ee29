"""The space of the family with warp-wide products, the constraints on its knobs, and how a config is compiled and
launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from deepgen.kernels.gemm import counters, least_area, share_of_blocks, sums
from deepgen.kernels.gemm.mma_gemm import formats
from deepgen.kernels.gemm.mma_gemm.formats import STEP_BYTES
from deepgen.kernels.shared import NOTHING
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, divides, implies
from deepgen.targets import Gpu
from deepgen.vocabulary import Arg, LaunchPlan, Size, Step, dtype

RESERVED = 44  # registers for addresses, counters and copies in flight
_LEAST_SLICE = 128  # elements of K; with fewer, adding up parts costs more than it gains


def mma_space(name: str, gemm: Gemm, gpu: Gpu) -> Space:
    s, size = Space(name), dtype(gemm.a).bytes
    bm, bn = s.knob("BM", _tile_sizes(gemm.m)), s.knob("BN", _tile_sizes(gemm.n))
    bk = s.knob("BK", [64 // size, 128 // size, 256 // size])
    wm = s.knob("WM", [n for n in (16, 32, 48, 64) if n % _least(gemm, "A") == 0])
    wn = s.knob("WN", [n for n in (16, 32, 48, 64, 96, 128) if n % _least(gemm, "B") == 0])
    warps_k = s.knob("WARPS_K", [1, 2, 4])
    fragments = s.knob("FRAGMENTS", [1, 2])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6])
    s.require(divides(wm, bm), "warps cover the block's rows")
    s.require(divides(wn, bn), "warps cover the block's columns")
    steps = s.derive("steps", bk * size // STEP_BYTES)
    s.require(divides(warps_k * fragments, steps), "a tile has as many steps of K for each warp and set of fragments")
    _lines(s, gemm, bm, bn)

    threads = s.derive("threads", (bm // wm) * (bn // wn) * warps_k * gpu.warp)
    s.require(threads <= 512, "a block has no more than 16 warps")
    s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    if gemm.m * gemm.n * gemm.batch > 1 << 20:
        least = least_area(2048, _tile_sizes(gemm.m), _tile_sizes(gemm.n))
        s.require(bm * bn >= least, "tiles are not tiny where the result is large")
    registers = s.derive("registers", wm * wn // 32 + fragments * (wm + wn) // 4 + RESERVED)
    s.require(registers <= gpu.registers_per_thread, "sums and fragments fit in a thread's registers")
    s.require(registers * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")

    stages = s.knob("STAGES", [2, 3, 4, 5, 6, 8])
    s.require(implies(stages > 2, (stages - 1) * bk < max(gemm.k, 1)), "no stage stays empty")
    shared = s.derive("shared_bytes", (bm + bn) * bk * size * stages)
    s.require(shared <= gpu.shared_per_block, "tiles fit in shared memory")
    s.require((shared + gpu.shared_reserved) * min_blocks <= gpu.shared_per_sm, "so many blocks' tiles fit")
    s.require(implies(warps_k > 1, bm * bn * 4 <= shared), "sums of warps that share K fit where the tiles were")

    wide = s.knob("WIDE", [1, 2, 4] if along_k(gemm, "B") else [1])
    s.require(divides(wide * 8, wn), "columns are interleaved within a warp")
    share_of_blocks(s, gemm, gpu, bk, min_blocks, fixups(gemm, gpu), _splits(gemm, gpu))
    return s


def _least(gemm: Gemm, side: str) -> int:
    return 32 if spread(gemm, side) else 16


def _lines(s: Space, gemm: Gemm, bm: Expr, bn: Expr) -> None:
    """Chunks are permuted within a line: if lines run along rows, their length matters."""
    size = dtype(gemm.a).bytes
    for side, rows in (("A", bm), ("B", bn)):
        if not along_k(gemm, side):
            short = rows.isin([32 // size, 64 // size])
            s.require(short | divides(128 // size, rows), f"lines of {side}'s tile are 32, 64 or n times 128 bytes")


def _tile_sizes(size: int) -> list[int]:
    """Sizes below twice the extent: in larger tiles most of the tile would be idle."""
    return [t for t in (16, 32, 48, 64, 96, 128, 192, 256) if t < 2 * size or t <= 32]


def fixups(gemm: Gemm, gpu: Gpu) -> list[str]:
    """K is divided if the tiles alone would not fill the chip several times."""
    few = ceil(gemm.m / 64) * ceil(gemm.n / 64) * gemm.batch < 16 * gpu.multiprocessors
    deep = gemm.k >= 2 * _LEAST_SLICE
    return ["none", *(["stream"] if deep else []), *(["step", "last"] if few and deep else [])]


def _splits(gemm: Gemm, gpu: Gpu) -> list[int]:
    most = max(2, min(gemm.k // _LEAST_SLICE, 2 * gpu.multiprocessors))
    return [n for n in (2, 3, 4, 5, 6, 7, 8, 11, 14, 16, 22, 29, 33, 44, 66, 88, 132) if n <= most]


FIXUPS = {"none": 0, "step": 1, "last": 2, "stream": 3}
_REDUCERS = 256  # threads of a block of the second step, as in share.h


@dataclass(frozen=True)
class LoweredMma:
    """The macros of a config, and what follows from them."""

    macros: Mapping[str, int | str]
    threads: int
    shared_bytes: int


def along_k(gemm: Gemm, side: str) -> bool:
    """Whether memory is contiguous along K."""
    return gemm.layout[0] == "n" if side == "A" else gemm.layout[1] == "t"


def spread(gemm: Gemm, side: str) -> bool:
    """Whether lanes own four neighbouring rows: if neither kind of matrix load transposes the elements."""
    return not along_k(gemm, side) and dtype(gemm.a).bytes != 2


def lower(gemm: Gemm, config: Mapping[str, Any]) -> LoweredMma:
    c, size, acc = config, dtype(gemm.a).bytes, dtype(gemm.acc).bytes
    everywhere = c["GUARD"] == "all"
    run = 8 if spread(gemm, "B") else 2 * c["WIDE"]
    macros: dict[str, int | str] = {
        **formats.result_macros(gemm, 1 if everywhere else formats.store_width(gemm, run)),
        "MMA": formats.product_name(gemm),
        "A_T": int(gemm.layout[0] == "t"),
        "B_T": int(gemm.layout[1] == "t"),
        **{knob: c[knob] for knob in ("BM", "BN", "BK", "WM", "WN", "WARPS_K", "STAGES", "FRAGMENTS", "WIDE")},
        **{knob: c[knob] for knob in ("MAPPING", "MIN_BLOCKS")},
        "COPY_A": size if everywhere else formats.aligned_bytes(gemm, "A"),
        "COPY_B": size if everywhere else formats.aligned_bytes(gemm, "B"),
        "FIXUP": FIXUPS[c["FIXUP"]],
        "HINT": 0,
        "EDGE_M": int(everywhere or gemm.m % c["BM"] != 0),
        "EDGE_N": int(everywhere or gemm.n % c["BN"] != 0),
        "EDGE_K": int(everywhere or gemm.k % c["BK"] != 0),
    }
    warps = c["BM"] // c["WM"] * (c["BN"] // c["WN"])
    tiles = (c["BM"] + c["BN"]) * c["BK"] * size * c["STAGES"]
    added = c["BM"] * c["BN"] * acc if c["WARPS_K"] > 1 else 0
    return LoweredMma(macros, warps * c["WARPS_K"] * 32, max(tiles, added))


def plan(gemm: Gemm, config: Mapping[str, Any], lowered: LoweredMma) -> LaunchPlan:
    """One step, or two if a second one adds up the parts of K."""
    c, acc = config, dtype(gemm.acc).bytes
    tiles = f"ceil_div(M, {c['BM']}) * ceil_div(N, {c['BN']}) * batch"
    slot = c["BM"] * c["BN"] * acc
    splits, blocks = c.get("SPLITS", 1), c.get("BLOCKS", 1)
    grid: Size = {"none": tiles, "stream": blocks}.get(c["FIXUP"], f"{tiles} * {splits}")
    spaces: dict[str, tuple[Arg, Arg]] = {
        "none": (NOTHING, NOTHING),
        "step": (sums(f"{splits * acc} * M * N * batch"), NOTHING),
        "last": (sums(f"{tiles} * {splits * slot}"), counters(f"{tiles} * 4")),
        "stream": (sums(blocks * slot), counters(blocks * 4)),
    }
    args = formats.arguments(gemm, *spaces[c["FIXUP"]], splits)
    steps = [Step("gemm", args, (grid, 1, 1), (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)]
    if c["FIXUP"] == "step":
        runs = f"ceil_div(batch * M * N, {_REDUCERS * min(4, int(lowered.macros['STORE']))})"
        steps.append(Step("gemm_reduce", args, (runs, 1, 1), (_REDUCERS, 1, 1)))
    return LaunchPlan(steps=tuple(steps), requires=_requires(gemm, c, lowered.macros))


def _requires(gemm: Gemm, c: Mapping[str, Any], macros: Mapping[str, Any]) -> tuple[formats.Requirement, ...]:
    out = [
        (f"{letter} % {c['B' + letter]} == 0", f"{letter} that is a multiple of {c['B' + letter]}")
        for letter in "MNK"
        if not macros[f"EDGE_{letter}"]
    ]
    store = macros["STORE"]
    if store > 1 and macros["EDGE_N"]:
        out.append((f"N % {store} == 0", f"N that is a multiple of {store}"))
    widths = {"A": macros["COPY_A"], "B": macros["COPY_B"], "C": store * dtype(gemm.c).bytes}
    return (*out, *formats.alignment_required(gemm, widths))
