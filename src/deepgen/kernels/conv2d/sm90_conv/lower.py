"""A convolution as a matrix product: its sizes, the macros of its kernel, and its launch.

Rows are output pixels, columns are filters, and K runs over the taps and, for each tap, over whole lines of channels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from deepgen.kernels.conv2d import PlainConv, plain_conv
from deepgen.kernels.gemm.sm90_gemm import STEP_BYTES
from deepgen.kernels.gemm.sm90_gemm.lower import ATOM_BYTES, SWIZZLES
from deepgen.kernels.gemm.sm90_gemm.realign import LINE_BYTES
from deepgen.operators import Gemm, Operator, gemm
from deepgen.vocabulary import (
    Arg,
    DescriptorArg,
    LaunchPlan,
    ScalarArg,
    Size,
    TensorArg,
    TensorMapSpec,
    WorkspaceArg,
    dtype,
)

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
