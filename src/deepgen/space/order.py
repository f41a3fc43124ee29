"""The knob order of a diagram, which determines how many states it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log2
from operator import add
from random import Random

from deepgen.space.engine import Budget
from deepgen.space.estimate import Sample, sharp_combinations
from deepgen.space.expr import Expr
from deepgen.space.nodes import Nodes
from deepgen.space.rows import Array

_SHUFFLES = 6
_OF_THE_PLACES = 0.6  # improving an order tries every knob in every place, of which this share needs new estimates
_NEAR = 4  # sets of knobs that differ in fewer than this share corrections


def quick_order(
    nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr], starts: int | None = None
) -> list[str]:
    """A good order at little cost: the number of states is bounded by the combinations of knobs that are still needed.

    `starts` is the number of knobs tried as the first one; None means all.
    """
    names = list(allowed)
    bits = {name: 1 << i for i, name in enumerate(names)}
    scopes = [sum(bits[n] for n in nodes.scope(c)) for c in constraints]
    logs = [log2(len(allowed[n])) if len(allowed[n]) > 1 else 0.0 for n in names]

    def open_values(assigned: int) -> float:
        live = 0
        for scope in scopes:
            if scope & ~assigned:
                live |= scope & assigned
        return added([log for i, log in enumerate(logs) if live >> i & 1])

    return [names[i] for i in _Search(len(names), scopes, open_values).best(starts)]


def added(values: Iterable[float]) -> float:
    """The sum from left to right. From Python 3.12 on, sum() compensates rounding errors, so ties would break
    differently.

    Orders, and with them the ranks of configs, must not depend on Python's version.
    """
    return reduce(add, values, 0.0)


class Planner:
    """Better orders for wide spaces, from states counted around random configs. Takes a second or two.

    Estimates have errors: if an order turns out wide, the actual numbers of states correct them, and the next plan
    avoids the problem of the last.
    """

    def __init__(self, nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr], budget: Budget) -> None:
        combinations = sharp_combinations(nodes, allowed, constraints)
        sample = Sample(nodes, allowed, constraints, combinations, budget)
        self.names = sample.names
        budget.expect(len(sample.names) ** 2 * sample.cost * _OF_THE_PLACES)
        self._search = _Search(len(sample.names), sample.scopes, sample.open)
        number = {name: i for i, name in enumerate(sample.names)}
        groups = [[number[n] for n in group] for group in sample.groups]
        blocks = _blocks(groups, sample.scopes)
        # Moving single knobs gets stuck: start from an order of whole groups, and from a greedy one.
        self._by_blocks = self._search.by_blocks(blocks)
        self._orders = [self._search.improve(s) for s in (self._by_blocks, *self._search.from_busiest(1))]

    def best(self) -> list[str]:
        """The order that currently looks best."""
        return [self.names[i] for i in min(self._orders, key=self._search.cost)]

    def by_blocks(self) -> list[str]:
        """Whole groups of knobs one after another: rarely the best order, but its estimate is the most reliable."""
        return [self.names[i] for i in self._by_blocks]

    def learn(self, order: list[str], states: list[int]) -> None:
        """Correct the estimates: after the first knobs of an order there were actually this many states."""
        self._search.learn([self.names.index(n) for n in order], states)
        promising = sorted(self._orders, key=self._search.cost)[:2]
        self._orders = [*self._orders, *(self._search.improve(o) for o in promising)]


@dataclass(frozen=True)
class KnobBlock:
    """A group of knobs, and single knobs that are connected only to these."""

    core: list[int]
    tied: list[int]

    @property
    def mask(self) -> int:
        return sum(1 << i for i in (*self.core, *self.tied))


def _blocks(groups: list[list[int]], scopes: list[int]) -> list[KnobBlock]:
    masks = [sum(1 << i for i in group) for group in groups]
    tied: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        reach = 0
        for scope in scopes:
            if scope & masks[place]:
                reach |= scope
        homes = [p for p, mask in enumerate(masks) if p != place and mask & reach]
        if len(group) == 1 and len(homes) == 1 and len(groups[homes[0]]) > 1:
            tied.setdefault(homes[0], []).append(group[0])
    placed = {i for single in tied.values() for i in single}
    return [KnobBlock(g, tied.get(p, [])) for p, g in enumerate(groups) if not (len(g) == 1 and g[0] in placed)]


class _Search:
    """Orders of knobs 0..n-1 and their cost: the number of states after each prefix, summed."""

    def __init__(self, n: int, scopes: list[int], open_states: Callable[[int], float]) -> None:
        self.n, self.scopes = n, scopes
        self._open_states = open_states
        self._estimates: dict[int, float] = {}
        self._learned: dict[int, float] = {}  # by set of knobs, the logarithm of its estimate's error
        self._states: dict[int, float] = {}
        self._weight = [sum(s >> i & 1 for s in scopes) for i in range(n)]

    def states(self, assigned: int) -> float:
        cached = self._states.get(assigned)
        if cached is None:
            cached = self._states[assigned] = 2 ** (self._estimate(assigned) + self._correction(assigned))
        return cached

    def _estimate(self, assigned: int) -> float:
        if assigned not in self._estimates:
            self._estimates[assigned] = self._open_states(assigned)
        return self._estimates[assigned]

    def _correction(self, assigned: int) -> float:
        corrections = [
            error * (1 - apart / _NEAR)
            for learned, error in self._learned.items()
            if (apart := (learned ^ assigned).bit_count()) < _NEAR
        ]
        return max(corrections, default=0.0)

    def learn(self, order: list[int], states: list[int]) -> None:
        assigned = 0
        for knob, met in zip(order, states, strict=False):
            assigned |= 1 << knob
            self._learned[assigned] = log2(max(met, 1)) - self._estimate(assigned)
        self._states.clear()

    def cost(self, order: list[int]) -> float:
        assigned, states = 0, 0.0
        for i in order:
            assigned |= 1 << i
            states += self.states(assigned)
        return states

    def best(self, starts: int | None = None) -> list[int]:
        """The best greedy order over all starts, or over the busiest ones."""
        best: list[int] = []
        bound = float("inf")
        for start in range(self.n) if starts is None else self._busiest(starts):
            order = self._greedy(start, bound)
            if order is not None:
                best, bound = order
        return best

    def by_blocks(self, blocks: list[KnobBlock]) -> list[int]:
        """An order that keeps blocks whole: the best found by moving blocks, from several random orders of them."""

        def cost(order: list[int]) -> float:
            assigned, states = 0, 0.0
            for place in order:
                assigned |= blocks[place].mask
                states += self.states(assigned)
            return states

        rng = Random(0)
        shuffled = [rng.sample(range(len(blocks)), len(blocks)) for _ in range(_SHUFFLES)]
        best = min((_moved_to_best(order, cost) for order in shuffled), key=cost)
        order: list[int] = []
        assigned = 0
        for place in best:
            core, tied = list(blocks[place].core), list(blocks[place].tied)
            while core or tied:
                # A knob that closes all its connections costs nothing. Any other one multiplies the states: core first.
                closing = [i for i in tied if self.states(assigned | 1 << i) <= self.states(assigned)]
                pick = (closing or sorted(core or tied, key=lambda i: self.states(assigned | 1 << i)))[0]
                (core if pick in core else tied).remove(pick)
                order.append(pick)
                assigned |= 1 << pick
        return order

    def from_busiest(self, n: int) -> list[list[int]]:
        """The greedy orders that start from the knobs used by the most requirements."""
        orders = [self._greedy(i, float("inf")) for i in self._busiest(n)]
        return [f[0] for f in orders if f is not None]

    def _busiest(self, n: int) -> list[int]:
        return sorted(range(self.n), key=lambda i: -self._weight[i])[:n]

    def _greedy(self, start: int, bound: float) -> tuple[list[int], float] | None:
        """Choose the next knob by the fewest open states; None as soon as the bound is exceeded."""
        order = [start]
        assigned = 1 << start
        cost = self.states(assigned)
        while len(order) < self.n:
            near = 0
            for scope in self.scopes:
                if scope & assigned:
                    near |= scope
            near &= ~assigned
            _, _, pick = min([(self.states(assigned | 1 << i), -self._weight[i], i) for i in _ones(near)])
            assigned |= 1 << pick
            order.append(pick)
            cost += self.states(assigned)
            if cost >= bound:
                return None
        return order, cost

    def improve(self, order: list[int]) -> list[int]:
        return _moved_to_best(order, self.cost)


def _moved_to_best(order: list[int], cost: Callable[[list[int]], float]) -> list[int]:
    """Repeatedly move one item to where it costs least, as long as that helps."""
    now, improved = cost(order), True
    while improved:
        improved = False
        for item in list(order):
            rest = [i for i in order if i != item]
            moved = min(([*rest[:p], item, *rest[p:]] for p in range(len(order))), key=cost)
            if cost(moved) < now * 0.99:
                order, now, improved = moved, cost(moved), True
    return order


def _ones(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
