"""Layers of a diagram: the edges of one variable, the number of points below each edge, and how states are merged.

Edges are sorted by the state they leave and by place; `before` is the number of points below all earlier edges of the
layer, so that one search finds the edge of a rank, whatever the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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


# Integer keys and truth tables, with which the compiler merges states.

_LARGEST_KEY = 1 << 62


def factorize(codes: Ints, span: int) -> tuple[Ints, Ints]:
    """Number the distinct codes, all in [0, span): (the number of each code, one index for each number)."""
    if span <= 4 * len(codes) + 4096:  # a table of flags is several times as fast as sorting
        seen = np.zeros(span, dtype=np.bool_)
        seen[codes] = True
        number: Ints = np.cumsum(seen, dtype=np.int32) - 1
        numbers = number[codes]
        first = np.empty(int(number[-1]) + 1 if span else 0, dtype=np.int64)
        first[numbers] = np.arange(len(codes))
        return numbers, first
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    return numbers.reshape(-1), first


def merge(columns: Sequence[Ints], rows: int) -> tuple[Ints, Ints]:
    """Number the distinct rows of several columns: (the number of each row, one row for each number)."""
    key: Ints = np.zeros(rows, dtype=np.int64)
    span = 1
    for values in columns if rows else ():
        column = values if values.dtype.kind in "bi" else np.unique(values, return_inverse=True)[1].reshape(-1)
        low, width = _range(column)
        if width == 1:
            continue
        if span * width >= _LARGEST_KEY:
            key, first = factorize(key, span)
            span = len(first)
        key = key * width + (column - low)
        span *= width
    if span == 1:
        return np.zeros(rows, dtype=np.int64), np.zeros(min(rows, 1), dtype=np.int64)
    return factorize(key, span)


def _range(column: Ints) -> tuple[Any, int]:
    if column.dtype == np.bool_:
        return 0, 2
    low, high = column.min(), column.max()
    return low, int(high) - int(low) + 1


def reduce_table(grid: npt.NDArray[np.bool_]) -> tuple[Ints, list[Ints]]:
    """Reduce a truth table to a diagram that shares equal remainders.

    `grid` has one axis of starts and one for each variable. Returns the node of each start, and for each variable the
    next node by (node, place); -1 is the node from which nothing is true.
    """
    levels: list[Ints] = []
    nodes = grid.astype(np.int32) - 1  # 0: true, -1: false
    count = 1
    for _ in range(grid.ndim - 1):
        width = nodes.shape[-1]
        rows = nodes.reshape(-1, width)
        numbers, first = _distinct_rows(rows, count)
        table = rows[first]
        dead = (table < 0).all(axis=1)
        renumber = np.where(dead, -1, np.cumsum(~dead) - 1).astype(np.int32)
        levels.append(table[~dead])
        nodes = renumber[numbers].reshape(nodes.shape[:-1])
        count = len(levels[-1])
    return nodes, levels[::-1]


def _distinct_rows(rows: Ints, count: int) -> tuple[Ints, Ints]:
    base = count + 1
    key: Ints = np.zeros(len(rows), dtype=np.int64)
    span = 1
    for place in range(rows.shape[1]):
        if span * base >= _LARGEST_KEY:
            key, first = factorize(key, span)
            span = len(first)
        key = key * base + (rows[:, place] + 1)
        span *= base
    return factorize(key, span)


def trie(rows: Ints, sizes: Sequence[int]) -> list[Ints]:
    """Listed points as a trie: for each variable the next node by (node, place), -1 where no point continues."""
    levels: list[Ints] = []
    nodes: Ints = np.zeros(len(rows), dtype=np.int64)
    count = 1
    for level, size in enumerate(sizes):
        edge = nodes * size + rows[:, level]
        nodes, first = factorize(edge, count * size)
        table = np.full(count * size, -1, dtype=np.int32)
        table[edge[first]] = np.arange(len(first), dtype=np.int32)
        levels.append(table.reshape(count, size))
        count = len(first)
    levels[-1] = np.where(levels[-1] >= 0, 0, -1).astype(np.int32)
    return levels
