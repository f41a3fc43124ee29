"""Grouped GEMM on Hopper's tensor cores: `sm90_gemm`, whose blocks take tiles of experts' rows by the offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import exp, log
from typing import Any

from deepgen.kernels import FirstRanked
from deepgen.kernels.gemm.sm90_gemm import Sm90Gemm, products_header, sm90_sources
from deepgen.kernels.gemm.sm90_gemm.defaults import KINDS, config, ways
from deepgen.kernels.gemm.sm90_gemm.lower import BY_LINES, LoweredSm90, lower, plan, rows_of_tile
from deepgen.kernels.gemm.sm90_gemm.model import LAUNCH, Gathered, seconds
from deepgen.kernels.gemm.sm90_gemm.operands import realigned
from deepgen.kernels.gemm.sm90_gemm.space import sm90_space
from deepgen.kernels.grouped_gemm import as_batch
from deepgen.kernels.shared import defines, of_several_kinds, served, source_text, sources
from deepgen.operators import Operator
from deepgen.operators.grouped_gemm import GroupedGemm
from deepgen.operators.grouped_reference import ends
from deepgen.space import Space
from deepgen.space.expr import points
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Arg, DescriptorArg, Kernel, LaunchPlan, Source, TensorArg, dtype

_SHARED = ("gemm_sm90.cu", "producers.h", "epilogue.h", "numbers.h", "hopper.h")
# What all configs have in common: blocks that stay, whole tiles, nothing compiled for a number of rows.
_FIXED: dict[str, Any] = {
    "FIXUP": "none",
    "PERSISTENT": True,
    "CLUSTER_M": 1,
    "CLUSTER_N": 1,
    "HILBERT": False,
    "FIXED": False,
}
_OFFSETS = -10  # the place of a plain product's counters among its arguments
# Ways to divide the rows, by name and number, over which the model's times are averaged: mostly about evenly.
_EVEN = (("normal", 32),)
_DIVIDED = (*_EVEN, ("exact", 16), ("special", 16), ("large", 8), ("zeros", 4))
# Warpgroups that take turns, relative to the model: 2% faster over others with tiles of the same size, in 7 pairs.
_ALTERNATING = 0.98
_MOST_ROWS = 256  # of a box for the copy engine

_Divided = tuple[tuple[str, int], ...]


class Sm90Grouped(FirstRanked):
    """Copy engine, barriers, warpgroup products, blocks that stay: f16, bf16, tf32 and 8-bit floats on sm_90a."""

    name = "sm90_grouped"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(operator, GroupedGemm):
            return "it supports grouped_gemm only"
        product = as_batch(operator)
        if (reason := Sm90Gemm().refuses(product, target)) is not None:
            return reason
        return "it supports rows of A and B of whole 16 bytes" if realigned(product) else None

    def space(self, operator: Operator, target: Target) -> Space:
        grouped, gpu = served(operator, target, GroupedGemm, Cuda)
        space = sm90_space(self.name, as_batch(grouped), gpu)
        values = {knob.name: knob.values for knob in space.knobs}
        kept: dict[str, list[Any]] = {"STORE": [way for way in values["STORE"] if way not in ("reuse", "sectors")]}
        kept |= {"STAGES": [count for count in values["STAGES"] if count != 1]}  # sums may be longer than here
        if grouped.gradient:  # warpgroups can take turns only over tiles of as many steps
            kept["SCHEDULE"] = ["cooperative"]
        space = space.restrict({**_FIXED, **kept})
        low = [(c, t) for c in (1, 2, 3) for t in (1, 2) if 64 * c * t <= _MOST_ROWS]
        space.require(points(["CONSUMERS", "TILES_M"], low), f"whole tiles of A have at most {_MOST_ROWS} rows")
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        grouped, gpu = served(operator, target, GroupedGemm, Cuda)
        product = as_batch(grouped)
        lowered = lower(product, config)
        own: dict[str, int | str] = {
            "A_ROWS": lowered.macros["BM"],  # others' rows follow an expert's
            "SHARED_A": 1,
            "GRADIENT": int(grouped.gradient),
            "SCALE_STRIDE": {"expert": "1", "column": "p.n"}.get(grouped.scales, "0"),
        }
        lowered = replace(lowered, macros={**lowered.macros, **own})
        lines = ("store_lines.h",) if config["STORE"] in BY_LINES else ()
        files = (
            *sm90_sources((*_SHARED, *lines), {"GROUPED": True, "AHEAD": config.get("AHEAD", False)}),
            Source("products.h", products_header(product, config["BN"])),
            Source("schedule.h", source_text(__name__, "grouped_schedule.h")),
            *sources(__name__, ("expert_rows.h",)),
        )
        launch = _plan(grouped, gpu, config, lowered)
        return Kernel(self.name, "cuda", files, ("-std=c++17", *defines(lowered.macros)), launch)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        grouped, gpu = served(operator, target, GroupedGemm, Cuda)
        return of_several_kinds(_timed(grouped, gpu), self.space(grouped, gpu), KINDS)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return _seconds(*served(operator, target, GroupedGemm, Cuda), config, _EVEN)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6


@lru_cache(2)
def _timed(grouped: GroupedGemm, gpu: Cuda) -> list[tuple[float, dict[str, Any]]]:
    """Seconds and configs, the fastest by the model first; the space may not admit all of them."""
    product = as_batch(grouped)
    many = replace(product, batch=product.batch + gpu.multiprocessors)  # tiles for which blocks stay
    alone = (way for way in ways(product, gpu) if way.blocks == 1 and way.cluster == (1, 1))
    configs = (config(many, gpu, way) for way in alone)
    kept = [{**one, **_FIXED} for one in configs if one is not None and one["FIXUP"] == "none"]
    return sorted(((_seconds(grouped, gpu, one, _DIVIDED), one) for one in kept), key=lambda row: row[0])


def _seconds(grouped: GroupedGemm, gpu: Cuda, config: Mapping[str, Any], divided: _Divided) -> float:
    """The geometric mean over ways to divide the rows. Tiles are counted for each: their average may just fill all
    multiprocessors where half of the ways need a second round."""
    if grouped.gradient:
        return seconds(as_batch(grouped), gpu, config)
    height, logs = rows_of_tile(config), 0.0
    counts = Counter(
        (sum(-(-rows // height) for rows in one), sum(rows > 0 for rows in one)) for one in _divisions(grouped, divided)
    )
    for (tiles, experts), often in counts.items():
        logs += often * log(_of_tiles(grouped, gpu, config, tiles * height, experts))
    return exp(logs / counts.total()) * (_ALTERNATING if config["SCHEDULE"] == "ping-pong" else 1.0)


def _of_tiles(grouped: GroupedGemm, gpu: Cuda, config: Mapping[str, Any], rows: int, experts: int) -> float:
    """One product of the rows of all tiles, which reads the matrix of every expert that has rows. Warpgroups without
    rows pass by, but the slowest block rarely has one."""
    row = grouped.k * dtype(grouped.a).bytes
    read = (grouped.m + (experts - 1) * grouped.n) * row
    return seconds(grouped.product(rows, grouped.k), gpu, config, Gathered(read, row, 1.0))


@lru_cache(4)
def _divisions(grouped: GroupedGemm, divided: _Divided) -> list[list[int]]:
    """Each expert's rows, in drawn ways."""
    drawn = [(probe, seed) for probe, many in divided for seed in range(many)]
    every = (ends(grouped.experts, grouped.m, seed, probe) for probe, seed in drawn)
    return [[end - begin for begin, end in pairwise((0, *one))] for one in every]


def _plan(grouped: GroupedGemm, gpu: Cuda, config: Mapping[str, Any], lowered: LoweredSm90) -> LaunchPlan:
    """A plain product's, with the offsets among its arguments and as many blocks as there may be tiles."""
    whole = plan(as_batch(grouped), config, lowered, gpu.multiprocessors)
    (step,) = whole.steps
    args: list[Arg] = [_argument(grouped, arg) for arg in step.args]
    args[_OFFSETS] = TensorArg("offsets")
    bm = lowered.macros["BM"]
    rows = f"ceil_div(M, {bm}) * E" if grouped.gradient else f"((M + E * {int(bm) - 1}) // {bm})"
    blocks = f"min({rows} * ceil_div(N, {config['BN']}), {gpu.multiprocessors * config['MIN_BLOCKS']})"
    return replace(whole, steps=(replace(step, args=tuple(args), grid=(blocks, 1, 1)),))


def _argument(grouped: GroupedGemm, arg: Arg) -> Arg:
    """All experts' rows are one matrix."""
    if not isinstance(arg, DescriptorArg) or arg.tensor not in ("AB" if grouped.gradient else "AC"):
        return arg
    assert arg.spec.sizes is not None and arg.spec.strides is not None
    letter, size = arg.tensor.lower(), dtype(grouped.c if arg.tensor == "C" else grouped.a).bytes
    rows = "K" if grouped.gradient else "M"
    strides = (arg.spec.strides[0], f"{rows} * ld{letter} * {size}")
    return replace(arg, spec=replace(arg.spec, sizes=(*arg.spec.sizes[:2], 1), strides=strides))
