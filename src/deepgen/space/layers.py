"""Layers of a diagram: the edges of one variable, the number of points below each edge, and how states are merged.

Edges are sorted by the state they leave and by place; `before` is the number of points below all earlier edges of the
layer, so that one search finds the edge of a rank, whatever the state.

A state keeps the part of each constraint that is still open (`Active`). A constraint on few knobs is a table of allowed
values, reduced so that equal remainders share a node; a state keeps the node. A constraint whose table would be too
large is first evaluated knob by knob (see `staged`), and becomes a table as soon as the rest of it is small enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.definition import Knob
from deepgen.space.engine import Budget, TooWide
from deepgen.space.expr import Expr, walk
from deepgen.space.nodes import Nodes
from deepgen.space.rows import Array
from deepgen.space.staged import Slots, Staged

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


TABLE_CELLS = 1 << 19
_CELLS_FOR_A_ROW = 8

State: TypeAlias = "Ints | Slots"  # for a table, the node of each row; for a staged constraint, its slots


@dataclass(frozen=True)
class Domains:
    """The knobs, and the allowed places of each."""

    nodes: Nodes
    knobs: Mapping[str, Knob]
    allowed: Mapping[str, Ints]
    budget: Budget

    def sizes(self, names: Sequence[str]) -> list[int]:
        return [len(self.allowed[n]) for n in names]


class Active:
    """One constraint; `order` lists its knobs in the diagram's order, of which the first `done` have values."""

    def __init__(self, on: Domains, expr: Expr, order: list[str]) -> None:
        self.on, self.expr, self.order = on, expr, order
        self.done = 0
        self.levels: list[Ints] = []
        self.staged: Staged | None = None
        self.state: State = {}
        if expr.op == "points":
            self.levels, self.state = _trie(on, expr, order), np.zeros(1, dtype=np.int64)
        elif prod(on.sizes(order)) <= TABLE_CELLS:
            truth = evaluate_arrays(on.nodes, expr, _grid(on, order))
            self._become_table(truth, 1, np.zeros(1, dtype=np.int64))
        elif any(node.op == "points" for node in walk(expr)):
            raise TooWide("a list of points inside a larger condition is too long to be compiled")
        else:
            self.staged = Staged(on.nodes, expr, order)

    def start(self, states: int) -> None:
        """Begin before any of its knobs has a value, when all states of the layer are equal."""
        if self.staged is None:
            self.state = np.repeat(self.state, states)  # type: ignore[arg-type]

    def columns(self) -> list[Ints]:
        return list(self.state.values()) if isinstance(self.state, dict) else [self.state]

    def taken(self, rows: Ints | slice) -> State:
        if isinstance(self.state, dict):
            return {slot: array[rows] for slot, array in self.state.items()}
        return self.state[rows]

    def follow(self, state: State) -> Ints | None:
        """The next node of a table, by row and place of the next knob; None while staged."""
        return None if isinstance(state, dict) else self.levels[self.done][state]

    def advance(self, state: State, places: Array) -> tuple[State, Array]:
        """Advance a staged constraint by one knob: its slots, and which rows can still come true."""
        assert self.staged is not None and isinstance(state, dict)
        self.on.budget.spend(self.staged.cost(places.size))
        return self.staged.advance(state, self.done, self.done + 1, {self.order[self.done]: places})

    def settle(self, rows: int) -> None:
        """Become a table if the rest is small enough: rows that differ only in what cannot matter merge."""
        if self.staged is None or self.done == len(self.order):
            return
        left = self.order[self.done :]
        tail, most = prod(self.on.sizes(left)), max(TABLE_CELLS, _CELLS_FOR_A_ROW * rows)
        if tail > most:
            return
        numbers, first = merge(self.columns(), rows)
        if len(first) * tail <= most:
            starts = {slot: c[first].reshape([-1] + [1] * len(left)) for slot, c in self.state.items()}  # type: ignore[union-attr]
            truth = self.staged.finish(starts, self.done, _grid(self.on, left))
            self.staged = None
            self._become_table(truth, len(first), numbers)

    def _become_table(self, truth: Array, starts: int, numbers: Ints) -> None:
        sizes = self.on.sizes(self.order[self.done :])
        roots, levels = reduce_table(np.broadcast_to(truth, (starts, *sizes)).astype(np.bool_, copy=False))
        # A start that can never come true has the node -1: the last row, which has no continuation.
        levels[0] = np.vstack([levels[0], np.full((1, sizes[0]), -1, dtype=np.int32)])
        self.levels = [*([np.empty((0, 0))] * self.done), *levels]
        self.state = roots[numbers]


def _grid(on: Domains, names: list[str]) -> dict[str, Array]:
    """The places of each knob along its own axis; the first axis is for the starting states."""
    axes = range(len(names) + 1)
    return {n: on.allowed[n].reshape([-1 if a == i + 1 else 1 for a in axes]) for i, n in enumerate(names)}


def _trie(on: Domains, expr: Expr, order: list[str]) -> list[Ints]:
    """A trie of listed points, as places of the knobs in order; points with a disallowed value are left out."""
    names, rows = expr.data
    by_name = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    keep = np.ones(len(rows), dtype=np.bool_)
    for name, values in by_name.items():
        if name in on.nodes.fixed:
            keep &= np.array([v == on.nodes.fixed[name] for v in values], dtype=np.bool_)
    columns = []
    for name in order:
        values = on.knobs[name].values
        # Nodes count allowed places; an absent knob comes after all values.
        number = {(values[p] if p < len(values) else None): i for i, p in enumerate(on.allowed[name].tolist())}
        column = np.array([number.get(v, -1) for v in by_name[name]], dtype=np.int64)
        keep &= column >= 0
        columns.append(column)
    return trie(np.stack(columns, axis=1)[keep], on.sizes(order))
