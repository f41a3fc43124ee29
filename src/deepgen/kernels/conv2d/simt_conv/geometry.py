"""The supported convolutions as numbers in three dimensions, and the classes of their pixels.

In a transposed convolution with a stride, each of `stride` neighbouring pixels uses different taps. Pixels that use the
same taps are a class, and each class is a convolution of its own with a stride of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

from deepgen.kernels.conv2d import unknown_step
from deepgen.operators import Conv2d, Operator
from deepgen.operators.named.convolutions import (
    Conv1d,
    Conv3d,
    DilatedConv2d,
    TransposedConv1d,
    TransposedConv2d,
    TransposedConv3d,
    TransposedConvolution,
)
from deepgen.operators.words import NONE

_MOST_TAPS = 32  # per dimension: one bit of a word for each
_MOST = 2**31 - 2**12  # largest count in 32 bits
_LETTERS = {1: "L", 2: "HW", 3: "DHW"}
_DIMENSIONS: dict[type[Operator], int] = {
    Conv1d: 1, Conv2d: 2, DilatedConv2d: 2, Conv3d: 3, TransposedConv1d: 1, TransposedConv2d: 2, TransposedConv3d: 3,
}  # fmt: skip


@dataclass(frozen=True)
class PixelClass:
    """A class in one dimension: its origin in the result, the input pixel of its first tap, and its number of taps."""

    origin: int
    first: int
    taps: int


@dataclass(frozen=True)
class Side:
    """One dimension of a convolution."""

    size: int
    kernel: int
    stride: int
    pad: int
    dilation: int
    out: int
    transposed: bool

    @property
    def apart(self) -> int:
        """The distance between neighbours of a class in the result."""
        return self.stride if self.transposed else 1

    @property
    def period(self) -> int:
        """The distance between the taps of a class."""
        return self.stride // gcd(self.stride, self.dilation) if self.transposed else 1

    @property
    def step(self) -> int:
        """The distance from a tap's input pixel to that of the next tap."""
        return -(self.dilation // gcd(self.stride, self.dilation)) if self.transposed else self.dilation

    @property
    def pixels(self) -> int:
        """Pixels of the largest class; the others are padded to the same number, beyond the result."""
        return -(-self.out // self.apart)

    @cached_property
    def classes(self) -> tuple[PixelClass, ...]:
        if not self.transposed:
            return (PixelClass(0, -self.pad, self.kernel),)
        every = []
        for origin in range(min(self.apart, self.out)):
            met = [tap for tap in range(self.kernel) if (origin + self.pad - tap * self.dilation) % self.stride == 0]
            first = (origin + self.pad - met[0] * self.dilation) // self.stride if met else 0
            every.append(PixelClass(origin, first, len(met)))
        return tuple(every)

    @property
    def most_taps(self) -> int:
        return max(one.taps for one in self.classes)

    @property
    def trivial(self) -> bool:
        """Whether pixels of the result meet the pixels at the same places, and no others."""
        return self.stride == 1 and self.kernel == 1 and self.pad == 0 and self.out == self.size

    @property
    def guarded(self) -> bool:
        """Whether a tap may fall outside the image."""
        along = 1 if self.transposed else self.stride
        for one in self.classes:
            ends = one.first, one.first + max(0, one.taps - 1) * self.step
            if min(ends) < 0 or (self.pixels - 1) * along + max(ends) >= self.size:
                return True
        return False


@dataclass(frozen=True)
class ImplicitConv:
    """A convolution in f32 with channels first; channels and filters are counted per group."""

    images: int
    groups: int
    channels: int
    filters: int
    sides: tuple[Side, ...]  # three
    transposed: bool
    epilogue: tuple[str, ...]
    named: tuple[tuple[str, int], ...]  # sizes that the kernel is compiled for, under the operator's names

    @property
    def lines(self) -> int:
        """Lines of the largest class: one per input channel and tap."""
        return self.channels * prod(side.most_taps for side in self.sides)

    @property
    def all_lines(self) -> int:
        return self.lines * prod(side.apart for side in self.sides)

    @property
    def pixels(self) -> int:
        return prod(side.pixels for side in self.sides)

    @property
    def run(self) -> int:
        """Neighbouring pixels of the result whose pixels of the image are neighbours too, by all taps."""
        run = 1
        for side in reversed(self.sides):
            if not side.trivial:
                break
            run *= side.size
        return run

    @property
    def counts(self) -> tuple[int, int, int]:
        """The number of classes in each dimension."""
        d, h, w = (len(side.classes) for side in self.sides)
        return d, h, w

    @cached_property
    def class_lines(self) -> tuple[int, ...]:
        """The number of lines of each class, in the order of the kernel's blocks."""
        each = product(*(side.classes for side in self.sides))
        return tuple(self.channels * prod(one.taps for one in every) for every in each)


@lru_cache(64)  # called for every config that is ranked
def convolution_of(operator: Operator) -> ImplicitConv | str:
    """The convolution of an operator, or the reason why it is not supported."""
    dimensions = _DIMENSIONS.get(type(operator))
    if dimensions is None:
        return f"it supports {', '.join(kind.name for kind in _DIMENSIONS)} only"
    words = operator.parameters()
    if words["dtype"] != "f32" or not words["layout"].startswith("nc"):
        return "it multiplies f32 with channels first"
    if words["weight_layout"] != NONE:
        return "it supports weights that are not packed"
    transposed = isinstance(operator, TransposedConvolution)
    groups = words.get("groups", 1)
    text = words.get("epilogue", NONE)
    flat = Side(1, 1, 1, 0, 1, 1, False)
    sides = _sides(words, dimensions, operator.tensors()[-1].shape[2:], transposed=transposed)
    conv = ImplicitConv(
        words["N"], groups, words["CI"] // groups, words["CO"] // groups, (*[flat] * (3 - dimensions), *sides),
        transposed, () if text == NONE else tuple(text.split(",")),
        tuple((name, size) for name, size in operator.sizes().items() if name != "N"),
    )  # fmt: skip
    return _unable(conv) or conv


def _sides(words: Any, dimensions: int, out: tuple[int, ...], *, transposed: bool) -> list[Side]:
    def each(name: str, default: int) -> tuple[int, ...]:
        value = words.get(name, default)
        return value if isinstance(value, tuple) else (value,) * dimensions

    space = [words[letter] for letter in _LETTERS[dimensions]]
    kernel, stride, pad, dilation = each("k", 1), each("stride", 1), each("pad", 0), each("dilation", 1)
    return [Side(space[i], kernel[i], stride[i], pad[i], dilation[i], out[i], transposed) for i in range(dimensions)]


def _unable(conv: ImplicitConv) -> str | None:
    if (unknown := unknown_step(conv.epilogue)) is not None:
        return unknown
    if max(side.most_taps for side in conv.sides) > _MOST_TAPS:
        return f"its filters have at most {_MOST_TAPS} taps in a dimension"
    image, result = (prod(sizes) for sizes in zip(*((side.size, side.out) for side in conv.sides), strict=True))
    if max(conv.channels * image, result, conv.images * conv.groups * conv.pixels) > _MOST:
        return f"it has 32-bit indices: at most {_MOST} numbers of an image, and pixels of all"
    return None
