"""The supported convolutions as numbers: `conv2d`, and `dilated_conv2d` with its epilogues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepgen.kernels.conv2d import unknown_step
from deepgen.operators import Conv2d, Operator
from deepgen.operators.named.convolutions import DilatedConv2d
from deepgen.operators.words import NONE, of_sides
from deepgen.targets import Cuda, Target

FORMATS = {"f16": "mma_f16", "bf16": "mma_bf16"}  # with the features that a chip must have
_MOST_CHANNELS = 16
_MOST_STEPS = 64  # along K; they are unrolled
MOST_FILTERS = 2**20  # their elements are counted in 32 bits
_CHUNK = 8  # elements in 16 bytes
_EACH = ("k", "stride", "pad", "dilation")


@dataclass(frozen=True)
class FewChannels:
    """A convolution: the sizes a kernel is compiled for, and those it was chosen for."""

    n: int
    h: int
    w: int
    ci: int
    co: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]
    layout: str
    dtype: str
    epilogue: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]  # of k, stride, pad and dilation, by dimension; empty if there is none

    @property
    def last(self) -> bool:
        return self.layout == "nhwc"

    @property
    def out(self) -> tuple[int, int]:
        every = zip((self.h, self.w), self.pads, self.kernel, self.dilations, self.strides, strict=True)
        height, width = ((size + 2 * pad - (k - 1) * apart - 1) // stride + 1 for size, pad, k, apart, stride in every)
        return height, width

    @property
    def run(self) -> int:
        """Contiguous elements of the result."""
        return self.co if self.last else self.out[1]

    def row_chunks(self, stored: int) -> int:
        """Chunks in a row of the filter if each pixel has `stored` elements."""
        return -(-self.kernel[1] * stored // _CHUNK)

    def steps(self, stored: int) -> int:
        """Products along K."""
        return -(-self.kernel[0] * self.row_chunks(stored) // 2)

    def stored(self) -> list[int]:
        """The possible elements per pixel in shared memory: windows start at whole words, or at multiples of 16
        bytes."""
        stride = self.strides[1]
        words = next(n for n in range(self.ci, 2 * self.ci + 2) if n * stride % 2 == 0)
        plain = next(n for n in (2, 4, 8, 16) if n >= self.ci)
        whole = next(n for n in range(self.ci, 2 * self.ci + 16) if n * stride % _CHUNK == 0)
        return [n for n in dict.fromkeys((words, plain, whole)) if n == words or self.steps(n) <= _MOST_STEPS]

    def out_text(self, side: int) -> str:
        """The result's height or width as an expression over the operator's sizes."""
        reach = (self.kernel[side] - 1) * self.dilations[side] + 1
        return f"({'HW'[side]} + 2 * {self.names[2][side]} - {reach}) // {self.strides[side]} + 1"

    def fixed(self) -> tuple[tuple[str, str], ...]:
        """The sizes that a kernel is compiled for."""
        sizes = {"CI": self.ci}
        for names, values in zip(self.names, (self.kernel, self.strides, self.pads, self.dilations), strict=True):
            if names and names is not self.names[2]:
                sizes |= dict(zip(names, values, strict=True))
        return tuple((f"{name} == {size}", f"{name}={size}") for name, size in sizes.items())


def convolution(operator: Operator) -> FewChannels | None:
    """The numbers of a two-dimensional convolution with one group and unpacked weights; None for others."""
    if isinstance(operator, Conv2d):
        values: dict[str, Any] = {**operator.parameters(), "dilation": 1, "epilogue": NONE, "groups": 1}
    elif isinstance(operator, DilatedConv2d):
        values = dict(operator.parameters())
    else:
        return None
    if values["groups"] != 1 or values["weight_layout"] != NONE:
        return None
    words, own = (
        {word.name: word for word in operator.words},
        operator.parameters(),
    )
    names = (of_sides(words[name], values[name]) if name in own else {} for name in _EACH)
    kernel, strides, pads, dilations = (
        value if isinstance(value := values[n], tuple) else (value, value) for n in _EACH
    )
    steps = () if values["epilogue"] == NONE else tuple(values["epilogue"].split(","))
    n, h, w, ci, co = (values[name] for name in ("N", "H", "W", "CI", "CO"))
    return FewChannels(
        n, h, w, ci, co, kernel, strides, pads, dilations, values["layout"], values["dtype"], steps,
        tuple((*own, *own)[:2] for own in names),
    )  # fmt: skip


def refused(operator: Operator, target: Target) -> str | None:
    """The reason why the family does not support this, if there is one."""
    if not isinstance(target, Cuda) or not target.has("ldmatrix", "cp_async"):
        return "it supports NVIDIA GPUs from sm_80 on"
    conv = convolution(operator)
    if conv is None:
        return "it supports convolutions in two dimensions, of one group, with weights that are not packed"
    if conv.dtype not in FORMATS or not target.has(FORMATS[conv.dtype]):
        return "it multiplies f16 and bf16"
    if (unknown := unknown_step(conv.epilogue)) is not None:
        return unknown
    if conv.ci > _MOST_CHANNELS:
        return f"it supports at most {_MOST_CHANNELS} input channels"
    if conv.dilations[1] > 1 and conv.kernel[1] > 1:
        return "the columns of its filters must be contiguous"
    if conv.co >= MOST_FILTERS:
        return f"it supports fewer than {MOST_FILTERS} filters"
    if max(conv.n * conv.out[0] * conv.out[1], conv.h * conv.w * conv.ci) >= 2**30:
        return "it has 32-bit indices: at most 2**30 output pixels, and numbers of an image"
    if min(map(conv.steps, conv.stored())) > _MOST_STEPS:
        return f"its filters have at most {16 * _MOST_STEPS} numbers of an output channel"
    return None
