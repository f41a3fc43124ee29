"""One layer of a diagram: the edges of one variable, and the number of points below each edge.

Edges are sorted by the state they leave and by place; `before` is the number of points below all earlier edges of the
layer, so that one search finds the edge of a rank, whatever the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """The edges of one variable. It has views of the arrays too, as single lookups in arrays are slow."""

    variable: int
    first: Ints  # by state: its first edge; one more entry at the end
    place: Ints  # by edge
    child: Ints  # by edge
    before: Ints  # by edge: points below earlier edges; one more entry at the end
    base: Ints  # by state: `before` of its first edge
    unit: bool  # every edge leads to exactly one point
    most: int  # the most edges of a state
    first_view: Any
    place_view: Any
    child_view: Any
    before_view: Any


def layer(variable: int, first: Ints, place: Ints, child: Ints, before: Ints) -> Layer:
    unit = before.dtype != object and int(before[-1]) == len(place)
    base = before[first[:-1]]
    most, views = int(np.diff(first).max(initial=1)), map(_view, (first, place, child, before))
    return Layer(variable, first, place, child, before, base, unit, most, *views)


def _view(array: Ints) -> Any:
    return array.tolist() if array.dtype == object else np.ascontiguousarray(array).data


_LARGEST = 1 << 62


@dataclass(frozen=True)
class Edges:
    """One layer before counting: its number of states, and the edges from them, sorted by state and place."""

    states: int
    parent: Ints
    place: Ints
    child: Ints


def count_points(upwards: Iterable[tuple[int, Edges]]) -> tuple[tuple[Layer, ...], int]:
    """The layers from first to last, and the number of points; `upwards` gives variables and edges, last first.

    Each layer's edges are requested only when needed, so that a caller may release its own one by one.
    """
    counts: Ints = np.ones(1, dtype=np.int64)
    number: Ints = np.zeros(1, dtype=np.int64)  # the new number of each remaining state of the layer below
    layers: list[Layer] = []
    for variable, raw in upwards:
        parent, place, child = raw.parent, raw.place, raw.child
        keep = np.flatnonzero(counts[child])
        if len(keep) < len(child):
            parent, place, child = parent[keep], place[keep], child[keep]
        before = _running(counts[child])
        starts = np.flatnonzero(np.diff(parent, prepend=-1))
        first = np.append(starts, len(parent))
        layers.append(layer(variable, first, place.astype(np.int32), number[child].astype(np.int32), before))
        alive = parent[starts]
        counts = np.zeros(raw.states, dtype=before.dtype)
        counts[alive] = before[first[1:]] - before[first[:-1]]
        number = np.zeros(raw.states, dtype=np.int64)
        number[alive] = np.arange(len(alive))
    return tuple(reversed(layers)), int(counts[0])


def edges_of(counted: Layer, places: Collection[int] | None = None) -> Edges:
    """A layer's edges: all of them, or those with these places."""
    parent = np.repeat(np.arange(len(counted.first) - 1), np.diff(counted.first))
    keep = slice(None) if places is None else np.isin(counted.place, list(places))
    return Edges(len(counted.first) - 1, parent[keep], counted.place[keep], counted.child[keep])


def _running(below: Ints) -> Ints:
    """Running totals, in 64 bits if they fit."""
    small = below.dtype != object and float(below.sum(dtype=np.float64)) < _LARGEST
    before = np.zeros(len(below) + 1, dtype=np.int64 if small else object)
    np.cumsum(below if small else below.astype(object), out=before[1:])
    return before
