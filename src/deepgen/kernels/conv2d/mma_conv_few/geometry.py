"""The supported convolutions as numbers: those of `conv2d`, and of `dilated_conv2d` with its epilogues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepgen.kernels.conv2d import unknown_step
from deepgen.operators import Conv2d, Operator
from deepgen.operators.named.convolutions import DilatedConv2d
from deepgen.operators.words import NONE, of_sides
from deepgen.targets import Cuda, Target

FORMATS = {"f16": "mma_f16", "bf16": "mma_bf16"}  # and what a chip must have for them
_MOST_CHANNELS = 16
_MOST_STEPS = 64  # of K, which are unrolled
MOST_FILTERS = 2**20  # whose numbers are counted in 32 bits
_CHUNK = 8  # numbers in 16 bytes
_EACH = ("k", "stride", "pad", "dilation")


@dataclass(frozen=True)
class FewChannels:
    """A convolution: what a kernel is compiled for, and the sizes that it was chosen for."""

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
    names: tuple[tuple[str, ...], ...]  # of k, stride, pad and dilation, by dimension; one that there is not is empty

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
        """Neighbours in the result's memory."""
        return self.co if self.last else self.out[1]

    def row_chunks(self, stored: int) -> int:
        """Chunks of a row of the filter where each pixel has so many numbers."""
        return -(-self.kernel[1] * stored // _CHUNK)

    def steps(self, stored: int) -> int:
        """Products along K."""
        return -(-self.kernel[0] * self.row_chunks(stored) // 2)

    def stored(self) -> list[int]:
        """How many numbers a pixel may have in shared memory: windows begin at whole words, or at 16 bytes."""
        stride = self.strides[1]
        words = next(n for n in range(self.ci, 2 * self.ci + 2) if n * stride % 2 == 0)
        plain = next(n for n in (2, 4, 8, 16) if n >= self.ci)
        whole = next(n for n in range(self.ci, 2 * self.ci + 16) if n * stride % _CHUNK == 0)
        return [n for n in dict.fromkeys((words, plain, whole)) if n == words or self.steps(n) <= _MOST_STEPS]

    def out_text(self, side: int) -> str:
        """The result's height or width over the operator's sizes."""
        reach = (self.kernel[side] - 1) * self.dilations[side] + 1
        return f"({'HW'[side]} + 2 * {self.names[2][side]} - {reach}) // {self.strides[side]} + 1"

    def fixed(self) -> tuple[tuple[str, str], ...]:
        """What a kernel was compiled for."""
        sizes = {"CI": self.ci}
        for names, values in zip(self.names, (self.kernel, self.strides, self.pads, self.dilations), strict=True):
            if names and names is not self.names[2]:
                sizes |= dict(zip(names, values, strict=True))
        return tuple((f"{name} == {size}", f"{name}={size}") for name, size in sizes.items())


def convolution(operator: Operator) -> FewChannels | None:
    """The numbers of a convolution in two dimensions with one group and weights that are not packed."""
    if isinstance(operator, Conv2d):
        values: dict[str, Any] = {**operator.parameters(), "dilation": 1, "epilogue": NONE, "groups": 1}
    elif isinstance(operator, DilatedConv2d):
        values = dict(operator.parameters())
    else:
        return None
    if values["groups"] != 1 or values["weight_layout"] != NONE:
        return None
    words = {word.name: word for word in operator.words}
    names = (of_sides(words[name], values[name]) if name in words else {} for name in _EACH)
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
    """Why the family cannot do this, in words."""
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
