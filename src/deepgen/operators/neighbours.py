"""Shapes near an operator's own, and odd ones: a kernel that is right at one shape may be wrong beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from deepgen.operators.base import Operator

    O = TypeVar("O", bound=Operator)  # noqa: E741

_PERIOD = 256  # tiles are mostly powers of two: a size cut by multiples of this keeps its remainder
_WHOLE = 4e9  # operations: up to here the reference of the full shape takes a second or two at most
_SMALL = (7, 5, 3)
_FAR, _FAR_TIMES = 70_001, 4  # beyond what 16 bits count, and beyond what was tuned
_FAR_ELEMENTS = 1 << 21  # of a tensor there: a user's reference may go element by element


def neighbours(operator: O) -> tuple[O, ...]:
    """The operator with each size one less and one more, with all sizes odd, with all small, and with one far larger.

    Large sizes are reduced first: errors near a shape occur at its edges, and references take time.
    """
    own = dict(operator.sizes())
    results: dict[tuple[int, ...], O] = {}
    for sizes in _candidates(own, whole=operator.flops() <= _WHOLE):
        key = tuple(sizes.values())
        if sizes == own or key in results or min(key, default=0) < 1:
            continue
        resized = _resized(operator, sizes)
        if resized is not None:
            results[key] = resized
    far = next(_far(operator, own), None)
    return (*results.values(), *([] if far is None else [far]))


def _far(operator: O, own: Mapping[str, int]) -> Iterator[O]:
    """Where tensors end that were tuned for, others go on: with the largest size that can be, beside small ones."""
    *_, small = _candidates(own, whole=False)
    for others in (small, {name: _cut(size) for name, size in own.items()}):
        for name in sorted(own, key=lambda name: -own[name]):
            resized = _resized(operator, {**others, name: max(_FAR, _FAR_TIMES * own[name] + 1)})
            if resized is None or resized.flops() > _WHOLE:
                continue
            if all(prod(tensor.shape) <= _FAR_ELEMENTS for tensor in resized.tensors()):
                yield resized


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
    except Exception:  # a user's own operator may refuse a shape in any way
        return None
