"""A partially evaluated constraint: the part of it that each state of a layer keeps.

A constraint on few knobs is a table of allowed values, reduced so that equal remainders share a node; a state keeps the
node. A constraint whose table would be too large is first evaluated knob by knob (see `staged`), and becomes a table as
soon as the rest of it is small enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.definition import Knob
from deepgen.space.engine import Budget, TooWide
from deepgen.space.expr import Expr, walk
from deepgen.space.layers import Ints, merge, reduce_table, trie
from deepgen.space.nodes import Nodes
from deepgen.space.rows import Array
from deepgen.space.staged import Slots, Staged

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
