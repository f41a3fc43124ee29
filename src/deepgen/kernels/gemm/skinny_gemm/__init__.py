"""GEMM of a few rows or columns with a large matrix, every byte of which is read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from deepgen.kernels.gemm import counters, remembered, sums
from deepgen.kernels.gemm.mma_gemm import formats, parts_of
from deepgen.kernels.gemm.mma_gemm.formats import WIDEST, widened
from deepgen.kernels.gemm.mma_gemm.space import along_k
from deepgen.kernels.shared import NOTHING, gpu_kernel, served
from deepgen.operators import Gemm, Operator
from deepgen.space import Expr, Space, implies, maximum, where
from deepgen.targets import Cuda, Gpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, Step, dtype

_OWN = ("gemm_skinny.cu", "large.h", "problem.h", "dialect_mma.h")
_MOST_THIN, _MOST_PLAIN, _MOST_WIDENED = 64, 16, 32
# Operands that are contiguous along rows are transposed in registers, which leaves fewer of them for sums.
_MOST_TRANSPOSED = {"f32": 0, "tf32": 32, "f16": 32, "bf16": 32, "i8": 8, "f8e4m3": 8, "f8e5m2": 8}
_LEAST_LARGE, _LEAST_K = 1024, 512


class SkinnyGemm:
    """The large matrix streams through registers once: f16, bf16, tf32, i8, 8-bit floats, f32; sm_80 and later."""

    name = "skinny_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        plain = isinstance(operator, Gemm) and (operator.a, operator.b, operator.acc, operator.c) == ("f32",) * 4
        if not plain or not isinstance(target, Cuda) or not target.has("cp_async"):
            reason = formats.refused(operator, target)
            if reason is not None:
                return reason
        assert isinstance(operator, Gemm)
        if (reason := formats.refused_result(operator)) is not None:
            return reason
        if operator.a != operator.b:
            return "A and B must have the same format"
        side = sides(operator)
        most = _MOST_PLAIN if plain else _MOST_THIN
        if side.thin > most:
            return f"M or N must be at most {most}"
        if side.thin > _MOST_WIDENED and not side.thin_along and formats.widened(*served(operator, target, Gemm, Cuda)):
            return f"M or N must be at most {_MOST_WIDENED} where it is not contiguous along K in {operator.a}"
        if side.large < _LEAST_LARGE or operator.k < _LEAST_K:
            return f"the large matrix must have at least {_LEAST_LARGE} rows and {_LEAST_K} steps of K"
        if not side.large_along:
            most = _MOST_TRANSPOSED[operator.a]
            if side.thin > most:
                return f"M or N must be at most {most} where the large matrix is not contiguous along K in {operator.a}"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return skinny_space(self.name, *served(operator, target, Gemm, Cuda))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, Cuda)
        lowered, files = lower(gemm, config), formats.result_sources(gemm, __name__, _OWN)
        return gpu_kernel(self.name, "cuda", files, lowered.macros, plan(gemm, config, lowered))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*served(operator, target, Gemm, Cuda))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return None if self.refuses(operator, target) else seconds(*served(operator, target, Gemm, Cuda), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6


BLOCK_BYTES = 64  # of K, shared by four lanes


@dataclass(frozen=True)
class Sides:
    """Which operand is thin, and how both are laid out in memory."""

    thin_m: bool
    thin: int  # rows of the thin operand
    large: int
    thin_along: bool  # whether it is contiguous along K
    large_along: bool
    plain: bool  # multiplied without tensor cores

    @property
    def padded(self) -> int:
        whole = 4 if self.plain else 8
        return -(-self.thin // whole) * whole


@dataclass(frozen=True)
class LoweredSkinny:
    macros: Mapping[str, int | str]
    threads: int
    shared_bytes: int
    rows: int  # of the large matrix, per block


def sides(gemm: Gemm) -> Sides:
    thin_m = gemm.m <= gemm.n
    thin, large = (gemm.m, gemm.n) if thin_m else (gemm.n, gemm.m)
    names = "AB" if thin_m else "BA"
    return Sides(thin_m, thin, large, along_k(gemm, names[0]), along_k(gemm, names[1]), gemm.a == "f32")


def row_blocks(gemm: Gemm, config: Mapping[str, Any]) -> int:
    """Blocks of eight rows of the large matrix per warp."""
    return 2 * int(config["TILES"]) if sides(gemm).large_along else formats.WIDEST // dtype(gemm.a).bytes


def lower(gemm: Gemm, config: Mapping[str, Any]) -> LoweredSkinny:
    c, s, size = config, sides(gemm), dtype(gemm.a).bytes
    blocks = row_blocks(gemm, c)
    rows = c["WARPS_R"] * blocks * 8
    round_k = c["UNROLL"] * c["WARPS_K"] * BLOCK_BYTES // size  # elements of K per round
    rounds, splits = -(-gemm.k // round_k), c["SPLITS"]
    buffers = 1 if rounds <= c["CHUNK"] * splits else 2
    large, thin = ("B", "A") if s.thin_m else ("A", "B")
    edge = {"large": int(s.large % rows != 0), "thin": int(s.thin != s.padded)}
    macros: dict[str, int | str] = {
        **formats.result_macros(gemm, formats.store_width(gemm, 8 if s.thin_m else s.padded)),
        "MMA": "none" if s.plain else formats.product_name(gemm),
        "PLAIN": int(s.plain),
        "THIN_M": int(s.thin_m),
        "THIN": s.padded,
        "THIN_ALONG": int(s.thin_along),
        "ALONG": int(s.large_along),
        "ROW_BLOCKS": blocks,
        **{knob: c[knob] for knob in ("WARPS_R", "WARPS_K", "UNROLL", "CHUNK", "MIN_BLOCKS")},
        "BUFFERS": buffers,
        "HINT": int(c["HINT"]),
        "SPLIT": int(splits > 1),
        "COPY_LARGE": formats.aligned_bytes(gemm, large),
        "COPY_THIN": formats.aligned_bytes(gemm, thin),
        "EDGE_LARGE": edge["large"],
        "EDGE_M": edge["thin" if s.thin_m else "large"],
        "EDGE_N": edge["large" if s.thin_m else "thin"],
        "EDGE_K": int(gemm.k % round_k != 0),
    }
    line = c["CHUNK"] * round_k * size
    pitch = line + (64 if line % 128 == 0 else 0)
    sums = c["WARPS_K"] * (s.padded * (rows + 4) if s.thin_m else rows * (s.padded + 8)) * 4
    return LoweredSkinny(macros, c["WARPS_R"] * c["WARPS_K"] * 32, max(buffers * s.padded * pitch, sums), rows)


def plan(gemm: Gemm, config: Mapping[str, Any], lowered: LoweredSkinny) -> LaunchPlan:
    s, splits = sides(gemm), config["SPLITS"]
    tiles = f"ceil_div({'N' if s.thin_m else 'M'}, {lowered.rows}) * batch"
    partial: Arg = NOTHING
    arrived: Arg = NOTHING
    if splits > 1:
        partial = sums(f"{tiles} * {splits * lowered.rows * s.padded * 4}")
        arrived = counters(f"{tiles} * 4")
    args = formats.arguments(gemm, partial, arrived, splits)
    step = Step("gemm", args, (f"{tiles} * {splits}", 1, 1), (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)
    return LaunchPlan(steps=(step,), requires=_requires(gemm, s, lowered))


def _requires(gemm: Gemm, s: Sides, lowered: LoweredSkinny) -> tuple[formats.Requirement, ...]:
    m, size = dict(lowered.macros), dtype(gemm.a).bytes
    thin, large = ("M", "N") if s.thin_m else ("N", "M")
    out = [(f"{thin} <= {s.padded}", f"{thin} of at most {s.padded}")]
    if not m[f"EDGE_{thin}"]:
        out = [(f"{thin} == {s.padded}", f"{thin} of {s.padded}")]
    if not m["EDGE_LARGE"]:
        out.append((f"{large} % {lowered.rows} == 0", f"{large} that is a multiple of {lowered.rows}"))
    if not m["EDGE_K"]:
        round_k = int(m["UNROLL"]) * int(m["WARPS_K"]) * BLOCK_BYTES // size
        out.append((f"K % {round_k} == 0", f"K that is a multiple of {round_k}"))
    copied, store = int(m["COPY_LARGE"]), int(m["STORE"])
    along = "K" if s.large_along else large
    if copied > size:
        out.append((f"{along} % {copied // size} == 0", f"{along} that is a multiple of {copied // size}"))
    if store > 1:
        out.append((f"N % {store} == 0", f"N that is a multiple of {store}"))
    widths = {"A" if s.thin_m else "B": int(m["COPY_THIN"]) if s.thin_along else size}
    widths |= {"B" if s.thin_m else "A": copied, "C": store * dtype(gemm.c).bytes}
    return (*out, *formats.alignment_required(gemm, widths))


Count = TypeVar("Count", int, Expr)


def registers(gemm: Gemm, gpu: Gpu, sums: Count, loads: Count) -> Count:
    """Registers of a thread, including those for addresses, counters, the thin operand, and transposed or widened
    words."""
    side = sides(gemm)
    if not side.large_along:
        return sums + 2 * loads + 76
    needed = sums + 2 * loads + (52 if side.thin_along or dtype(gemm.a).bytes > 1 else 84)
    return needed + sums + loads + side.padded if widened(gemm, gpu) else needed


def skinny_space(name: str, gemm: Gemm, gpu: Gpu) -> Space:
    s, side, size = Space(name), sides(gemm), dtype(gemm.a).bytes
    # If the large matrix is contiguous along rows, a lane owns as many of them as a load has.
    width = WIDEST // size
    tiles = s.knob("TILES", [1, 2, 4] if side.large_along else [width // 2])
    warps_r, warps_k = s.knob("WARPS_R", [1, 2, 4, 8]), s.knob("WARPS_K", [1, 2, 4, 8, 16])
    unroll = s.knob("UNROLL", [1, 2, 4, 8])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6, 8])
    threads = s.derive("threads", warps_r * warps_k * gpu.warp)
    s.require((threads >= 64) & (threads <= 512), "a block has 2 to 16 warps")
    s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    sums = tiles * (2 * side.padded if side.plain else side.padded // 2)
    loads = unroll * (tiles * 2 if side.large_along else 4 * (4 // size)) * 4
    needed = s.derive("registers", registers(gemm, gpu, sums, loads))
    s.require(needed <= gpu.registers_per_thread, "sums and loads under way fit in a thread's registers")
    s.require(needed * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
    s.require(loads * 4 * threads * min_blocks >= 16 << 10, "enough is on its way to keep the memory busy")

    round_k = s.derive("round", unroll * warps_k * (BLOCK_BYTES // size))
    splits = s.knob("SPLITS", [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n == 1 or n * 256 <= gemm.k])
    chunk = s.knob("CHUNK", [1, 2, 4, 8, 16, 32, 64])
    rounds = s.derive("rounds", (round_k + gemm.k - 1) // round_k)
    s.require(splits <= rounds, "every block has some of K")
    s.require(implies(chunk > 1, chunk * splits < 2 * rounds), "a chunk of the thin operand is not longer than K")
    rows = s.derive("rows", warps_r * tiles * 16)
    s.require(rows < 2 * side.large, "blocks are not much higher than the matrix")
    line = chunk * round_k * size + 64
    thin = where(chunk * splits >= rounds, 1, 2) * side.padded * line
    added = warps_k * (side.padded * (rows + 4) if side.thin_m else rows * (side.padded + 8)) * 4
    shared = s.derive("shared_bytes", maximum(thin, added))
    s.require(shared <= gpu.shared_per_block, "the thin operand's chunks and the sums fit in shared memory")
    s.require((shared + gpu.shared_reserved) * min_blocks <= gpu.shared_per_sm, "so many blocks' shares of it fit")
    s.knob("HINT", [False, True])
    return s


@remembered
def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest config by the model that the space admits."""
    space = skinny_space("defaults", gemm, gpu)
    ranked = sorted(candidates(gemm, gpu), key=lambda config: seconds(gemm, gpu, config))
    return next(config for config in ranked if not space.explain(config))


def candidates(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    side, size = sides(gemm), dtype(gemm.a).bytes
    # Four tiles were never the best of 69 problems on an H200: their sums take registers needed for loads along K.
    for tiles in (1, 2) if side.large_along else (WIDEST // size // 2,):
        for warps_r, warps_k in (
            (1, 2),
            (1, 4),
            (1, 8),
            (2, 4),
            (2, 2),
            (4, 2),
            (4, 1),
            (2, 8),
            (1, 16),
            (4, 4),
            (2, 1),
        ):
            for unroll in (1, 2, 4):
                for splits in (1, 2, 3, 4, 6, 8):
                    round_k = unroll * warps_k * BLOCK_BYTES // size
                    rounds = ceil(gemm.k / round_k)
                    if splits > rounds or (splits > 1 and splits * 256 > gemm.k):
                        continue
                    config = {
                        "TILES": tiles, "WARPS_R": warps_r, "WARPS_K": warps_k, "UNROLL": unroll, "SPLITS": splits,
                        "CHUNK": _chunk(side, ceil(rounds / splits), round_k * size), "HINT": True,
                    }  # fmt: skip
                    yield {**config, "MIN_BLOCKS": _resident(gemm, gpu, config)}


# Microseconds, unless noted otherwise. Fitted together to timings on an H200; see docs/kernels/skinny_gemm.md.
LAUNCH, _LATE = 5.46, 1.7  # of the kernel; additional for blocks that wait to become resident
_READ, _THIN = 1.02, 1.05  # of the memory's bandwidth: for the large matrix, and for the thin one from the cache
_LATENCY = 0.18  # latency for the bytes that a multiprocessor has in flight
_FIRST = 180.0  # kB per microsecond of the thin matrix, whose first chunk precedes all products
# Clocks of a multiprocessor for 512 bytes of the large matrix: loads, each further part of 16 bytes, exchanges within
# registers to transpose bytes or halves; products for each row of the thin one, with tensor cores and without.
_CLOCK, _LOAD, _PART, _EXCHANGE, _PRODUCT, _MULTIPLY = 1750.0, 1.0, 24.0, 2.5, 0.016, 0.58
_SINGLE, _SINGLE_COPY = 83.0, 54.0  # per 32 elements of a thin matrix that is not contiguous along K
_PARTS, _LEFT, _ADDED = 1.95, 1.05, 47.0  # parts of K: fixed time; of memory's rate; kB per microsecond of one block


def seconds(gemm: Gemm, gpu: Gpu, c: Mapping[str, Any]) -> float:
    """The busiest multiprocessor's share of the large matrix, and of the thin one, which every block reads."""
    side, size = sides(gemm), dtype(gemm.a).bytes
    rows = c["WARPS_R"] * c["TILES"] * 16
    blocks = ceil(side.large / rows) * gemm.batch * c["SPLITS"]
    rounds = ceil(blocks / gpu.multiprocessors)
    alive = min(rounds, c["MIN_BLOCKS"])
    share = rows * gemm.k * size / c["SPLITS"]  # bytes of the large matrix that a block reads
    asked = alive * c["WARPS_R"] * c["WARPS_K"] * 32 * _loads(side, c, size) * 16  # bytes
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes per microsecond
    stream = rounds * share * (gpu.multiprocessors / (bandwidth * _READ) + _LATENCY / asked)
    thin = rounds * gpu.multiprocessors * side.thin * gemm.k / c["SPLITS"] * size / (bandwidth * _THIN)
    row = (gemm.k if side.large_along else side.large) * size
    clocks = _LOAD + _PART * (parts_of(row) - 1) + _EXCHANGE * (not side.large_along and size < 4)
    clocks += side.padded * (_MULTIPLY if side.plain else _PRODUCT)
    single = 0.0 if side.thin_along else _SINGLE_COPY if size == 4 else _SINGLE
    busy = rounds * (share / 512 * clocks + side.thin * gemm.k / c["SPLITS"] / 32 * single) / _CLOCK
    first = c["CHUNK"] * c["UNROLL"] * c["WARPS_K"] * BLOCK_BYTES * side.padded * 1e-3 / _FIRST
    whole: float = LAUNCH + first + stream + thin + busy + _LATE * (ceil(rounds / c["MIN_BLOCKS"]) - 1)
    if c["SPLITS"] > 1:  # partial sums are written and read
        left = c["SPLITS"] * rows * side.padded * 4e-3
        whole += _PARTS + 2e3 * left * blocks / c["SPLITS"] / (bandwidth * _LEFT) + left / _ADDED
    return whole * 1e-6


def _loads(side: Sides, c: Mapping[str, Any], size: int) -> int:
    return int(c["UNROLL"] * (c["TILES"] * 2 if side.large_along else 4 * (4 // size)))


def _chunk(side: Sides, rounds: int, round_bytes: int) -> int:
    """All of a block's K if that is small, else a tenth of a multiprocessor's shared memory."""
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n == 1 or n * side.padded * round_bytes <= 24 << 10]
    return next((n for n in sizes if n >= rounds), sizes[-1])


def _resident(gemm: Gemm, gpu: Gpu, c: dict[str, Any]) -> int:
    side, size = sides(gemm), dtype(gemm.a).bytes
    threads = c["WARPS_R"] * c["WARPS_K"] * 32
    sums = c["TILES"] * (2 * side.padded if side.plain else side.padded // 2)
    needed = registers(gemm, gpu, sums, _loads(side, c, size) * 4)
    rows = c["WARPS_R"] * c["TILES"] * 16
    added = c["WARPS_K"] * (side.padded * (rows + 4) if side.thin_m else rows * (side.padded + 8)) * 4
    line = c["CHUNK"] * c["UNROLL"] * c["WARPS_K"] * BLOCK_BYTES + 64
    shared = max(2 * side.padded * line, added) + gpu.shared_reserved
    most = min(
        gpu.registers_per_sm // (min(needed, 255) * threads), gpu.threads_per_sm // threads, gpu.shared_per_sm // shared
    )
    return max(n for n in (1, 2, 3, 4) if n <= max(1, most))
