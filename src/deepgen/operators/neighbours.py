"""Shapes near an operator's own, and odd ones: a kernel that is correct at one shape may be wrong at the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import frexp, ldexp, prod
from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from deepgen.operators.base import Operator
    from deepgen.operators.signature import Param

    O = TypeVar("O", bound=Operator)  # noqa: E741

_PERIOD = 256  # tiles are mostly powers of two: a size reduced by multiples of this keeps its remainder
_WHOLE = 4e9  # operations: up to this the reference of the full shape takes a second or two at most
_WHOLE_ELEMENTS = 1 << 22  # of a tensor: the same for a user's reference, which is called for each set of inputs
_SMALL, _GRANULE = (7, 5, 3), 16
_FAR, _FAR_TIMES = 70_001, 4  # beyond 16-bit counters, and beyond the tuned size
_FAR_ELEMENTS = 1 << 21  # of a tensor in far shapes: a user's reference may process it element by element
_DIGITS = 11  # binary digits of f16


def neighbours(operator: O) -> tuple[O, ...]:
    """The operator with each size one less and one more, with all sizes odd, with all small, and with one far larger.

    Large sizes are reduced first: errors near a shape occur at its edges, and references take time.
    """
    own = dict(operator.sizes())
    results: dict[tuple[int, ...], O] = {}
    for sizes in _candidates(own, whole=_moderate(operator, _WHOLE_ELEMENTS)):
        key = tuple(sizes.values())
        if sizes == own or key in results or min(key, default=0) < 1:
            continue
        resized = _resized(operator, sizes)
        if resized is not None:
            results[key] = resized
    far = next(_far(operator, own), None)
    return (*results.values(), *([] if far is None else [far]))


def _far(operator: O, own: Mapping[str, int]) -> Iterator[O]:
    """Shapes with one size far beyond the tuned one, the largest size first, and the others small or reduced."""
    *_, small = _candidates(own, whole=False)
    for others in (small, {name: _cut(size) for name, size in own.items()}):
        for name in sorted(own, key=lambda name: -own[name]):
            resized = _resized(operator, {**others, name: max(_FAR, _FAR_TIMES * own[name] + 1)})
            if resized is not None and _moderate(resized):
                yield resized


def multiples(operator: O) -> tuple[O, ...]:
    """Shapes for kernels that support no neighbour, such as those compiled for multiples of 16: near and far ones."""
    own = dict(operator.sizes())
    cut, few = ({name: _cut(s) for name, s in own.items()}, {n: min(s, _GRANULE) for n, s in own.items()})
    near = (
        {name: 2 * s if s > 1 else s for name, s in own.items()},
        {n: s + _PERIOD * (s > 1) for n, s in cut.items()},
    )
    far = (
        {**others, name: own[name] * max(_FAR_TIMES, -(-_FAR // own[name]))}
        for others in (own, few)
        for name in sorted(own, key=lambda name: -own[name])
        if own[name]
    )
    either = (next(filter(None, (_moderate_at(operator, sizes) for sizes in some)), None) for some in (near, far))
    return tuple(one for one in either if one is not None) if operator.neighbours() else ()


def _moderate_at(operator: O, sizes: Mapping[str, int]) -> O | None:
    resized = _resized(operator, sizes)
    return resized if resized is not None and _moderate(resized) else None


def _moderate(operator: Operator, elements: int = _FAR_ELEMENTS) -> bool:
    """Whether its reference is fast enough."""
    return operator.flops() <= _WHOLE and all(prod(t.shape) <= elements for t in operator.tensors())


def variants(operator: O) -> tuple[O, ...]:
    """The operator with two other values of each run-time scalar.

    They are drawn from its declared range. Without one, floats keep their sign and order of magnitude, and integers
    become smaller: they may be a count or an index. Integers below 2 are kept, because they may be flags or divisors;
    a winner then serves no other value.
    """
    own, signature = operator.values(), operator.signature()
    chances = {name: Random(f"{name} {value}") for name, value in own.items()}
    results: dict[str, O] = {}
    for draw in range(2):
        values = {name: _other(value, signature[name], chances[name], draw) for name, value in own.items()}
        if values != own and (resized := _with_values(operator, values)) is not None:
            results.setdefault(repr(values), resized)
    return tuple(results.values())


def _other(value: float, param: Param, chance: Random, draw: int) -> float:
    bounds = None if param.range is None or any(isinstance(end, str) for end in param.range) else param.range
    if not param.dtype.startswith(("f", "bf")):
        if bounds is not None:
            return _another(int(value), int(bounds[0]), int(bounds[1]), chance)
        return value if value < 2 else value - 1 if draw == 0 else int(value) // 2
    if bounds is not None:
        low, high = float(bounds[0]), float(bounds[1])
        return min(high, max(low, _rounded(chance.uniform(low, high))))
    return _rounded((value or 1.0) * (chance.uniform(0.55, 0.95) if draw == 0 else chance.uniform(1.05, 1.95)))


def _another(value: int, low: int, high: int, chance: Random) -> int:
    """An integer of a range, and not this one: a range of two is that of a flag."""
    if low >= high:
        return low
    drawn = chance.randint(low, high - 1)
    return drawn + (drawn >= value)


def _rounded(value: float) -> float:
    """A number that all formats represent exactly: otherwise the reference would get another number than a kernel."""
    mantissa, exponent = frexp(value)
    return ldexp(round(mantissa * 2**_DIGITS), exponent - _DIGITS)


def _with_values(operator: O, values: Mapping[str, float]) -> O | None:
    try:
        other = operator.resized({}, {}, values)
        return other if dict(other.values()) == dict(values) else None
    except Exception:  # a user's own operator may reject a value with any exception
        return None


def _candidates(own: Mapping[str, int], *, whole: bool) -> Iterator[dict[str, int]]:
    near = dict(own) if whole else {name: _cut(size) for name, size in own.items()}
    for name, size in near.items():
        for other in (size - 1, size + 1):
            yield {**near, name: other}
    yield {name: size - 1 + size % 2 if size > 1 else 1 for name, size in near.items()}
    yield {name: min(size, _SMALL[i % len(_SMALL)]) for i, (name, size) in enumerate(near.items())}


def _cut(size: int) -> int:
    return size if size <= 2 * _PERIOD else _PERIOD + size % _PERIOD


def _resized(operator: O, sizes: Mapping[str, int]) -> O | None:
    """The operator with that shape, if possible: some sizes follow from others or are fixed."""
    try:
        resized = operator.resized(sizes, {}, {})
        return resized if dict(resized.sizes()) == dict(sizes) and resized.tensors() and resized.flops() >= 0 else None
    except Exception:  # a user's own operator may reject a shape with any exception
        return None
