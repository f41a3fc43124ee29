"""torch's products, convolutions, pooling and embedding lookups as expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from math import inf, prod
from typing import Any

from deepgen.frontends.torch.lazy import (
    Lazy,
    Places,
    aligned,
    along_one,
    dims_of,
    materialized,
    only,
    permuted,
    reduced,
    stored,
    viewed,
)
from deepgen.frontends.torch.rows import affine, binary, kept, per_channel
from deepgen.operators.expr import builder as dg
from deepgen.operators.expr.builder import reduce_axis
from deepgen.operators.expr.elements import Element, Position
from deepgen.vocabulary import BadInput

_LARGE = 64  # elements of a window


def _mm(a: Lazy, b: Lazy) -> Lazy:
    """A product of matrices or of batches of them. Computed operands are stored first, since each element is read many
    times.
    """
    (a, left_factor), (b, right_factor) = (one.scaled or (one, 1.0) for one in (a, b))
    a, b = (one if one.plain else materialized(one) for one in (a, b))
    batch = tuple(aligned([_row(one) for one in (a, b)])) if len(a.dims) == 3 else ()
    inner = aligned([Lazy((a.dims[-1],), a.kind, a.read), Lazy((b.dims[-2],), b.kind, b.read)])[0]
    over = tuple(reduce_axis(f"k{n}", size) for n, size in enumerate(inner))

    def element(at: Places) -> Element:
        left = a.at((*batch, a.dims[-2], inner), (*at[:-2], at[-2], over))
        right = b.at((*batch, inner, b.dims[-1]), (*at[:-2], over, at[-1]))
        return dg.sum(left * right, *over) if over else left * right

    out, factor = stored(Lazy((*batch, a.dims[-2], b.dims[-1]), a.kind, element)), left_factor * right_factor
    return out if factor == 1.0 else kept(lambda one: one * factor, out)


def _row(x: Lazy) -> Lazy:
    return Lazy(x.dims[:1], x.kind, x.read)


def _addmm(bias: Lazy, a: Lazy, b: Lazy, *, beta: float = 1, alpha: float = 1) -> Lazy:
    product = _mm(a, b)
    scaled = product if alpha == 1 else binary(operator.mul, product, alpha)
    return binary(operator.add, scaled, bias if beta == 1 else binary(operator.mul, bias, beta))


def _joint(x: Lazy, first: int) -> Lazy:
    """The tensor with a single index for each dimension from `first` on."""
    for dim in range(first, len(x.dims)):
        x = along_one(x, dim)
    return x


def _axes(name: str, sizes: Sequence[int]) -> list[tuple[Any, ...]]:
    """One reduction axis for each size greater than one."""
    return [(reduce_axis(f"{name}{n}", size),) if size > 1 else () for n, size in enumerate(sizes)]


def _guarded(x: Lazy, outer: Places, places: Sequence[Position], otherwise: float, hits: Sequence[Element]) -> Element:
    """An element of images, indexed after other dimensions; outside of the image another value."""
    sizes = x.shape[len(outer) :]
    read = x.read((*outer, *((at,) if size > 1 else () for at, size in zip(places, sizes, strict=True))))
    return dg.where(reduce(operator.and_, hits), read, otherwise) if hits else read


def _within(at: Position, low: int, high: int, size: int) -> list[Element]:
    """Conditions that an index is inside, if it may range from low to high."""
    return [at >= 0] * (low < 0) + [at < size] * (high >= size)


def _each(option: Any, dimensions: int) -> list[int]:
    values = [*option] if isinstance(option, (list, tuple)) else [option]
    return values * dimensions if len(values) == 1 else values


def _convolution(
    x: Lazy,
    weight: Lazy,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: int,
) -> Lazy:
    """A convolution in any number of dimensions, with groups, transposed or not."""
    images, channels, *space = x.shape
    steps, pads, aparts, more = (_each(one, len(space)) for one in (stride, padding, dilation, extra))
    kernel = weight.shape[2:]
    every = [*zip(space, kernel, steps, pads, aparts, more, strict=True)]
    if transposed:
        sizes = [(size - 1) * step - 2 * pad + (k - 1) * apart + 1 + end for size, k, step, pad, apart, end in every]
        own = weight.shape[1]
        weight = viewed(weight, (groups, channels // groups, own, *kernel))
        weight = permuted(weight, (0, 2, 1, *range(3, 3 + len(kernel))))
    else:
        sizes = [(size + 2 * pad - (k - 1) * apart - 1) // step + 1 for size, k, step, pad, apart, _ in every]
        own = weight.shape[0] // groups
        weight = viewed(weight, (groups, own, channels // groups, *kernel))
    x, weight = _joint(viewed(x, (images, groups, channels // groups, *space)), 1), _joint(weight, 0)
    taps, (over,) = _axes("t", kernel), _axes("c", [channels // groups])
    dims = (x.dims[0], *((size,) if size > 1 else () for size in (groups, own, *sizes)))

    def element(at: Places) -> Element:
        places, filters, hits = list[Position](), list[Any](), list[Element]()
        for here, tap, size, (inner, k, step, pad, apart, _) in zip(at[3:], taps, sizes, every, strict=True):
            start, one = only(here), only(tap)
            if not transposed or step == 1:
                # Transposed with stride 1 it is a convolution with the reversed filter.
                around = (k - 1) * apart - pad if transposed else pad
                place = start * step + one * apart - around
                hits += _within(place, -around, (size - 1) * step + (k - 1) * apart - around, inner)
                filters.append((tap and (k - 1 - one,)) if transposed else tap)
            else:
                # Pixels are `step` apart in the result, with nothing in between.
                met = start - one * apart + pad
                place = met // step
                hits += [met % step == 0]
                hits += _within(place, (pad - (k - 1) * apart) // step, (size - 1 + pad) // step, inner)
                filters.append(tap)
            places.append(place)
        image = _guarded(x, (at[0], at[1], over), places, 0.0, hits)
        product = image * weight.read((at[1], at[2], over, *filters))
        axes = [axis for own in (*taps, over) for axis in own]
        return dg.sum(product, *axes) if axes else product

    out = stored(viewed(Lazy(dims, x.kind, element), (images, groups * own, *sizes)))
    return affine(out, None, per_channel(bias, len(out.dims)))


def _pooled(
    function: Any, x: Lazy, sizes: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Lazy:
    rank = len(sizes)
    x = _joint(x, len(x.dims) - rank)
    outer, space = x.dims[:-rank], x.shape[-rank:]
    kernels, pads, aparts = (_each(one, rank) for one in (kernel, padding, dilation))
    steps = _each(stride, rank) if stride not in (None, [], ()) else kernels
    if rank > 1 and steps[0] >= kernels[0] > 1 and prod(kernels) >= _LARGE:
        # Windows that do not overlap: one dimension after another reads adjacent elements together.
        one = [1] * (rank - 1)
        first = _pooled(
            function, x, [sizes[0], *space[1:]], [kernels[0], *one], [steps[0], *one],
            [pads[0]] + [0] * (rank - 1), [aparts[0], *one],
        )  # fmt: skip
        options = ([1, *kernels[1:]], [1, *steps[1:]], [0, *pads[1:]], [1, *aparts[1:]])
        return _pooled(function, first, sizes, *options)
    every, taps = [*zip(space, kernels, steps, pads, aparts, strict=True)], _axes("t", kernels)
    otherwise = 0.0 if function is dg.sum else -inf

    def element(at: Places) -> Element:
        places, hits = list[Position](), list[Element]()
        for here, tap, size, (inner, k, step, pad, apart) in zip(at[len(outer) :], taps, sizes, every, strict=True):
            place = only(here) * step + only(tap) * apart - pad
            hits += _within(place, -pad, (size - 1) * step + (k - 1) * apart - pad, inner)
            places.append(place)
        value = _guarded(x, at[: len(outer)], places, otherwise, hits)
        axes = [axis for own in taps for axis in own]
        return function(value, *axes) if axes else value

    return stored(Lazy((*outer, *((size,) if size > 1 else () for size in sizes)), x.kind, element))


def _windows(size: int, k: int, step: int, pad: int, apart: int, *, up: bool) -> int:
    """The number of windows; with `up` including one that starts inside and ends outside."""
    left = size + 2 * pad - apart * (k - 1) - 1
    many = (-(-left // step) if up else left // step) + 1
    return many - 1 if up and (many - 1) * step >= size + pad else many


def _max_pool(
    rank: int, x: Lazy, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Lazy, None]:
    kernels = _each(kernel, rank)
    steps = _each(stride, rank) if stride not in (None, [], ()) else kernels
    every = zip(x.shape[-rank:], kernels, steps, _each(padding, rank), _each(dilation, rank), strict=True)
    sizes = [_windows(*one, up=ceil_mode) for one in every]
    return _pooled(dg.max, x, sizes, kernel, stride, padding, dilation), None


def _avg_pool(
    rank: int,
    x: Lazy,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Lazy:
    kernels, pads = _each(kernel, rank), _each(padding, rank)
    if ceil_mode or (any(pads) and not count_include_pad):
        raise BadInput("an average of windows of different sizes", allowed="count_include_pad without ceil_mode")
    steps = _each(stride, rank) if stride not in (None, [], ()) else kernels
    every = zip(x.shape[-rank:], kernels, steps, pads, [1] * rank, strict=True)
    sizes = [_windows(*one, up=False) for one in every]
    total = _pooled(dg.sum, x, sizes, kernel, stride, padding, 1)
    return kept(lambda one: one / float(divisor_override or prod(kernels)), total)


def _gather(x: Lazy, dim: int, index: Lazy, sparse_grad: bool = False) -> Lazy:
    """Indices cannot depend on data, so a lookup is a sum over all elements in which only one is nonzero."""
    along = dims_of(x, dim)[0]
    if index.shape[along] != 1:
        raise BadInput(
            f"a gather of {index.shape[along]} elements along a dimension", allowed="only 1: others are not sums"
        )
    over = along_one(x, along)

    def element(at: Places) -> Element:
        here = only(at[along])
        return dg.where(index.at(over.dims, at) == here.cast("i64"), over.read(at), 0)

    return reduced(dg.sum, Lazy(over.dims, x.kind, element), [along], keep=True)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "convolution": _convolution,
    "gather": _gather,
    **{f"max_pool{n}d_with_indices": partial(_max_pool, n) for n in (2, 3)},
    **{f"avg_pool{n}d": partial(_avg_pool, n) for n in (1, 2, 3)},
}
