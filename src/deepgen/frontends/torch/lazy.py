"""Lazy tensors of a traced module, whose elements are computed where they are read: views and arithmetic add no stage.

A dimension is a product of factors, the outermost first. A view splits and merges dimensions: with the factors of all
views involved, indices remain sums of axes, and few of them need quotients and remainders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from itertools import count, pairwise
from math import prod
from typing import Any, TypeAlias

import torch

from deepgen.operators.expr.builder import compute, reduce_axis, where
from deepgen.operators.expr.builder import scan as running
from deepgen.operators.expr.elements import Element, Operand, Position, number
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import BOOL
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import our_name

WIDE = {torch.float16: "f32", torch.bfloat16: "f32"}  # formats whose arithmetic is done in another one
Factors: TypeAlias = "tuple[int, ...]"
Places: TypeAlias = "tuple[tuple[Any, ...], ...]"  # for each dimension, one index per factor


def wide(kind: Any) -> str:
    """The format in which elements of a torch format are computed; conditions have their own."""
    return BOOL if kind is torch.bool else WIDE.get(kind) or our_name(str(kind).rpartition(".")[2])


@dataclass(frozen=True)
class Lazy:
    """`read` returns the element at an index, in the arithmetic format; `kind` is torch's format."""

    dims: tuple[Factors, ...]
    kind: Any
    read: Callable[[Places], Element]
    plain: bool = False  # whether elements are read directly from memory
    scaled: tuple[Lazy, float] | None = None  # for a product with a number: the other factor and the number

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(prod, self.dims))

    def at(self, dims: Sequence[Factors], places: Places) -> Element:
        """The element at an index of a tensor with other factors, to which this one is broadcast."""
        if len(self.dims) > len(dims):
            raise BadInput(
                f"a tensor of shape {self.shape} cannot be viewed with fewer dimensions",
                allowed="take take a view of it first",
            )
        own, theirs = dims[len(dims) - len(self.dims) :], places[len(dims) - len(self.dims) :]
        every = zip(own, self.dims, theirs, strict=True)
        return self.read(tuple(_regrouped(of, to, at) for of, to, at in every))

    def as_kind(self, kind: Any) -> Lazy:
        """The tensor in another format: conditions become 0 and 1."""
        to, of = wide(kind), wide(self.kind)
        if kind is self.kind:
            return self
        if to == of:
            return replace(self, kind=kind)
        if to == BOOL:
            return mapped(lambda one: one != 0, kind, self)
        if of == BOOL:
            return mapped(lambda one: where(one, number(1, to), 0), kind, self)
        return mapped(lambda one: one.cast(to), kind, self)


def constant(value: Any, kind: Any, shape: Sequence[int] = ()) -> Lazy:
    dims = tuple(_plain(size) for size in shape)
    if kind is torch.bool:
        return Lazy(dims, kind, lambda _: number(int(value), "i32") == 1)
    return Lazy(dims, kind, lambda _: number(value, wide(kind)))


def of_tensor(operand: Operand, shape: Sequence[int], kind: Any, order: Sequence[int]) -> Lazy:
    """A tensor argument. Its dimensions are stored in memory in this order."""

    def read(at: Places) -> Element:
        element = operand[tuple(at[dim][0] if at[dim] else 0 for dim in order) or (0,)]
        return element != 0 if kind is torch.bool else element.cast(wide(kind))

    return Lazy(tuple(_plain(size) for size in shape), kind, read, plain=True)


def aligned(values: Sequence[Lazy]) -> tuple[Factors, ...]:
    """The factors of a result to which these are broadcast."""
    rank = max(len(one.dims) for one in values)
    every = [[()] * (rank - len(one.dims)) + [*one.dims] for one in values]
    return tuple(reduce(_finer, column) for column in zip(*every, strict=True))


def mapped(function: Callable[..., Element], kind: Any, *values: Lazy) -> Lazy:
    """Apply a function elementwise to tensors that are broadcast against each other."""
    dims = aligned(values)
    return Lazy(dims, kind, lambda at: function(*(one.at(dims, at) for one in values)))


def _of_views(view: Callable[..., Lazy]) -> Callable[..., Lazy]:
    """A view of a product with a number is also such a product."""

    @wraps(view)
    def both(value: Lazy, *where: Any) -> Lazy:
        out = replace(view(value, *where), plain=value.plain)
        return replace(out, scaled=value.scaled and (both(value.scaled[0], *where), value.scaled[1]))

    return both


@_of_views
def viewed(value: Lazy, shape: Sequence[int]) -> Lazy:
    """The same elements in memory order with other dimensions."""
    old = tuple(factor for dim in value.dims for factor in dim)
    new = tuple(size for size in shape if size > 1)
    finest, dims, left = _finer(old, new), list[Factors](), list[int]()
    left = [*finest]
    for size in shape:
        own = list[int]()
        while prod(own) < size:
            own.append(left.pop(0))
        dims.append(tuple(own))

    def read(at: Places) -> Element:
        flat = iter(_regrouped(finest, old, tuple(one for dim in at for one in dim)))
        return value.read(tuple(tuple(next(flat) for _ in dim) for dim in value.dims))

    return replace(value, dims=tuple(dims), read=read)


@_of_views
def permuted(value: Lazy, order: Sequence[int]) -> Lazy:
    back = [order.index(dim) for dim in range(len(order))]
    return replace(
        value,
        dims=tuple(value.dims[dim] for dim in order),
        read=lambda at: value.read(tuple(at[place] for place in back)),
    )


@_of_views
def moved(value: Lazy, dim: int, size: int, place: Callable[[Any], Any]) -> Lazy:
    """Other elements along one dimension: those at `place` of an index."""
    dims = tuple(_plain(size) if n == dim else own for n, own in enumerate(value.dims))

    def read(at: Places) -> Element:
        flat = place(at[dim][0] if at[dim] else 0)
        whole = _plain(value.shape[dim])
        inner = _regrouped(whole, value.dims[dim], (flat,) if whole else ())
        return value.read((*at[:dim], inner, *at[dim + 1 :]))

    return replace(value, dims=dims, read=read)


def joined(values: Sequence[Lazy], dim: int) -> Lazy:
    """Concatenation along a dimension."""
    first, rest = values[0], values[1:]
    if not rest:
        return first
    other, size = joined(rest, dim), first.shape[dim]
    dims = [_finer(a, b) for a, b in zip(first.dims, other.dims, strict=True)]
    dims[dim] = _plain(size + other.shape[dim])
    parts = tuple(
        tuple(_plain(one.shape[dim]) if n == dim else own for n, own in enumerate(dims)) for one in (first, other)
    )

    def read(at: Places) -> Element:
        here = at[dim][0]
        after = (*at[:dim], (here - size,) if parts[1][dim] else (), *at[dim + 1 :])
        before = at if parts[0][dim] else (*at[:dim], (), *at[dim + 1 :])
        return where(here < size, first.at(parts[0], before), other.at(parts[1], after))

    return Lazy(tuple(dims), first.kind, read)


_names = count()


def stored(value: Lazy) -> Lazy:
    """The tensor as a separate stage, which is computed once."""
    return _of_stage(compute(_name(), *_stage(value)), value)


def materialized(value: Lazy) -> Lazy:
    """Like `stored`, in the format in which torch stores it."""
    out = _of_stage(result(_name(), value, value.kind), value)
    return replace(out, read=lambda at: out.read(at).cast(wide(value.kind)))


def scanned(op: str, value: Lazy, dim: int) -> Lazy:
    """Running sums (products, maxima) along a dimension."""
    whole = along_one(value, dim)
    return _of_stage(running(_name(), *_stage(whole), axis=sum(map(len, whole.dims[:dim])), op=op), whole)


def reduced(function: Callable[..., Element], value: Lazy, over: Sequence[int], *, keep: bool = False) -> Lazy:
    """A reduction over dimensions by dg.sum, dg.max or similar."""
    at_all = [tuple(reduce_axis(f"r{n}", size) for n, size in enumerate(own)) for own in value.dims]
    axes = [axis for dim in over for axis in at_all[dim]]
    kept = [dim for dim in range(len(value.dims)) if dim not in over]

    def read(at: Places) -> Element:
        here = [*at_all]
        for dim, own in zip(kept, at, strict=True):
            here[dim] = own
        element = value.read(tuple(here))
        return function(element, *axes) if axes else element

    out = stored(Lazy(tuple(value.dims[dim] for dim in kept), value.kind, read))
    return unsqueezed(out, sorted(over)) if keep else out


@_of_views
def unsqueezed(value: Lazy, places: Sequence[int]) -> Lazy:
    """The tensor with extra dimensions of size one at these indices of the result."""
    rank = len(value.dims) + len(places)
    old = iter(value.dims)
    dims = tuple(() if dim in places else next(old) for dim in range(rank))
    kept = [dim for dim in range(rank) if dim not in places]
    return replace(value, dims=dims, read=lambda at: value.read(tuple(at[dim] for dim in kept)))


def result(name: str, value: Lazy, kind: Any) -> Operand:
    """The stage of a result, in torch's format."""
    shape, element = _stage(value)
    return compute(name, shape, lambda *at: element(*at).cast(our_name(str(kind).rpartition(".")[2])))


def dims_of(x: Lazy, dim: Any) -> list[int]:
    """Dimensions given as a number, a list, or None for all."""
    rank = len(x.dims)
    every = range(rank) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return [one % max(rank, 1) for one in every] if rank else []


def only(places: tuple[Any, ...]) -> Position:
    """The index of a dimension with one factor, or of size one."""
    return places[0] if places else Position(Index())


def along_one(x: Lazy, dim: int) -> Lazy:
    """The tensor with a single index for a dimension."""
    return moved(x, dim, x.shape[dim], lambda at: at) if len(x.dims[dim]) > 1 else x


@_of_views
def expanded(x: Lazy, shape: Sequence[int]) -> Lazy:
    like = constant(0, x.kind, [x.shape[n - len(shape)] if size == -1 else size for n, size in enumerate(shape)])
    dims = aligned((x, like))
    return Lazy(dims, x.kind, lambda at: x.at(dims, at))


def reshaped(x: Lazy, shape: Sequence[int]) -> Lazy:
    rest = prod(size for size in shape if size != -1)
    return viewed(x, [prod(x.shape) // rest if size == -1 else size for size in shape])


def squeezed(x: Lazy, dims: Any = None) -> Lazy:
    gone = [dim for dim in dims_of(x, dims) if x.shape[dim] == 1]
    return viewed(x, [size for dim, size in enumerate(x.shape) if dim not in gone])


def with_one(x: Lazy, dim: int) -> Lazy:
    return unsqueezed(x, [dim % (len(x.dims) + 1)])


def sliced(x: Lazy, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Lazy:
    along = dims_of(x, dim)[0]
    chosen = range(*slice(start, end, step).indices(x.shape[along]))
    return x if len(chosen) == x.shape[along] else moved(x, along, len(chosen), lambda at: at * step + chosen.start)


def selected(x: Lazy, dim: int, index: int) -> Lazy:
    along = dims_of(x, dim)[0]
    one = moved(x, along, 1, lambda _: Position(Index((), index % x.shape[along])))
    return viewed(one, [size for n, size in enumerate(x.shape) if n != along])


def flipped(x: Lazy, dims: Sequence[int]) -> Lazy:
    for dim in dims_of(x, dims):
        x = moved(x, dim, x.shape[dim], partial(lambda last, at: last - at, x.shape[dim] - 1))
    return x


def full(shape: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Lazy:
    usual = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else None
    return constant(value, dtype or usual or torch.get_default_dtype(), shape)


def full_like(x: Lazy, value: Any, *, dtype: Any = None, **_: Any) -> Lazy:
    return constant(value, dtype or x.kind, x.shape)


def arange(start: float, end: float, step: float = 1, *, dtype: Any = None, **_: Any) -> Lazy:
    first, last, by = map(int, (start, end, step))
    if (first, last, by) != (start, end, step):
        raise BadInput(f"arange from {start} to {end} in steps of {step}", allowed="whole numbers")
    whole = all(isinstance(one, int) for one in (start, end, step))
    kind = dtype or (torch.int64 if whole else torch.get_default_dtype())
    dims = ((n,) if (n := len(range(first, last, by))) > 1 else (),)
    return Lazy(dims, kind, lambda at: (only(at[0]) * by + first).cast(wide(kind)))


def _copied(x: Lazy, *, dtype: Any = None, **_: Any) -> Lazy:
    return x if dtype is None else x.as_kind(dtype)


def _name() -> str:
    return f"s{next(_names)}"


def _stage(value: Lazy) -> tuple[list[int], Callable[..., Element]]:
    shape = [factor for dim in value.dims for factor in dim]

    def element(*at: Position) -> Element:
        flat = iter(at)
        return value.read(tuple(tuple(next(flat) for _ in dim) for dim in value.dims))

    return shape or [1], element


def _of_stage(operand: Operand, value: Lazy) -> Lazy:
    return Lazy(value.dims, value.kind, lambda at: operand[tuple(one for dim in at for one in dim) or (0,)], plain=True)


def _plain(size: int) -> Factors:
    return (size,) if size > 1 else ()


def _finer(one: Factors, other: Factors) -> Factors:
    """The coarsest factors from which both can be merged; if there are none, the other's, for integers."""
    if not one or not other or one == other:
        return one or other
    ends = sorted({prod(own[n:]) for own in (one, other) for n in range(len(own) + 1)})
    if any(large % small for small, large in pairwise(ends)):
        return other
    return tuple(large // small for small, large in pairwise(ends))[::-1]


def _regrouped(of: Factors, to: Factors, at: tuple[Any, ...]) -> tuple[Any, ...]:
    """Indices of the factors `of` as indices of `to`; the two products are equal, or one is empty."""
    if not to:
        return ()
    if of == to:
        return at
    out, flat, size = list[Any](), list(zip(of, at, strict=True)), 1
    if _finer(of, to) == of:
        for factor in to:
            index: Any = Position(Index())
            size = 1
            while size < factor:
                own, place = flat.pop(0)
                index, size = index * own + place, size * own
            out.append(index)
        return tuple(out)
    whole: Any = Position(Index())
    for own, place in flat:
        whole = whole * own + place
    for n, factor in enumerate(to):
        inner = prod(to[n + 1 :])
        part = whole // inner if inner > 1 else whole
        out.append(part % factor if n else part)
    return tuple(out)


def _swapped(rank: int, a: int, b: int) -> list[int]:
    order = [*range(rank)]
    order[a], order[b] = order[b], order[a]
    return order


# By torch's names.
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "expand": lambda x, shape, **_: expanded(x, shape),
    "view": reshaped,
    "reshape": reshaped,
    "_unsafe_view": reshaped,
    "permute": lambda x, order: permuted(x, [dim % len(order) for dim in order]),
    "t": lambda x: permuted(x, [*range(len(x.dims))][::-1]),
    "transpose": lambda x, a, b: permuted(x, _swapped(len(x.dims), a, b)),
    "squeeze": squeezed,
    "unsqueeze": with_one,
    "slice": sliced,
    "flip": flipped,
    "cat": lambda tensors, dim=0: joined(tensors, dim % len(tensors[0].dims)),
    "select": selected,
    "full": full,
    "full_like": full_like,
    "scalar_tensor": lambda value, **named: full((), value, **named),
    "arange": arange,
    "_to_copy": _copied,
    **dict.fromkeys(("clone", "alias", "detach", "contiguous", "lift_fresh_copy"), lambda x, *_, **__: x),
}
