"""Convolution on Hopper's tensor cores: `sm90_gemm` with rows that the copy engine gathers from the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import ceil, prod
from typing import Any

from deepgen.kernels.base import FirstRanked, Rank
from deepgen.kernels.conv2d.sm90_conv.lower import ConvWindows, as_gemm, conv_macros, conv_plan, windows_of
from deepgen.kernels.gemm.sm90_gemm import products_header, sm90_sources
from deepgen.kernels.gemm.sm90_gemm.defaults import KINDS, config, ways
from deepgen.kernels.gemm.sm90_gemm.lower import ATOM_BYTES, BY_LINES, lower, plan, rows_of_tile
from deepgen.kernels.gemm.sm90_gemm.model import LAUNCH, Gathered, seconds
from deepgen.kernels.gemm.sm90_gemm.space import sm90_space
from deepgen.kernels.shared import defines, of_several_kinds, source_text, sources
from deepgen.operators import Operator
from deepgen.space import Expr, Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel, Source

_CHANNELS = 64  # per line
_LONG, _DEEP = 8 * _CHANNELS, 4  # long K, which needs more stages: 73x73x80 to 192 took 62 us with 3, and 45 with 4
_ROUND = 0.6e-6  # additional seconds for a second and a third tile per multiprocessor: fitted to 29 layers on an H200
_SHARED = ("gemm_sm90.cu", "epilogue.h", "schedule.h", "numbers.h", "hopper.h")


class Sm90Conv(FirstRanked):
    """An implicit GEMM of pixels by filters over taps and channels, nhwc: f16 and bf16 on sm_90a."""

    name = "sm90_conv"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("wgmma", "tma", "setmaxnreg"):
            return "it supports cuda:sm_90a only"
        own = windows_of(operator)
        return own if isinstance(own, str) else None

    def rank(self, operator: Operator, target: Target) -> Rank:
        """With fewer channels than a line holds, kernels by rules are faster."""
        return Rank.SPECIALISED if _served(operator, target)[0].ci >= _CHANNELS else Rank.SURPASSED

    def space(self, operator: Operator, target: Target) -> Space:
        own, gpu = _served(operator, target)
        space = sm90_space(self.name, as_gemm(own), gpu)
        if "residual" in own.epilogue:  # its pointer replaces C's, to which other modes store
            store, fixup = (Expr("knob", (), name) for name in ("STORE", "FIXUP"))
            own_way = ~store.isin(["straight", *BY_LINES]) & (fixup == "none")
            space.require(own_way, "the added tensor is not the output")
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        own, gpu = _served(operator, target)
        gemm = as_gemm(own)
        lowered = lower(gemm, config)
        lines = ("store_lines.h",) if config["STORE"] in BY_LINES else ()
        files = (
            *sm90_sources((*_SHARED, *lines), {"AHEAD": config.get("AHEAD", False)}),
            Source("products.h", products_header(gemm, config["BN"])),
            Source("producers.h", source_text(__name__, "windows.h")),
            *sources(__name__, ("im2col.h",)),
        )
        macros = defines({**lowered.macros, **conv_macros(own)})
        launch = conv_plan(own, plan(gemm, config, lowered, gpu.multiprocessors))
        return Kernel(self.name, "cuda", files, ("-std=c++17", *macros), launch)

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        return of_several_kinds(_timed(*_served(operator, target)), self.space(operator, target), KINDS)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return _seconds(*_served(operator, target), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6


def _served(operator: Operator, target: Target) -> tuple[ConvWindows, Cuda]:
    own = windows_of(operator)
    assert isinstance(own, ConvWindows) and isinstance(target, Cuda), "ask refuses() first"
    return own, target


@lru_cache(2)
def _timed(own: ConvWindows, gpu: Cuda) -> list[tuple[float, dict[str, Any]]]:
    """Seconds and configs, the fastest by the model first; the space may not admit all of them."""
    gemm = as_gemm(own)
    configs = (config(gemm, gpu, way) for way in ways(gemm, gpu))
    # A kernel is compiled for its image anyway, and windows are read again for every tap: with streaming cache hints
    # they would come from memory again.
    more = {"FIXED": True, **({"CACHE": "none"} if own.gathered else {})}
    kept = [{**one, **more} for one in configs if one is not None]
    if own.last_line < ATOM_BYTES:  # stages of two lines, one of them shorter, were never timed
        kept = [one for one in kept if one["ATOMS"] == 1]
    if own.gathered and gemm.k >= _LONG:
        kept = [one for one in kept if one["STAGES"] >= _DEEP] or kept
    return sorted(((_seconds(own, gpu, one), one) for one in kept), key=lambda row: row[0])


def _seconds(own: ConvWindows, gpu: Cuda, config: Mapping[str, Any]) -> float:
    # With a stride longer than the filter, not all of an image is read.
    sides = zip((own.h, own.w), own.out, own.kernel, strict=True)
    pixels = own.n * prod(min(size, outputs * taps) for size, outputs, taps in sides)
    products = 1 - (4 - own.last_products) / (4 * own.lines)
    gathered = Gathered(pixels * own.ci * own.size, own.ci * own.size, products)
    gemm = as_gemm(own)
    tiles: int = ceil(gemm.m / rows_of_tile(config)) * ceil(gemm.n / config["BN"])
    return seconds(gemm, gpu, config, gathered) + _ROUND * min(ceil(tiles / gpu.multiprocessors) - 1, 2)
