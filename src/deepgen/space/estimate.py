"""Estimates how many states a set of knobs leaves open, from a few random configs.

Knobs connected by a requirement on few knobs form a group. Around each config one group at a time runs through its
combinations while everything else stays fixed, and the distinct states that the compiler would keep are counted. The
groups are nearly independent, so the product of these numbers estimates the number of states, far beyond what a sample
of configs alone could show.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.engine import Budget
from deepgen.space.expr import Expr
from deepgen.space.layers import merge
from deepgen.space.nodes import Nodes
from deepgen.space.rows import Array
from deepgen.space.staged import Staged

Group = dict[str, Array]  # knobs, and their places in each possible combination
Combinations = list[tuple[frozenset[str], Group]]
_CONFIGS = 3
_WALKERS = 64
_STEPS = 12
_MOST_COMBINATIONS = 512
_TABLE_CELLS = 1 << 20


class Sample:
    """Assignments around a few random configs, and the states that they lead to."""

    def __init__(
        self,
        nodes: Nodes,
        allowed: dict[str, Array],
        constraints: Sequence[Expr],
        combinations: Combinations,
        budget: Budget,
    ) -> None:
        self.nodes, self.names, self.budget = nodes, list(allowed), budget
        self.constraints = list(constraints)
        self.bits = {name: 1 << i for i, name in enumerate(self.names)}
        self.scopes = [sum(self.bits[n] for n in nodes.scope(c)) for c in constraints]
        rng = np.random.default_rng(0)
        self.groups = _groups(allowed, combinations)
        configs = _walk(nodes, self.groups, constraints, rng)
        self.places, self.segment = _vary(self.groups, configs, rng)
        self.rows = len(self.segment)
        self._cache: dict[tuple[int, int], tuple[Array | None, Array]] = {}

    @property
    def cost(self) -> int:
        """The least cost of counting the states for one more set of knobs."""
        every = (Staged(self.nodes, c, sorted(self.nodes.scope(c))).cost(self.rows) for c in self.constraints)
        return max(every, default=0)

    def open(self, assigned: int) -> float:
        """The logarithm of the number of states after the knobs `assigned` (as bits) have values."""
        columns: list[Array] = [self.segment]
        alive = np.ones(self.rows, dtype=np.bool_)
        for index, scope in enumerate(self.scopes):
            if own := scope & assigned:
                column, ok = self._state(index, own)
                alive &= ok
                if column is not None:
                    columns.append(column)
        rows = np.flatnonzero(alive)
        if len(columns) == 1 or len(rows) == 0:
            return 0.0
        _, first = merge([c[rows] for c in columns], len(rows))
        different = np.bincount(self.segment[rows[first]], minlength=_CONFIGS * len(self.groups))
        # Where other knobs leave much room, a group has more states: the config with the most room counts.
        return float(np.log2(np.maximum(different.reshape(_CONFIGS, -1).max(axis=0), 1)).sum())

    def _state(self, index: int, own: int) -> tuple[Array | None, Array]:
        key = (index, own)
        if key not in self._cache:
            scope = [n for n in self.names if self.bits[n] & self.scopes[index]]
            ahead = [n for n in scope if self.bits[n] & own]
            staged = Staged(self.nodes, self.constraints[index], ahead + [n for n in scope if n not in ahead])
            self.budget.spend(staged.cost(self.rows))
            slots, ok = staged.advance({}, 0, len(ahead), {n: self.places[n] for n in ahead})
            column = merge(list(slots.values()), self.rows)[0] if slots else None
            self._cache[key] = (column, np.broadcast_to(ok, (self.rows,)))
        return self._cache[key]


def sharp_combinations(nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr]) -> Combinations:
    """The combinations that meet each requirement on few knobs, those with the most knobs first.

    From then on the nodes' bounds are tightened with them.
    """
    combinations, tables = [], []
    for expr in sorted(constraints, key=lambda c: -len(nodes.scope(c))):
        names = sorted(nodes.scope(expr))
        sizes = [len(allowed[n]) for n in names]
        if not names or expr.op == "points" or prod(sizes) > _TABLE_CELLS:
            continue
        grid = {n: allowed[n].reshape([-1 if a == b else 1 for b in range(len(names))]) for a, n in enumerate(names)}
        met = np.nonzero(np.broadcast_to(evaluate_arrays(nodes, expr, grid), sizes))
        if len(met[0]):
            combinations.append((nodes.scope(expr), {n: allowed[n][m] for n, m in zip(names, met, strict=True)}))
            tables.append(expr)
    nodes.sharpen(combinations, tables, constraints)
    return combinations


def _groups(allowed: dict[str, Array], combinations: Combinations) -> list[Group]:
    groups: list[Group] = []
    taken: set[str] = set()
    for names, rows in combinations:
        if not names & taken:
            taken |= names
            groups.append(rows)
    return groups + [{name: own} for name, own in allowed.items() if name not in taken]


def _size(group: Group) -> int:
    return len(next(iter(group.values())))


def _walk(nodes: Nodes, groups: list[Group], constraints: Sequence[Expr], rng: np.random.Generator) -> dict[str, Array]:
    """A few configs that meet all requirements, as far as a random walk finds them.

    One group at a time gets new places, and a walker accepts them if they violate no more requirements than before.
    """

    roomy: Array = np.zeros(_WALKERS)

    def drawn(group: Group) -> dict[str, Array]:
        rows = rng.integers(0, _size(group), _WALKERS)
        return {n: places[rows] for n, places in group.items()}

    def breaks(places: dict[str, Array], constraint: Expr) -> Array:
        return ~np.broadcast_to(evaluate_arrays(nodes, constraint, places), (_WALKERS,))

    places = {n: p for group in groups for n, p in drawn(group).items()}
    broken = [breaks(places, c) for c in constraints]
    now = sum(broken, start=np.zeros(_WALKERS, dtype=np.int64))
    for step in range(_STEPS * len(groups)):
        group = groups[step % len(groups)]
        moved = {**places, **drawn(group)}
        after = [
            breaks(moved, c) if nodes.scope(c) & group.keys() else same
            for c, same in zip(constraints, broken, strict=True)
        ]
        then = sum(after, start=np.zeros(_WALKERS, dtype=np.int64))
        # How often a change was possible shows how much room there is around a walker.
        roomy = 0.9 * roomy + (then == 0)
        taken = then <= now
        places = {n: np.where(taken, moved[n], p) if n in group else p for n, p in places.items()}
        broken = [np.where(taken, a, b) for a, b in zip(after, broken, strict=True)]
        now = np.minimum(then, now)
    best = np.lexsort((-roomy, now))[:_CONFIGS]
    return {n: p[best] for n, p in places.items()}


def _vary(groups: list[Group], configs: dict[str, Array], rng: np.random.Generator) -> tuple[dict[str, Array], Array]:
    """Around each config, each group in its combinations; and which config and group each row belongs to."""
    columns: dict[str, list[Array]] = {n: [] for n in configs}
    segments: list[Array] = []
    for config in range(_CONFIGS):
        for group in groups:
            size = min(_size(group), _MOST_COMBINATIONS)
            rows = rng.choice(_size(group), size, replace=False)
            for name, places in configs.items():
                own = group[name][rows] if name in group else np.full(size, places[config])
                columns[name].append(own)
            segments.append(np.full(size, len(segments)))
    return {n: np.concatenate(c) for n, c in columns.items()}, np.concatenate(segments)
