"""How many states a set of knobs leaves open, estimated on a sample.

A few thousand random assignments are reduced to the states that the compiler would keep of them; how many of these are
different, and how many were seen only once or twice, says how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod

import numpy as np

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.expr import Expr
from deepgen.space.nodes import Array, Nodes
from deepgen.space.staged import Staged
from deepgen.space.tables import merge

Combinations = list[tuple[frozenset[str], dict[str, Array]]]
_ROWS = 1024
_STEPS = 20
_TABLE_CELLS = 1 << 20


class Sample:
    """Random assignments that meet the small requirements, and the states they fall into."""

    def __init__(
        self, nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr], combinations: Combinations
    ) -> None:
        self.nodes, self.names = nodes, list(allowed)
        self.constraints = list(constraints)
        self.bits = {name: 1 << i for i, name in enumerate(self.names)}
        self.scopes = [sum(self.bits[n] for n in nodes.scope(c)) for c in constraints]
        self.places = _draw(nodes, allowed, constraints, combinations)
        self._known: dict[tuple[int, int], tuple[Array | None, Array]] = {}

    def open(self, assigned: int) -> float:
        """The logarithm of the number of states after the knobs `assigned` (as bits) have values."""
        columns: list[Array] = []
        alive = np.ones(_ROWS, dtype=np.bool_)
        for index, scope in enumerate(self.scopes):
            own = scope & assigned
            if own:
                column, ok = self._state(index, own)
                alive &= ok
                if column is not None:
                    columns.append(column)
        if not columns:
            return 0.0
        rows = np.flatnonzero(alive)
        if len(rows) == 0:
            return 0.0
        numbers, first = merge([c[rows] for c in columns], len(rows))
        seen = np.bincount(numbers, minlength=len(first))
        once, twice = int((seen == 1).sum()), int((seen == 2).sum())
        # Chao's estimate of how many kinds there are in all, from those that a sample met once and twice.
        return log2(len(first) + once * (once - 1) / (2 * (twice + 1)))

    def _state(self, index: int, own: int) -> tuple[Array | None, Array]:
        key = (index, own)
        if key not in self._known:
            expr = self.constraints[index]
            scope = [n for n in self.names if self.bits[n] & self.scopes[index]]
            ahead = [n for n in scope if self.bits[n] & own]
            staged = Staged(self.nodes, expr, ahead + [n for n in scope if not self.bits[n] & own])
            slots, ok = staged.advance({}, 0, len(ahead), {n: self.places[n] for n in ahead})
            column = merge(list(slots.values()), _ROWS)[0] if slots else None
            self._known[key] = (column, np.broadcast_to(ok, (_ROWS,)))
        return self._known[key]


def small_combinations(nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr]) -> Combinations:
    """The combinations that meet each requirement on few knobs, those on the most knobs first."""
    found = []
    for expr in sorted(constraints, key=lambda c: -len(nodes.scope(c))):
        names = sorted(nodes.scope(expr))
        sizes = [len(allowed[n]) for n in names]
        if expr.op == "points" or prod(sizes) > _TABLE_CELLS:
            continue
        grid = {n: allowed[n].reshape([-1 if a == b else 1 for b in range(len(names))]) for a, n in enumerate(names)}
        met = np.nonzero(np.broadcast_to(evaluate_arrays(nodes, expr, grid), sizes))
        if len(met[0]):
            found.append((nodes.scope(expr), {n: allowed[n][m] for n, m in zip(names, met, strict=True)}))
    return found


def _draw(
    nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr], combinations: Combinations
) -> dict[str, Array]:
    """Assignments that meet all requirements, as far as a random walk finds them.

    One group of knobs at a time gets new places, and an assignment keeps them where it breaks no more than before.
    """
    rng = np.random.default_rng(0)
    groups: list[dict[str, Array]] = []
    taken: set[str] = set()
    for names, rows in combinations:
        if not names & taken:
            taken |= names
            groups.append({n: rows[n] for n in sorted(names)})
    groups += [{name: own} for name, own in allowed.items() if name not in taken]

    def fresh(group: dict[str, Array]) -> dict[str, Array]:
        drawn = rng.integers(0, len(next(iter(group.values()))), _ROWS)
        return {n: rows[drawn] for n, rows in group.items()}

    def broken(places: dict[str, Array]) -> Array:
        return sum((~evaluate_arrays(nodes, c, places)).astype(np.int64) for c in constraints)  # type: ignore[return-value]

    places = {n: p for group in groups for n, p in fresh(group).items()}
    now = broken(places)
    for step in range(_STEPS * len(groups)):
        moved = {**places, **fresh(groups[step % len(groups)])}
        then = broken(moved)
        better = then <= now
        places = {n: np.where(better, moved[n], p) for n, p in places.items()}
        now = np.where(better, then, now)
    return places
