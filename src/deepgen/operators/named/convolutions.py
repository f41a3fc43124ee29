"""Convolutions of one, two and three dimensions: strided, padded, dilated, grouped, depthwise, transposed.

With channels last, x is N x space x CI and weight k x ... x CI x CO; with channels first, x is N x CI x space and
weight CO x CI x k x .... y is laid out like x. A weight of `groups` has CI / groups input channels. The weight of a
transposed convolution with channels first is CI x CO x k x ..., as in torch, and one of `groups` has CO / groups output
channels. k, stride, pad and dilation are one number for all dimensions, or one for each. A packed weight is unpacked by
a separate stage, which a kernel merges with its own packing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

from deepgen.operators.expr.builder import compute, reduce_axis, sum, tensor, where
from deepgen.operators.expr.elements import Element, Operand, Position, ReduceAxis
from deepgen.operators.expr.layouts import WEIGHT_LAYOUT, filter_layout, packed_layout
from deepgen.operators.named import DTYPE, EPILOGUE, Named, Own, Result
from deepgen.operators.words import NONE, Word, shown
from deepgen.vocabulary.errors import BadInput

IMAGES, CHANNELS = "N", "C"  # words for their numbers
_LETTERS = {1: "L", 2: "HW", 3: "DHW"}
_SIDES = {"L": "length", "H": "height", "W": "width", "D": "depth"}


def _sides(dimensions: int) -> tuple[str, ...]:
    return (*_LETTERS[dimensions].lower(),)


def _words(dimensions: int, *, channels: tuple[Word, ...] = (), more: tuple[Word, ...] = (), dilation: int = 1) -> Any:
    space, sides = _LETTERS[dimensions], _sides(dimensions)
    last, first = f"n{space.lower()}c", f"nc{space.lower()}"
    both = (Word("CI", "input channels", needed=True), Word("CO", "output channels", needed=True))
    return (
        Word(IMAGES, "batch size", needed=True),
        *(Word(side, f"{_SIDES[side]} of the input", needed=True) for side in space),
        *(channels or both),
        Word("k", "size of the filter, in all dimensions or in each", needed=True, sides=sides, aliases=("kernel",)),
        Word("stride", "stride", default=1, sides=sides),
        Word("pad", "zero padding on each side", default=0, least=0, sides=sides),
        Word("dilation", "distance between the filter's elements", default=dilation, sides=sides),
        *more,
        DTYPE,
        Word("layout", "order of the dimensions", "choice", last, choices=(last, first)),
        EPILOGUE,
        *(() if channels else (WEIGHT_LAYOUT,)),
    )


_GROUPS = Word("groups", "groups of channels", default=1, later=True)


class _Convolution(Named):
    """The common base of convolutions. Depthwise ones have as many groups as channels, and do not sum over channels."""

    dimensions: ClassVar[int] = 2
    weights: ClassVar[tuple[str, ...]] = ("weight",)

    @classmethod
    def make(cls: type[Own], parameters: Mapping[str, Any]) -> Own:
        packed = parameters.get("weight_layout", NONE)
        plain = packed == NONE or not isinstance(packed, str)
        texts = {} if plain else {"weight_layout": packed_layout(packed).text}
        return super().make({**parameters, **texts})

    @property
    def space(self) -> tuple[int, ...]:
        return tuple(self[side] for side in _LETTERS[self.dimensions])

    @property
    def last(self) -> bool:
        return bool(self["layout"].endswith("c"))

    def each(self, word: str) -> tuple[int, ...]:
        """The number for each dimension."""
        value = self[word]
        return value if isinstance(value, tuple) else (value,) * self.dimensions

    @property
    def reaches(self) -> tuple[int, ...]:
        """The extent of the dilated filter in each dimension."""
        return tuple((k - 1) * apart + 1 for k, apart in zip(self.each("k"), self.each("dilation"), strict=True))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The size of the result in each dimension."""
        around = [size + 2 * pad for size, pad in zip(self.space, self.each("pad"), strict=True)]
        if any(reach > size for reach, size in zip(self.reaches, around, strict=True)):
            reached = shown(self.reaches if len({*self.reaches}) > 1 else self.reaches[0])
            what = f"{self.name}: a filter that reaches over {reached} on an input of {shown(self.space)}"
            raise BadInput(what, allowed=f"at most {shown((*around,))}, with pad={shown(self['pad'])}")
        every = zip(around, self.reaches, self.each("stride"), strict=True)
        return tuple((size - reach) // stride + 1 for size, reach, stride in every)

    def laid(self, batch: Any, channel: Any, space: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sizes or indices in the order of the layout."""
        return (batch, *space, channel) if self.last else (batch, channel, *space)

    def result(self, channels: int, element: Any) -> Operand:
        """The stage of the result; `element` gives the sum for a batch, a channel and a position."""
        shape = self.laid(self[IMAGES], channels, self.outputs)

        def finished(*at: Position) -> Element:
            channel = len(at) - 1 if self.last else 1
            space = at[1:-1] if self.last else at[2:]
            total = element(at[0], at[channel], space)
            return self.finished(total, Result(shape, at, channel, self.formats[2]))

        return compute("y", shape, finished)

    def taps(self) -> list[ReduceAxis]:
        return [reduce_axis(f"r{n}", size) for n, size in enumerate(self.each("k"))]

    def filters(self, own: int, co: int, of: str, *, swapped: bool = False) -> Operand:
        """The weight in the order of the layout; `swapped`: with channels first, the input's channels come before the
        output's. A packed weight is in the order O, I, then space."""
        packed, kernel = filter_layout(self["weight_layout"], self.dimensions), self.each("k")
        first_out = not (self.last or swapped)
        channels = (co, own) if first_out else (own, co)
        shape = (*kernel, *channels) if self.last else (*channels, *kernel)
        if packed is None:
            return tensor("weight", shape, of)
        stored = tensor("weight", packed.shape((co, own, *kernel)), of)

        def element(*at: Position) -> Element:
            one, other, *space = (*at[-2:], *at[:-2]) if self.last else at
            return stored[packed.places((one, other, *space) if first_out else (other, one, *space))]

        return compute("filters", shape, element)

    def met(self, space: tuple[Position, ...], taps: list[ReduceAxis]) -> tuple[Position, ...]:
        """The input position of a tap of the filter, which may be in the padding."""
        every = zip(space, taps, self.each("stride"), self.each("dilation"), self.each("pad"), strict=True)
        return tuple(at * stride + tap * apart - pad for at, tap, stride, apart, pad in every)

    def padded(
        self, x: Operand, batch: Any, channel: Any, places: tuple[Position, ...], hits: Sequence[Element] = ()
    ) -> Element:
        """An element of the input, zero outside it and where not all of `hits` hold."""
        inside = [one for at, size in zip(places, self.space, strict=True) for one in (at >= 0, at < size)]
        return where(reduce(lambda a, b: a & b, (*hits, *inside)), x[self.laid(batch, channel, places)], 0)

    @property
    def groups(self) -> int:
        groups, ci, co = (self[word] for word in ("groups", "CI", "CO"))
        if ci % groups or co % groups:
            what = f"{self.name}: groups={groups} with CI={ci} and CO={co}"
            raise BadInput(what, allowed="a divisor of both")
        return int(groups)

    def build(self) -> Operand:
        (of, wide, _), ci, co, groups = self.formats, self["CI"], self["CO"], self.groups
        own = ci // groups
        taps, over = self.taps(), reduce_axis("c", own)
        x = tensor("x", self.laid(self[IMAGES], ci, self.space), of)
        weight = self.filters(own, co, of)

        def element(batch: Position, channel: Position, space: tuple[Position, ...]) -> Element:
            source = over if groups == 1 else channel // (co // groups) * own + over
            image = self.padded(x, batch, source, self.met(space, taps))
            filters = weight[(*taps, over, channel) if self.last else (channel, over, *taps)]
            return sum(image.cast(wide) * filters.cast(wide), *taps, over)

        return self.result(co, element)


class Conv1d(_Convolution):
    name: ClassVar[str] = "conv1d"
    words: ClassVar[tuple[Word, ...]] = _words(1, more=(_GROUPS,))
    dimensions: ClassVar[int] = 1


class Conv3d(_Convolution):
    name: ClassVar[str] = "conv3d"
    words: ClassVar[tuple[Word, ...]] = _words(3, more=(_GROUPS,))
    dimensions: ClassVar[int] = 3


class DilatedConv2d(_Convolution):
    """Two dimensions with dilation, groups or an epilogue: `conv2d` becomes this operator if it has one of them."""

    name: ClassVar[str] = "dilated_conv2d"
    words: ClassVar[tuple[Word, ...]] = _words(2, more=(Word("groups", "groups of channels", default=1),), dilation=2)


class DepthwiseConv2d(_Convolution):
    """One filter for each channel: weight is k x k x C, or C x k x k with channels first."""

    name: ClassVar[str] = "depthwise_conv2d"
    words: ClassVar[tuple[Word, ...]] = _words(2, channels=(Word(CHANNELS, "channels", needed=True),))

    def build(self) -> Operand:
        (of, wide, _), channels, taps = self.formats, self[CHANNELS], self.taps()
        kernel = self.each("k")
        x = tensor("x", self.laid(self[IMAGES], channels, self.space), of)
        weight = tensor("weight", (*kernel, channels) if self.last else (channels, *kernel), of)

        def element(batch: Position, channel: Position, space: tuple[Position, ...]) -> Element:
            image = self.padded(x, batch, channel, self.met(space, taps))
            filters = weight[(*taps, channel) if self.last else (channel, *taps)]
            return sum(image.cast(wide) * filters.cast(wide), *taps)

        return self.result(channels, element)


def _transposed_words(dimensions: int) -> Any:
    sides = _sides(dimensions)
    out_pad = Word("out_pad", "extra size at the end of the result", default=0, least=0, sides=sides)
    return _words(dimensions, more=(out_pad, _GROUPS))


class TransposedConvolution(_Convolution):
    """The gradient of a convolution with respect to its input: each pixel adds its filter to the result, `stride`
    apart."""

    @property
    def outputs(self) -> tuple[int, ...]:
        options = (self.each(word) for word in ("stride", "pad", "out_pad"))
        every = [*zip(self.space, self.reaches, *options, strict=True)]
        sizes = tuple((size - 1) * stride - 2 * pad + reach + more for size, reach, stride, pad, more in every)
        room = zip(self.each("out_pad"), self.each("stride"), self.each("dilation"), strict=True)
        if min(sizes) < 1 or any(more >= max(stride, apart) for more, stride, apart in room):
            what = f"{self.name}: a result of {shown(sizes)} with out_pad={shown(self['out_pad'])}"
            raise BadInput(what, allowed="sizes of at least 1, and out_pad below stride or dilation")
        return sizes

    def build(self) -> Operand:
        (of, wide, _), strides, groups = self.formats, self.each("stride"), self.groups
        own, filters = self["CI"] // groups, self["CO"] // groups
        taps, over = self.taps(), reduce_axis("c", own)
        x = tensor("x", self.laid(self[IMAGES], self["CI"], self.space), of)
        weight = self.filters(self["CI"], filters, of, swapped=True)

        def element(batch: Position, channel: Position, space: tuple[Position, ...]) -> Element:
            every = zip(space, taps, self.each("pad"), self.each("dilation"), strict=True)
            starts = [*zip((at + pad - tap * apart for at, tap, pad, apart in every), strides, strict=True)]
            # Pixels are `stride` apart in the result; positions between them get no contribution.
            hits = [at % stride == 0 for at, stride in starts if stride > 1]
            source, filtered = (over, channel) if groups == 1 else (channel // filters * own + over, channel % filters)
            image = self.padded(x, batch, source, tuple(at // stride for at, stride in starts), hits)
            factor = weight[(*taps, source, filtered) if self.last else (source, filtered, *taps)]
            return sum(image.cast(wide) * factor.cast(wide), *taps, over)

        return self.result(self["CO"], element)


class TransposedConv1d(TransposedConvolution):
    name: ClassVar[str] = "conv_transpose1d"
    words: ClassVar[tuple[Word, ...]] = _transposed_words(1)
    dimensions: ClassVar[int] = 1


class TransposedConv2d(TransposedConvolution):
    name: ClassVar[str] = "conv_transpose2d"
    words: ClassVar[tuple[Word, ...]] = _transposed_words(2)


class TransposedConv3d(TransposedConvolution):
    name: ClassVar[str] = "conv_transpose3d"
    words: ClassVar[tuple[Word, ...]] = _transposed_words(3)
    dimensions: ClassVar[int] = 3
