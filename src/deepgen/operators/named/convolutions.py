"""Convolutions of one, two and three dimensions: strided, padded, dilated, in groups, for each channel, transposed.

With channels last, x is N x space x CI and weight k x ... x CI x CO; with channels first, x is N x CI x space and
weight CO x CI x k x .... y is laid out like x. A weight of `groups` has CI / groups input channels. The weight of a
transposed convolution with channels first is CI x CO x k x k, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar

from deepgen.operators.expr.builder import compute, reduce_axis, tensor
from deepgen.operators.expr.elements import Element, Operand, Position, ReduceAxis
from deepgen.operators.expr.functions import sum, where
from deepgen.operators.named.base import DTYPE, EPILOGUE, Named, Result
from deepgen.operators.words import Word
from deepgen.vocabulary.errors import BadInput

_LETTERS = {1: "L", 2: "HW", 3: "DHW"}
_SIDES = {"L": "length", "H": "height", "W": "width", "D": "depth"}


def _words(dimensions: int, *, channels: tuple[Word, ...] = (), more: tuple[Word, ...] = (), dilation: int = 1) -> Any:
    space = _LETTERS[dimensions]
    last, first = f"n{space.lower()}c", f"nc{space.lower()}"
    both = (Word("CI", "input channels", needed=True), Word("CO", "output channels", needed=True))
    return (
        Word("N", "batch size", needed=True),
        *(Word(side, f"{_SIDES[side]} of the input", needed=True) for side in space),
        *(channels or both),
        Word("k", "size of the filter in each dimension", needed=True),
        Word("stride", "stride", default=1),
        Word("pad", "zero padding on each side", default=0, least=0),
        Word("dilation", "distance between the filter's elements", default=dilation),
        *more,
        DTYPE,
        Word("layout", "order of the dimensions", "choice", last, choices=(last, first)),
        EPILOGUE,
    )


class _Convolution(Named):
    """What convolutions share. Depthwise ones have as many groups as channels, and no channels to add up over."""

    dimensions: ClassVar[int] = 2
    weights: ClassVar[tuple[str, ...]] = ("weight",)

    @property
    def space(self) -> tuple[int, ...]:
        return tuple(self[side] for side in _LETTERS[self.dimensions])

    @property
    def last(self) -> bool:
        return bool(self["layout"].endswith("c"))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The size of the result in each dimension."""
        reach = (self["k"] - 1) * self["dilation"] + 1
        if reach > min(self.space) + 2 * self["pad"]:
            what = f"{self.name}: a filter that reaches over {reach} on an input of {'x'.join(map(str, self.space))}"
            raise BadInput(what, allowed=f"at most {min(self.space) + 2 * self['pad']}, with pad={self['pad']}")
        return tuple((size + 2 * self["pad"] - reach) // self["stride"] + 1 for size in self.space)

    def laid(self, batch: Any, channel: Any, space: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sizes or indices in the order of the layout."""
        return (batch, *space, channel) if self.last else (batch, channel, *space)

    def result(self, channels: int, element: Any) -> Operand:
        """The stage of the result; `element` gives the sum for a batch, a channel and a place."""
        shape = self.laid(self["N"], channels, self.outputs)

        def finished(*at: Position) -> Element:
            channel = len(at) - 1 if self.last else 1
            space = at[1:-1] if self.last else at[2:]
            total = element(at[0], at[channel], space)
            return self.finished(total, Result(shape, at, channel, self.formats[2]))

        return compute("y", shape, finished)

    def taps(self) -> list[ReduceAxis]:
        return [reduce_axis(f"r{n}", self["k"]) for n in range(self.dimensions)]

    def met(self, space: tuple[Position, ...], taps: list[ReduceAxis]) -> tuple[Position, ...]:
        """The place of the input that a tap of the filter meets, which may lie in the padding."""
        both = zip(space, taps, strict=True)
        return tuple(at * self["stride"] + tap * self["dilation"] - self["pad"] for at, tap in both)

    def padded(
        self, x: Operand, batch: Any, channel: Any, places: tuple[Position, ...], hits: Sequence[Element] = ()
    ) -> Element:
        """An element of the input, zero outside of it and where not all of `hits` hold."""
        inside = [one for at, size in zip(places, self.space, strict=True) for one in (at >= 0, at < size)]
        return where(reduce(lambda a, b: a & b, (*hits, *inside)), x[self.laid(batch, channel, places)], 0)

    def build(self) -> Operand:
        (of, wide, _), ci, co = self.formats, self["CI"], self["CO"]
        groups = self["groups"] if "groups" in dict(self.arguments) else 1
        if ci % groups or co % groups:
            what = f"{self.name}: groups={groups} with CI={ci} and CO={co}"
            raise BadInput(what, allowed="a divisor of both")
        kernel, taps, over = (self["k"],) * self.dimensions, self.taps(), reduce_axis("c", ci // groups)
        x = tensor("x", self.laid(self["N"], ci, self.space), of)
        own = ci // groups
        weight = tensor("weight", (*kernel, own, co) if self.last else (co, own, *kernel), of)

        def element(batch: Position, channel: Position, space: tuple[Position, ...]) -> Element:
            source = over if groups == 1 else channel // (co // groups) * own + over
            image = self.padded(x, batch, source, self.met(space, taps))
            filters = weight[(*taps, over, channel) if self.last else (channel, over, *taps)]
            return sum(image.cast(wide) * filters.cast(wide), *taps, over)

        return self.result(co, element)


class Conv1d(_Convolution):
    name: ClassVar[str] = "conv1d"
    words: ClassVar[tuple[Word, ...]] = _words(1)
    dimensions: ClassVar[int] = 1


class Conv3d(_Convolution):
    name: ClassVar[str] = "conv3d"
    words: ClassVar[tuple[Word, ...]] = _words(3)
    dimensions: ClassVar[int] = 3


class DilatedConv2d(_Convolution):
    """Two dimensions with what `conv2d` does not have: dilation, groups, an epilogue."""

    name: ClassVar[str] = "dilated_conv2d"
    words: ClassVar[tuple[Word, ...]] = _words(2, more=(Word("groups", "groups of channels", default=1),), dilation=2)


class DepthwiseConv2d(_Convolution):
    """One filter for each channel: weight is k x k x C, or C x k x k with channels first."""

    name: ClassVar[str] = "depthwise_conv2d"
    words: ClassVar[tuple[Word, ...]] = _words(2, channels=(Word("C", "channels", needed=True),))

    def build(self) -> Operand:
        (of, wide, _), channels, taps = self.formats, self["C"], self.taps()
        kernel = (self["k"],) * self.dimensions
        x = tensor("x", self.laid(self["N"], channels, self.space), of)
        weight = tensor("weight", (*kernel, channels) if self.last else (channels, *kernel), of)

        def element(batch: Position, channel: Position, space: tuple[Position, ...]) -> Element:
            image = self.padded(x, batch, channel, self.met(space, taps))
            filters = weight[(*taps, channel) if self.last else (channel, *taps)]
            return sum(image.cast(wide) * filters.cast(wide), *taps)

        return self.result(channels, element)


class TransposedConv2d(_Convolution):
    """The gradient of a convolution by its input: each pixel adds its filter to the result, `stride` apart."""

    name: ClassVar[str] = "conv_transpose2d"
    words: ClassVar[tuple[Word, ...]] = _words(
        2, more=(Word("out_pad", "how much larger the result is at its end", default=0, least=0),)
    )

    @property
    def outputs(self) -> tuple[int, ...]:
        reach = (self["k"] - 1) * self["dilation"] + 1
        sizes = tuple((size - 1) * self["stride"] - 2 * self["pad"] + reach + self["out_pad"] for size in self.space)
        if min(sizes) < 1 or self["out_pad"] >= max(self["stride"], self["dilation"]):
            what = f"{self.name}: a result of {'x'.join(map(str, sizes))} with out_pad={self['out_pad']}"
            raise BadInput(what, allowed="sizes from 1 up, and out_pad below stride or dilation")
        return sizes

    def build(self) -> Operand:
        (of, wide, _), ci, co, stride = self.formats, self["CI"], self["CO"], self["stride"]
        kernel, taps, over = (self["k"],) * self.dimensions, self.taps(), reduce_axis("c", ci)
        x = tensor("x", self.laid(self["N"], ci, self.space), of)
        weight = tensor("weight", (*kernel, ci, co) if self.last else (ci, co, *kernel), of)

        def element(batch: Position, channel: Position, space: tuple[Position, ...]) -> Element:
            from_start = [at + self["pad"] - tap * self["dilation"] for at, tap in zip(space, taps, strict=True)]
            # Pixels lie `stride` apart in the result: between them there is nothing.
            hits = [at % stride == 0 for at in from_start] if stride > 1 else []
            image = self.padded(x, batch, over, tuple(at // stride for at in from_start), hits)
            filters = weight[(*taps, over, channel) if self.last else (over, channel, *taps)]
            return sum(image.cast(wide) * filters.cast(wide), *taps, over)

        return self.result(co, element)
