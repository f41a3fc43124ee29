"""GEMM on the plain arithmetic units of GPUs, written once for CUDA and HIP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd, inf
from typing import Any, NamedTuple

from deepgen.kernels.gemm import remembered
from deepgen.kernels.gemm.simt_gemm.lower import group_k, implied, lower, plan
from deepgen.kernels.gemm.simt_gemm.model import (
    Config,
    bytes_of,
    least_seconds,
    register_limit,
    registers,
    resident,
    seconds,
)
from deepgen.kernels.gemm.simt_gemm.space import (
    WIDEST,
    BandedGemm,
    GatheredGemm,
    least_tile,
    load_widths,
    product_of,
    simt_space,
    splits_of_k,
    store_widths,
    tile_sizes,
)
from deepgen.kernels.shared import Kinds, gpu_kernel, language_of, of_several_kinds, resolved, sources
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Gpu, Hip, Target
from deepgen.vocabulary import Kernel, Source

_SHARED = ("gemm_simt.cu", "tiles.h", "work.h", "epilogue.h", "schedule.h")
_OWN = ("operands.h", "entry.h")
_SERVED = {  # (A and B, sums): C
    ("f32", "f32"): ("f32",),
    ("f64", "f64"): ("f64",),
    ("tf32", "f32"): ("tf32", "f32"),  # stored and multiplied as f32 here
    ("f16", "f32"): ("f16", "f32"),
    ("bf16", "f32"): ("bf16", "f32"),
    ("i8", "i32"): ("i32",),
}


class SimtGemm:
    """Block, warp and thread tiles, staged copies, split-K and stream-K: any sizes, all layouts, CUDA and HIP."""

    name = "simt_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it supports GPUs only"
        product = product_of(operator)
        if product is None:
            return "it supports gemm, and expressions of a product of which a band of diagonals is kept"
        return self._unable(product)

    def _unable(self, operator: Gemm) -> str | None:
        if operator.a != operator.b or operator.c not in _SERVED.get((operator.a, operator.acc), ()):
            return "it computes f32, tf32 and f64, and f16, bf16 and i8 with wider sums"
        if operator.c == "i32" and not (operator.alpha.is_integer() and operator.beta.is_integer()):
            return "for integer types alpha and beta must be integers"
        if operator.bias or operator.activation != "none" or operator.scales != "none" or operator.epilogue:
            return "it has no bias, activation or scales yet"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return simt_space(self.name, *_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, gpu = _served(operator, target)
        lowered = lower(gemm, config, gpu.warp, dots(gpu))
        banded = isinstance(gemm, BandedGemm)
        files = source_files(__name__, _OWN, banded=banded)
        implications = () if banded else implied(gemm, config, lowered.macros)
        return gpu_kernel(self.name, language_of(gpu), files, lowered.macros, plan(gemm, config, lowered), implications)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*_served(operator, target))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        return various(*_served(operator, target))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return seconds(*_served(operator, target), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return least_seconds(*_served(operator, target))


def _served(operator: Operator, target: Target) -> tuple[Gemm, Gpu]:
    gemm = product_of(operator)
    assert gemm is not None and isinstance(target, Gpu), "ask refuses() first"
    return gemm, target


def source_files(package: str, own: Iterable[str], *, banded: bool) -> tuple[Source, ...]:
    """The main loop with these files of a package beside it, with what bands of diagonals need, or without."""
    files = (*sources(__name__, (*_SHARED, *(["band.h"] if banded else []))), *sources(package, own))
    return tuple(replace(file, text=resolved(file.text, {"BANDED": banded})) for file in files)


def dots(gpu: Gpu) -> dict[str, int]:
    """For each dtype, the number of products that one instruction adds up."""
    counts = {"i8": 4} if gpu.has("dp4a") or gpu.has("dot4") else {}
    return {**counts, "f16": 2} if gpu.has("dot2") else counts


_THREAD_TILES = ((2, 2), (4, 2), (2, 4), (4, 4), (8, 2), (8, 4), (4, 8), (8, 8), (12, 4), (12, 8), (16, 4), (16, 8))
_LANES = {32: (4, 8, 2, 16, 1), 64: (8, 4, 16, 2)}  # along M, the best first
_LANES_ODD = {32: (2, 4, 1, 8, 16), 64: (4, 8, 2, 16)}  # if rows of C are stored element by element
_LEAST_THREADS, _MOST_THREADS = 32, 512
_STEPS = (8, 16, 32, 64)  # of K per stage
_ROOM = 48 << 10  # bytes of shared memory for stages, so that several blocks run at once
_BLOCKS = (1, 2, 3, 4, 6, 8)  # per multiprocessor, for which the compiler is asked to leave room
_LEAST_PART, _MOST_ROUNDS = 32, 64
_LEAST_STREAM = 256  # steps of K; AMD's wavefronts were never timed
_DIVIDED = 60  # the best configs, which are also tried with other divisions of K
_UNROLLED, _UNROLLED_HIP = 1024, 512  # multiply-adds; clang loads the fragments of many steps ahead, and spills
_MOST_SUMS = {32: 128, 64: 64}  # of a thread
_SPARE = 16  # registers, so that the compiler does not spill

# The model predicts the order within a kind of configs better than the order between kinds.
_SAME_KIND = 1.03  # factor for each config already taken of a kind
_LIKELY = 1.5  # times the best: slower ones are not tried


class SimtTile(NamedTuple):
    """The parameters that determine a config."""

    bm: int
    bn: int
    tm: int
    tn: int
    lanes_m: int
    split_u: int
    bk: int
    stages: int  # of asynchronous copies; 0: through registers
    splits: int = 1
    stream: bool = False
    run: int = 1  # of B's rows in a thread, if rows of C are stored element by element

    def tiles(self, gemm: Gemm) -> int:
        return ceil(gemm.m / self.bm) * ceil(gemm.n / self.bn) * gemm.batch


@remembered
def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest config by the model that the space admits."""
    space = simt_space("defaults", gemm, gpu)
    return next(config for _, config in ranked(gemm, gpu) if not space.explain(config))


@lru_cache(2)
def ranked(gemm: Gemm, gpu: Gpu) -> list[tuple[float, dict[str, Any]]]:
    """Seconds and configs, the fastest by the model first; the space may not admit all of them."""
    timed = {way: _timed(gemm, gpu, way) for way in _ways(gemm, gpu)}
    for way in sorted(timed, key=lambda way: timed[way][0])[:_DIVIDED]:
        timed |= {other: _timed(gemm, gpu, other) for other in _divided(gemm, gpu, way) if other not in timed}
    return sorted(timed.values(), key=lambda row: row[0])


def _timed(gemm: Gemm, gpu: Gpu, way: SimtTile) -> tuple[float, dict[str, Any]]:
    config = _config(gemm, gpu, way)
    most = min(gpu.registers_per_thread - _SPARE * (1 + way.stream), register_limit(gpu, config))
    return seconds(gemm, gpu, config) if registers(gemm, config) <= most else inf, config


def various(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Configs that may be the fastest, starting with the default."""
    space = simt_space("defaults", gemm, gpu)
    return of_several_kinds(ranked(gemm, gpu), space, KINDS)


def _kind(c: Config) -> tuple[Any, ...]:
    return c["COPY"], c["SPLIT_U"] > 1, c["FIXUP"], c["BK"] * c["STAGES"] > 64


def _tile(c: Config) -> tuple[Any, ...]:
    return c["BM"], c["BN"]


KINDS = Kinds(_kind, _tile, _SAME_KIND, _LIKELY)


def _ways(gemm: Gemm, gpu: Gpu) -> Iterator[SimtTile]:
    copies = gpu.has("cp_async") and all(load_widths(gemm, side)[-1] * bytes_of(gemm)[0] >= 4 for side in "AB")
    deepest = next((bk for bk in _STEPS if bk >= gemm.k), _STEPS[-1])
    deep = max(1, gemm.k // _LEAST_PART)
    lanes = (_LANES if store_widths(gemm)[-1] > 1 else _LANES_ODD)[gpu.warp]
    least = least_tile(gemm)
    for bm in _sizes(gemm.m):
        for bn in _sizes(gemm.n):
            tiles = ceil(gemm.m / bm) * ceil(gemm.n / bn) * gemm.batch
            if tiles * deep < gpu.multiprocessors // 2 and max(bm, bn) > 16:
                continue  # smaller ones occupy more multiprocessors
            if tiles > _MOST_ROUNDS * gpu.multiprocessors and bm * bn < least:
                continue
            for tm, tn in _THREAD_TILES:
                lanes_m = next((n for n in lanes if bm % (n * tm) + bn % (gpu.warp // n * tn) == 0), 0)
                threads = bm // tm * (bn // tn)
                if lanes_m == 0 or tm * tn > _MOST_SUMS[gpu.warp] or threads > 256 or _uneven(tm, tn, bm * bn):
                    continue
                for split_u in (1, 2, 4, 8) if tiles < 2 * gpu.multiprocessors else (1,):
                    if 64 <= threads * split_u <= 512 or (split_u == 1 and threads == 32):
                        for bk in _STEPS:
                            if 8 * split_u <= bk <= deepest and bk <= 32 * split_u:
                                way = SimtTile(bm, bn, tm, tn, lanes_m, split_u, bk, 0)
                                yield from _copied(gemm, gpu, way, copies)


def _sizes(size: int) -> list[int]:
    """Tiles that are not powers of two are only worthwhile if they waste less."""
    all_sizes = tile_sizes(size)
    whole = [t for t in all_sizes if t & (t - 1) == 0]
    least = min(-(-size // t) * t for t in whole if t >= 32 or t == whole[-1])
    return [t for t in all_sizes if t in whole or -(-size // t) * t < least or size > 1024]


def _uneven(tm: int, tn: int, area: int) -> bool:
    """Whether a thread has too few or too many sums for the size of the tile."""
    sums = tm * tn
    return (
        sums > 16 if area <= 512 else not 8 <= sums <= 64 if area <= 2048 else sums < 16 if area <= 4096 else sums < 32
    )


def _copied(gemm: Gemm, gpu: Gpu, way: SimtTile, copies: bool) -> Iterator[SimtTile]:
    """With copies through registers, and asynchronous ones. With few tiles, parts of K fill two waves."""
    most = 2 * gpu.multiprocessors // way.tiles(gemm)
    way = way._replace(splits=max((n for n in _parts(gemm, gpu, way) if n <= most), default=1))
    yield way
    fit = _ROOM // ((way.bm + way.bn) * (way.bk + 4) * bytes_of(gemm)[0])
    if copies and fit >= 2:
        yield way._replace(stages=max(2, min(fit, 5, ceil(ceil(gemm.k / way.bk) / way.splits) + 1)))


def _divided(gemm: Gemm, gpu: Gpu, way: SimtTile) -> Iterator[SimtTile]:
    """The same with other numbers of parts of K, with tiles shared by blocks, or with longer runs of a thread."""
    able, tiles = _parts(gemm, gpu, way), way.tiles(gemm)
    if store_widths(gemm)[-1] == 1 and way.split_u == 1:  # wider fragments, for which stores touch more sectors
        yield from (way._replace(run=run) for run in (2, 4) if way.tn % run == 0 and run * bytes_of(gemm)[0] <= WIDEST)
    if tiles > gpu.multiprocessors and gemm.k >= _LEAST_STREAM and gpu.warp == 32:
        yield way._replace(stream=True)
    for most in (1, 2, 4, 8, *(blocks * gpu.multiprocessors // tiles for blocks in (1, 3, 4))):
        if (splits := max((n for n in able if n <= most), default=1)) != way.splits:
            yield way._replace(splits=splits)


def _parts(gemm: Gemm, gpu: Gpu, way: SimtTile) -> list[int]:
    if isinstance(gemm, GatheredGemm):
        return []  # no step adds them up
    few = way.tiles(gemm) * 2 <= 3 * gpu.multiprocessors and gemm.k >= 2 * _LEAST_PART
    return [n for n in splits_of_k(gemm, gpu) if n * way.bk <= gemm.k] if few else []


def _config(gemm: Gemm, gpu: Gpu, way: SimtTile) -> dict[str, Any]:
    """K is outermost in shared memory, which is the fastest to multiply; wide copies along K cannot transpose."""
    most, cuda = WIDEST // bytes_of(gemm)[0], not isinstance(gpu, Hip)
    along_k = {"A": gemm.layout[0] == "n", "B": gemm.layout[1] == "t"}
    rows = {"A": way.bm, "B": way.bn}
    loads = {side: gcd(load_widths(gemm, side)[-1], way.bk if along_k[side] else rows[side]) for side in "AB"}
    straight = way.split_u == 1
    widest = store_widths(gemm)[-1]
    # If rows of C are stored element by element, neighbouring threads store neighbouring elements.
    run = {"A": gcd(way.tm, min(4, most)), "B": way.run if straight and widest == 1 else gcd(way.tn, min(4, most))}
    config: dict[str, Any] = {
        "BM": way.bm, "BN": way.bn, "BK": way.bk, "TM": way.tm, "TN": way.tn,
        "LANES_M": way.lanes_m, "LANE_ORDER": int(way.lanes_m > 1), "SPLIT_U": way.split_u, "MIN_BLOCKS": 1,
        **{f"INNER_{side}": "k" if way.stages and along_k[side] and loads[side] > 1 else "row" for side in "AB"},
        "COPY": "async" if way.stages else "registers",
        "LOAD_CONTINUOUS": True, "STAGES": way.stages or 2, "PAD": most,
        **{f"LOAD_{side}": loads[side] for side in "AB"},
        **{f"THREAD_SCATTER_{side}": run[side] for side in "AB"},
        "WARP_SCATTER_A": "thread" if run["A"] == way.tm else "tile",
        "WARP_SCATTER_B": "thread" if run["B"] == way.tn else "tile",
        "STAGE_ROWS": 0 if straight else gcd(way.tm, 2), "REDUCE_CONTINUOUS": True,
        "STORE": gcd(widest, run["B"]) if straight else widest,
        "MAPPING": 8, "FIXUP": "stream" if way.stream else "none" if way.splits == 1 else "last", "GUARD": "sizes",
    }  # fmt: skip
    group = group_k(config, bytes_of(gemm)[0])
    groups = way.bk // (group * way.split_u)
    most_unrolled = _UNROLLED if cuda else _UNROLLED_HIP
    config["UNROLL"] = max(
        n for n in (1, 2, 4, 8, 16) if n == 1 or (n <= groups and n * group * way.tm * way.tn <= most_unrolled)
    )
    config["REG_PREFETCH"] = cuda and bytes_of(gemm)[2] == 4 and config["UNROLL"] > 1
    if cuda:  # AMD register files have a coarse granularity: asking for more wavefronts makes the compiler spill
        most = resident(gemm, gpu, config)
        config["MIN_BLOCKS"] = max(n for n in _BLOCKS if n <= most)
    if way.stream:
        return {**config, "BLOCKS": gpu.multiprocessors * min(config["MIN_BLOCKS"], 4)}
    return config if way.splits == 1 else {**config, "SPLITS": way.splits}
