"""GEMM on tensor cores by warp-wide products, sm_80 and later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, NamedTuple

from deepgen.kernels.gemm import beyond, remembered
from deepgen.kernels.gemm.mma_gemm import formats
from deepgen.kernels.gemm.mma_gemm.formats import STEP_BYTES, WIDEST, aligned_bytes, widened
from deepgen.kernels.gemm.mma_gemm.space import RESERVED, along_k, fixups, lower, mma_space, plan, spread
from deepgen.kernels.shared import gpu_kernel, served
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cuda, Gpu, Target
from deepgen.vocabulary import Kernel, dtype

_OWN = ("gemm_mma.cu", "problem.h", "operands.h", "share.h", "dialect_mma.h", "work.h")


class MmaGemm:
    """Products by warps, matrix loads, prefetched copies: f16, bf16, tf32, i8, 8-bit floats; all layouts."""

    name = "mma_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return formats.refused(operator, target)

    def space(self, operator: Operator, target: Target) -> Space:
        return mma_space(self.name, *served(operator, target, Gemm, Cuda))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, Cuda)
        lowered, files = lower(gemm, config), formats.result_sources(gemm, __name__, _OWN)
        return gpu_kernel(self.name, "cuda", files, lowered.macros, plan(gemm, config, lowered))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*served(operator, target, Gemm, Cuda))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return seconds(*served(operator, target, Gemm, Cuda), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6


class _MmaTile(NamedTuple):
    bm: int
    bn: int
    wm: int
    wn: int
    warps_k: int = 1


_TILES = (
    _MmaTile(128, 256, 64, 64), _MmaTile(256, 128, 64, 64), _MmaTile(128, 128, 64, 64), _MmaTile(128, 128, 64, 32),
    _MmaTile(128, 64, 64, 32), _MmaTile(64, 128, 32, 64), _MmaTile(64, 64, 32, 32), _MmaTile(64, 64, 32, 32, 2),
    _MmaTile(64, 32, 32, 32), _MmaTile(32, 64, 32, 32), _MmaTile(32, 64, 32, 32, 2), _MmaTile(32, 32, 32, 32),
    _MmaTile(32, 32, 32, 32, 2),
    _MmaTile(16, 64, 16, 32), _MmaTile(16, 64, 16, 32, 2), _MmaTile(16, 64, 16, 32, 4), _MmaTile(16, 32, 16, 32),
    _MmaTile(16, 32, 16, 32, 4), _MmaTile(64, 16, 32, 16), _MmaTile(64, 16, 32, 16, 2), _MmaTile(16, 16, 16, 16),
    _MmaTile(16, 128, 16, 32), _MmaTile(16, 256, 16, 64), _MmaTile(32, 256, 32, 64), _MmaTile(128, 16, 32, 16),
    _MmaTile(256, 16, 64, 16), _MmaTile(256, 32, 64, 32), _MmaTile(64, 64, 32, 64, 2),
    # Lines of an operand that is contiguous along rows are at least 128 bytes long: many elements in 8-bit formats.
    _MmaTile(128, 32, 32, 32), _MmaTile(32, 128, 32, 32), _MmaTile(128, 128, 32, 64),
)  # fmt: skip


@remembered
def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest config by the model that the space admits."""
    space = mma_space("defaults", gemm, gpu)
    ranked = sorted(candidates(gemm, gpu), key=lambda config: seconds(gemm, gpu, config))
    return next(config for config in ranked if not space.explain(config))


def candidates(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    size, allowed = dtype(gemm.a).bytes, fixups(gemm, gpu)
    for tile in _TILES:
        if tile.bm >= max(2 * gemm.m, 33) or tile.bn >= max(2 * gemm.n, 33):
            continue
        tiles = ceil(gemm.m / tile.bm) * ceil(gemm.n / tile.bn) * gemm.batch
        sums, wide = tile.wm * tile.wn, widened(gemm, gpu)
        if sums >= 4096 and size == 1 and _spread(gemm):
            continue
        for bk in (128 // size, 64 // size):
            if wide and sums * (bk * size // STEP_BYTES) > 4096:  # the compiler converts a tile's whole K at once
                continue
            for stages in (4, 3, 2) if _copied_in_parts(gemm) else (5, 4, 3, 2):
                if stages > 2 and (stages - 1) * bk >= gemm.k:
                    continue
                base = config(gemm, gpu, tile, bk, stages)
                yield base
                blocks = gpu.multiprocessors * min(2, base["MIN_BLOCKS"])
                # The bookkeeping of stream-K leaves too few registers for more.
                if "stream" in allowed and sums <= (1024 if wide else 2048):
                    yield {**base, "FIXUP": "stream", "BLOCKS": blocks}
                for splits in (2, 3, 4, 6, 8, 16, 33, 66) if "last" in allowed else ():
                    if tiles * splits <= 4 * gpu.multiprocessors and splits * bk <= gemm.k:
                        # A single block that adds up many parts takes longer than a second step.
                        yield {**base, "FIXUP": "last" if splits <= 8 else "step", "SPLITS": splits}


def config(gemm: Gemm, gpu: Gpu, tile: _MmaTile, bk: int, stages: int) -> dict[str, Any]:
    size = dtype(gemm.a).bytes
    threads = tile.bm // tile.wm * (tile.bn // tile.wn) * tile.warps_k * 32
    wide = widened(gemm, gpu)
    room = not wide and (tile.wm * tile.wn < 4096 or _plain(gemm))
    ahead = 2 if room and bk * size // STEP_BYTES % (2 * tile.warps_k) == 0 else 1
    more = 255 if wide else 48 if _spread(gemm) else 16  # the compiler must not spill
    registers = tile.wm * tile.wn // 32 + ahead * (tile.wm + tile.wn) // 4 + RESERVED + more
    shared = (tile.bm + tile.bn) * bk * size * stages + gpu.shared_reserved
    resident = min(
        gpu.registers_per_sm // (min(registers, 255) * threads),
        gpu.threads_per_sm // threads,
        gpu.shared_per_sm // shared,
    )
    return {
        "BM": tile.bm, "BN": tile.bn, "BK": bk, "WM": tile.wm, "WN": tile.wn, "WARPS_K": tile.warps_k,
        "FRAGMENTS": ahead, "STAGES": stages, "MIN_BLOCKS": max(n for n in (1, 2, 3, 4) if n <= max(1, resident)),
        "WIDE": next(w for w in (4, 2, 1) if tile.wn % (8 * w) == 0) if along_k(gemm, "B") else 1,
        "MAPPING": 8, "FIXUP": "none", "GUARD": "sizes",
    }  # fmt: skip


def _copied_in_parts(gemm: Gemm) -> bool:
    """Whether copies are shorter than 16 bytes. Five stages of these took a fifth longer than four on an H200."""
    return min(aligned_bytes(gemm, "A"), aligned_bytes(gemm, "B")) < WIDEST


def _plain(gemm: Gemm) -> bool:
    """Whether fragments are loaded without transposing."""
    return dtype(gemm.a).bytes > 1 and along_k(gemm, "A") and along_k(gemm, "B")


def _spread(gemm: Gemm) -> bool:
    return spread(gemm, "A") or spread(gemm, "B")


# Microseconds, unless noted otherwise. Fitted together to timings on an H200; see docs/kernels/mma_gemm.md.
LAUNCH, _SPREAD = 3.93, 0.972  # of the kernel; additional if all multiprocessors take part
_AGAIN = 0.853  # until a waiting block has its first tiles
_LATENCY, _BARRIER = 0.237, 0.0855  # latency of a tile of K, divided by the stages; additional cost of each
_CLOCK = 1750.0  # clocks per microsecond
# Clocks of a multiprocessor: 128 bytes of a fragment, the factor if it is spread, a 16-byte copy, each further part.
_FRAGMENT, _SPREAD_OUT, _COPY, _PART = 0.127, 2.2, 0.0124, 0.28
_ROUND_TRIP = 0.308  # of parts of fewer than four bytes, which cannot be copied asynchronously
_RATE, _OTHER_RATE = 0.5, 0.9  # share of the peak that warp-wide products reach on a Hopper and on others
_LOADED, _PRODUCT = 27.6, 3.25  # clocks of one warp alone: until it has a fragment, and a product of 16 x 8
_SECTOR = 1.35  # clocks per 32 bytes of C that a store touches
_READ, _CACHE, _WRITTEN, _IN_VAIN = 0.714, 1.2, 1.04, 0.883  # of memory's rate; the last: of bytes touched in vain
_PARTS, _ADDED = 2.23, 73.4  # parts of K added up by the last block: fixed time, and kB per microsecond
_SECOND, _STREAM = 3.47, 3.98  # a second launch for adding up; blocks that share tiles
_SHARP = 6.3  # exponent for overlapping times: the higher, the less the shorter ones add to the longest
_MORE_REGISTERS = 16  # of a thread, in addition to those that the space counts


def seconds(gemm: Gemm, gpu: Gpu, c: Mapping[str, Any]) -> float:
    """The seconds of a run with cold caches. Sizes may be symbolic (`libraries/c/models.py`)."""
    size, result = dtype(gemm.a).bytes, dtype(gemm.c).bytes
    bm, bn, bk, splits = c["BM"], c["BN"], c["BK"] * size, c.get("SPLITS", 1)
    tiles = ceil(gemm.m / bm) * ceil(gemm.n / bn) * gemm.batch
    all_steps, most = ceil(gemm.k * size / bk), _resident(gpu, c, size)
    blocks, steps = tiles * splits, ceil(all_steps / splits)
    if c["FIXUP"] == "stream":
        blocks, steps = c["BLOCKS"], ceil(all_steps * tiles / c["BLOCKS"])
    mine = ceil(blocks / gpu.multiprocessors)  # blocks of the busiest multiprocessor
    rounds = ceil(mine / most)
    step, wait = _step(gemm, gpu, c)
    sectors = _sectors(gemm, c)
    store = min(gemm.m, bm) * min(gemm.n, bn) * sectors * _SECTOR / _CLOCK
    own = mine * (steps * step + store) + rounds * steps * wait + (rounds - 1) * _AGAIN
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes per microsecond
    written = gemm.batch * gemm.m * gemm.n * result * (1 + _IN_VAIN * (sectors * 32 / result - 1))
    memory = (gemm.batch * gemm.k * size * (gemm.m + gemm.n) / _READ + written / _WRITTEN) / bandwidth
    cache = tiles * all_steps * bk * (bm + bn) / (bandwidth * _CACHE)
    whole: float = LAUNCH + _SPREAD * min(blocks / gpu.multiprocessors, 1.0)
    whole += (own**_SHARP + memory**_SHARP + cache**_SHARP) ** (1 / _SHARP)
    if c["FIXUP"] == "last":
        whole += _PARTS + splits * bm * bn * 4e-3 / _ADDED
    elif c["FIXUP"] == "step":
        whole += _SECOND + 2 * splits * gemm.m * gemm.n * gemm.batch * 4 / bandwidth
    elif c["FIXUP"] == "stream":
        whole += _STREAM + max(blocks / tiles, 1) * bm * bn * 4e-3 / _ADDED
    return whole * 1e-6


def _resident(gpu: Gpu, c: Mapping[str, Any], size: int) -> int:
    """Blocks that are resident on a multiprocessor."""
    threads = c["BM"] // c["WM"] * (c["BN"] // c["WN"]) * c["WARPS_K"] * 32
    held = c["WM"] * c["WN"] // 32 + c["FRAGMENTS"] * (c["WM"] + c["WN"]) // 4 + RESERVED + _MORE_REGISTERS
    registers = min(held, gpu.registers_per_sm // (threads * c["MIN_BLOCKS"]), gpu.registers_per_thread)
    shared = (c["BM"] + c["BN"]) * c["BK"] * size * c["STAGES"] + gpu.shared_reserved
    most = min(gpu.registers_per_sm // (registers * threads), gpu.threads_per_sm // threads, gpu.blocks_per_sm)
    return int(max(1, min(most, gpu.shared_per_sm // shared)))


def _step(gemm: Gemm, gpu: Gpu, c: Mapping[str, Any]) -> tuple[Any, Any]:
    """For a tile of K: the time a multiprocessor is busy, and the time one block waits."""
    bm, bn, bk = c["BM"], c["BN"], c["BK"] * dtype(gemm.a).bytes
    warps = bm // c["WM"] * (bn // c["WN"])
    peak = (gpu.peak("f16" if widened(gemm, gpu) else gemm.a) or 1e5) / gpu.multiprocessors * 1e3
    products = 2 * bm * bn * c["BK"] / (peak * (_RATE if gpu.has("wgmma") else _OTHER_RATE))
    fragments = warps * (c["WM"] + c["WN"]) * bk / 128 * _FRAGMENT * (_SPREAD_OUT if _spread(gemm) else 1.0)
    copies, trips = 0, 0
    for rows, lines, row in (
        (bm, gemm.m, gemm.k if gemm.layout[0] == "n" else gemm.m),
        (bn, gemm.n, gemm.k if gemm.layout[1] == "t" else gemm.n),
    ):
        row_bytes = row * dtype(gemm.a).bytes
        copies += rows * bk / 16 * (_COPY + _PART * (parts_of(row_bytes) - 1))
        trips += ceil(min(lines, rows) * bk / 16 / (warps * c["WARPS_K"] * 32)) * beyond(row_bytes, 4)
    # One warp's fragments and products of a tile, one after the other.
    alone = ceil(bk / STEP_BYTES / c["WARPS_K"]) * (_LOADED + _PRODUCT * c["WM"] * c["WN"] / 128) / _CLOCK
    wait = _LATENCY / (c["STAGES"] - 1) + _BARRIER + trips * _ROUND_TRIP + alone
    return products + (fragments + copies) / _CLOCK, wait


def _sectors(gemm: Gemm, c: Mapping[str, Any]) -> Any:
    """32-byte sectors that stores touch, per element of C: four lanes have neighbouring runs of a row."""
    size, run = dtype(gemm.c).bytes, 8 if spread(gemm, "B") else 2 * c["WIDE"]
    stored = min(run, WIDEST // size / parts_of(gemm.n * size))  # at once
    line = max(1.0, 4 * min(run * size, 32) / 32)
    return (line + beyond(gemm.n * size, 32)) / (4 * stored)


def parts_of(row: Any) -> Any:
    """The number of accesses needed for 16 bytes of such rows."""
    return 1 + beyond(row, 16) + 2 * beyond(row, 8) + 4 * beyond(row, 4) + 8 * beyond(row, 2)
