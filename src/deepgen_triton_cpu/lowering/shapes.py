"""Shapes and indices: where an element of a view lies in what it is a view of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Index:
    """An index in C, and how many loops must be open before it has a value."""

    text: str
    level: int = 0


ZERO = Index("0")


def strides(shape: Sequence[int]) -> list[int]:
    """Of a row-major tensor."""
    return [prod(shape[n + 1 :]) for n in range(len(shape))]


def linear(shape: Sequence[int], indices: Sequence[Index]) -> Index:
    """The place of an element in a row-major buffer."""
    parts, level = [], 0
    for index, size, stride in zip(indices, shape, strides(shape), strict=True):
        if size == 1 or index.text == "0":
            continue
        parts.append(index.text if stride == 1 else f"{index.text} * {stride}")
        level = max(level, index.level)
    if not parts:
        return ZERO
    return Index(parts[0] if len(parts) == 1 else f"({' + '.join(parts)})", level)


def reshaped(source: Sequence[int], shape: Sequence[int], indices: Sequence[Index]) -> list[Index]:
    """Indices into `source` of an element of the same tensor in another shape."""
    out: list[Index] = [ZERO] * len(source)
    for theirs, ours in _groups(source, shape):
        wide = [d for d in theirs if source[d] > 1]
        viewed = [d for d in ours if shape[d] > 1]
        if [source[d] for d in wide] == [shape[d] for d in viewed]:
            for to, of in zip(wide, viewed, strict=True):
                out[to] = indices[of]
            continue
        place = linear([shape[d] for d in ours], [indices[d] for d in ours])
        total = prod(source[d] for d in theirs)
        for d in wide:
            size = source[d]
            inner = prod(source[e] for e in theirs if e > d)
            text = place.text if inner == 1 else f"({place.text} / {inner})"
            out[d] = Index(text if size * inner == total else f"({text} % {size})", place.level)
    return out


def reshaped_dimension(source: Sequence[int], shape: Sequence[int], dimension: int) -> int | None:
    """The dimension of `source` that a dimension of the new shape is; None where it is a part, or made of several."""
    for theirs, ours in _groups(source, shape):
        if dimension in ours:
            wide = [d for d in theirs if source[d] > 1]
            viewed = [d for d in ours if shape[d] > 1]
            if [source[d] for d in wide] == [shape[d] for d in viewed] and dimension in viewed:
                return wide[viewed.index(dimension)]
    return None


def _groups(source: Sequence[int], shape: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions of both that hold the same number of elements."""
    groups: list[tuple[list[int], list[int]]] = []
    one = other = 0
    while one < len(source) or other < len(shape):
        theirs: list[int] = []
        ours: list[int] = []
        left = right = 1
        while True:
            if left <= right and one < len(source) and not (left == right and theirs and ours and source[one] > 1):
                left *= source[one]
                theirs.append(one)
                one += 1
            elif other < len(shape) and not (left == right and theirs and ours and shape[other] > 1):
                right *= shape[other]
                ours.append(other)
                other += 1
            else:
                break
        groups.append((theirs, ours))
    return groups
