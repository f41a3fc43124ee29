"""Convolution on Hopper's tensor cores: `sm90_gemm` with rows that the copy engine gathers from the image.

As a matrix product, its rows are output pixels, its columns are filters, and K runs over the taps and, for each tap,
over whole lines of channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod
from typing import Any

from deepgen.kernels import FirstRanked, Rank
from deepgen.kernels.conv2d import PlainConv, plain_conv
from deepgen.kernels.gemm.sm90_gemm import STEP_BYTES, products_header, sm90_sources
from deepgen.kernels.gemm.sm90_gemm.defaults import KINDS, config, ways
from deepgen.kernels.gemm.sm90_gemm.lower import ATOM_BYTES, BY_LINES, SWIZZLES, lower, plan, rows_of_tile
from deepgen.kernels.gemm.sm90_gemm.model import LAUNCH, Gathered, seconds
from deepgen.kernels.gemm.sm90_gemm.operands import LINE_BYTES
from deepgen.kernels.gemm.sm90_gemm.space import sm90_space
from deepgen.kernels.shared import defines, of_several_kinds, source_text, sources
from deepgen.operators import Gemm, Operator, gemm
from deepgen.space import Expr, Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import (
    Arg,
    DescriptorArg,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Size,
    Source,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
    dtype,
)

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


_FORMATS = ("f16", "bf16")
# Steps of an epilogue under sm90_gemm's names: added tensors, then one of these activations.
_ADDED, _ACTIVATIONS = ("bias", "residual"), {"relu": "relu", "silu": "silu", "gelu_tanh": "gelu"}
_MOST_PIXELS = 2**31 - 2**10  # they are counted in 32 bits, and tiles extend beyond them
# Limits of a tensor map of windows: distance of a corner from the image's corner, offset, stride.
_CORNER, _OFFSET, _STEP = 128, 255, 8
_OTHERS = ("N", "CO")  # sizes that may differ from those a kernel is compiled for


@dataclass(frozen=True)
class ConvWindows(PlainConv):
    """Of the formats that this family supports."""

    named: tuple[tuple[str, int], ...]  # sizes that the kernel is compiled for, under the operator's names

    @property
    def gathered(self) -> bool:
        """Whether windows differ from the image's pixels in order."""
        return (self.kernel, self.strides, self.pads) != ((1, 1), (1, 1), (0, 0))

    @property
    def size(self) -> int:
        return dtype(self.dtype).bytes

    @property
    def lines(self) -> int:
        """Lines of channels per tap: beyond the last channel there are zeros."""
        return -(-self.ci * self.size // ATOM_BYTES)

    @property
    def last_products(self) -> int:
        """Products in a tap's last line, without those that would only multiply zeros."""
        return -(-(self.ci * self.size % ATOM_BYTES or ATOM_BYTES) // STEP_BYTES)

    @property
    def last_line(self) -> int:
        """Bytes of a tap's last line, rounded up to a swizzle width: lines that end beyond the channels take longer."""
        return min(line for line in SWIZZLES if line >= self.last_products * STEP_BYTES)


@lru_cache(64)  # called for every config that is ranked
def windows_of(operator: Operator) -> ConvWindows | str:
    """The convolution of an operator, or the reason why it is not supported."""
    plain = plain_conv(operator)
    if isinstance(plain, str):
        return plain
    if plain.dtype not in _FORMATS or plain.layout != "nhwc":
        return "it multiplies f16 and bf16 in layout nhwc"
    steps = plain.epilogue
    if any(step not in _ADDED for step in steps[:-1]) or any(step not in (*_ADDED, *_ACTIVATIONS) for step in steps):
        return f"epilogues add {' and '.join(_ADDED)}, and then have one of {', '.join(_ACTIVATIONS)}"
    windows = ConvWindows(
        **vars(plain), named=tuple((name, size) for name, size in operator.sizes().items() if name not in _OTHERS)
    )
    return _unable(windows) or windows


def _unable(own: ConvWindows) -> str | None:
    whole = LINE_BYTES // own.size
    if own.ci % whole or own.co % whole:
        return f"the copy engine takes channels in multiples of {whole}"
    if own.n * prod(own.out) > _MOST_PIXELS:
        return f"it has 32-bit indices: at most {_MOST_PIXELS} output pixels"
    if own.gathered and (
        max(own.reaches) > min(_OFFSET, _CORNER) or max(own.pads) >= _CORNER or max(own.strides) > _STEP
    ):
        return f"windows reach over at most {_CORNER} pixels, with pad < {_CORNER} and stride <= {_STEP}"
    return None


@lru_cache(64)
def as_gemm(own: ConvWindows) -> Gemm:
    k = prod(own.kernel) * own.lines * ATOM_BYTES // own.size
    pixels, last = own.n * prod(own.out), own.epilogue[-1:]
    activation = next((_ACTIVATIONS[step] for step in last if step in _ACTIVATIONS), "none")
    residual = 1.0 if "residual" in own.epilogue else 0.0
    plain = gemm(pixels, own.co, k, dtype=own.dtype, layout="nn", beta=residual)
    return replace(plain, bias="bias" in own.epilogue, activation=activation)


def conv_macros(own: ConvWindows) -> dict[str, int]:
    sides = {"OUT": own.out, "TAPS": own.kernel, "STRIDE": own.strides, "PAD": own.pads, "APART": own.dilations}
    return {
        **{f"{name}_{side}": size for name, pair in sides.items() for side, size in zip("HW", pair, strict=True)},
        "TAP_LINES": own.lines,
        "LAST_PRODUCTS": own.last_products,
        "LAST_LINE": own.last_line,
        "IM2COL": int(own.gathered),
    }


def conv_plan(own: ConvWindows, product: LaunchPlan) -> LaunchPlan:
    """The plan of a matrix product, with a convolution's tensors and sizes. N and CO are arguments."""
    rename = _Renamed(own)
    step = product.steps[0]
    args = [_argument(own, arg, rename) for arg in step.args]
    if own.last_line < ATOM_BYTES:
        args[2:2] = [_shorter(own, arg) for arg in args[:2]]
    grid = tuple(rename(size) for size in step.grid)
    asked = ((str(rename(expression)), words) for expression, words in product.requires)
    requires = [
        *((expression, words) for expression, words in asked if re.search(r"\b(N|CO)\b", expression)),
        *((f"{name} == {size}", f"{name} = {size}, for which it was made") for name, size in own.named),
        (f"CO % {LINE_BYTES // own.size} == 0", "filters that are multiples of 16 bytes"),
        (f"{rename.pixels} <= {_MOST_PIXELS}", f"at most {_MOST_PIXELS} output pixels"),
    ]
    return LaunchPlan(steps=(replace(step, args=tuple(args), grid=grid),), requires=tuple(requires))


class _Renamed:
    """Translates expressions over a product's sizes into expressions over a convolution's."""

    def __init__(self, own: ConvWindows) -> None:
        k = as_gemm(own).k
        self.pixels = f"(N * {prod(own.out)})"
        self._names = {
            "M": self.pixels, "N": "CO", "K": str(k), "batch": "1", "ldc": "CO", "ldb": "CO", "lda": str(k),
            "stride_a": "0", "stride_b": "0", "stride_c": "0",
        }  # fmt: skip

    def __call__(self, size: Size) -> Size:
        if isinstance(size, int):
            return size
        text = re.sub(r"\b[A-Za-z_]\w*\b", lambda word: self._names.get(word[0], word[0]), size)
        return int(text) if text.isdigit() else text


def _argument(own: ConvWindows, arg: Arg, rename: _Renamed) -> Arg:
    if isinstance(arg, DescriptorArg):
        return _MAPS[arg.tensor](own, arg.spec, rename)
    if isinstance(arg, TensorArg):  # the added tensor replaces C, which the copy engine writes
        return arg if arg.tensor == "bias" else TensorArg("residual" if "residual" in own.epilogue else "y")
    if isinstance(arg, WorkspaceArg):
        return replace(arg, bytes=rename(arg.bytes))
    assert isinstance(arg, ScalarArg)
    if arg.ctype == "f32":
        return replace(arg, value=1.0 if arg.value == "alpha" or "residual" in own.epilogue else 0.0)
    return arg if isinstance(arg.value, float) else replace(arg, value=rename(arg.value))


def _image_map(own: ConvWindows, spec: TensorMapSpec, rename: _Renamed) -> DescriptorArg:
    pixel = own.ci * own.size
    if not own.gathered:
        whole = replace(spec, sizes=(own.ci, rename.pixels, 1), strides=(pixel, f"{rename.pixels} * {pixel}"))
        return DescriptorArg("x", whole)
    (tall, wide), (down, across), (below, beside) = own.pads, own.strides, own.reaches
    windows = TensorMapSpec(
        spec.box[:2],
        spec.swizzle,
        spec.l2,
        sizes=(own.ci, own.w, own.h, "N"),
        strides=(pixel, own.w * pixel, own.h * own.w * pixel),
        lower=(-wide, -tall),
        upper=(wide - beside, tall - below),
        steps=(across, down),
    )
    return DescriptorArg("x", windows)


def _weight_map(own: ConvWindows, spec: TensorMapSpec, rename: _Renamed) -> DescriptorArg:
    """Filters are contiguous, then channels, then taps: no box extends into the next tap's."""
    sizes, strides = ("CO", own.ci, prod(own.kernel)), (f"CO * {own.size}", f"CO * {own.ci * own.size}")
    return DescriptorArg("weight", replace(spec, sizes=sizes, strides=strides))


def _result_map(own: ConvWindows, spec: TensorMapSpec, rename: _Renamed) -> DescriptorArg:
    sizes, strides = ("CO", rename.pixels, 1), (f"CO * {own.size}", f"CO * {rename.pixels} * {own.size}")
    return DescriptorArg("y", replace(spec, sizes=sizes, strides=strides))


def _shorter(own: ConvWindows, arg: Arg) -> DescriptorArg:
    """The same tensor in lines that are as long as a tap's last line."""
    assert isinstance(arg, DescriptorArg)
    channels = own.last_line // own.size
    if arg.tensor == "x":
        return replace(arg, spec=replace(arg.spec, box=(channels, *arg.spec.box[1:]), swizzle=str(own.last_line)))
    return replace(arg, spec=replace(arg.spec, box=(arg.spec.box[0], channels, *arg.spec.box[2:])))


_MAPS = {"A": _image_map, "B": _weight_map, "C": _result_map}
