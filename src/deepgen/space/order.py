"""The order in which the diagram asks for the knobs: it decides how many states have to be told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

from deepgen.space.estimate import Sample, small_combinations
from deepgen.space.expr import Expr
from deepgen.space.nodes import Array, Nodes

_STARTS, _TRIED = 4, 3


def quick_order(nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr]) -> list[str]:
    """A good order at little cost: states are bounded by the combinations of the knobs still needed."""
    names = list(allowed)
    bits = {name: 1 << i for i, name in enumerate(names)}
    scopes = [sum(bits[n] for n in nodes.scope(c)) for c in constraints]
    logs = [log2(len(allowed[n])) if len(allowed[n]) > 1 else 0.0 for n in names]

    def open_values(assigned: int) -> float:
        live = 0
        for scope in scopes:
            if scope & ~assigned:
                live |= scope & assigned
        return sum([log for i, log in enumerate(logs) if live >> i & 1])

    return [names[i] for i in _Search(len(names), scopes, open_values).best()]


def careful_orders(nodes: Nodes, allowed: dict[str, Array], constraints: Sequence[Expr]) -> list[list[str]]:
    """Better orders, the best first, from states counted around random configs: takes a second or two."""
    combinations = small_combinations(nodes, allowed, constraints)
    nodes.sharpen(combinations)
    sample = Sample(nodes, allowed, constraints, combinations)
    search = _Search(len(sample.names), sample.scopes, sample.open)
    quick = [sample.names.index(n) for n in quick_order(nodes, allowed, constraints)]
    # From one start the improvement can get stuck: of several starts the best few are tried.
    starts = sorted([quick, *search.from_busiest(_STARTS)], key=search.cost)[:_TRIED]
    improved = sorted((search.improve(s) for s in starts), key=search.cost)
    return [[sample.names[i] for i in order] for order in improved]


class _Search:
    """Orders of knobs 0..n-1, and what they cost: the number of states after each prefix, summed."""

    def __init__(self, n: int, scopes: list[int], open_states: Callable[[int], float]) -> None:
        self.n, self.scopes = n, scopes
        self._open_states = open_states
        self._known: dict[int, float] = {}
        self._weight = [sum(s >> i & 1 for s in scopes) for i in range(n)]

    def states(self, assigned: int) -> float:
        known = self._known.get(assigned)
        if known is None:
            known = self._known[assigned] = 2 ** self._open_states(assigned)
        return known

    def cost(self, order: list[int]) -> float:
        assigned, states = 0, 0.0
        for i in order:
            assigned |= 1 << i
            states += self.states(assigned)
        return states

    def best(self) -> list[int]:
        """The best of the greedy orders from each start."""
        best: list[int] = []
        bound = float("inf")
        for start in range(self.n):
            found = self._greedy(start, bound)
            if found is not None:
                best, bound = found
        return best

    def from_busiest(self, n: int) -> list[list[int]]:
        """The greedy orders from the knobs that the most requirements read."""
        busiest = sorted(range(self.n), key=lambda i: -self._weight[i])[:n]
        found = [self._greedy(i, float("inf")) for i in busiest]
        return [f[0] for f in found if f is not None]

    def _greedy(self, start: int, bound: float) -> tuple[list[int], float] | None:
        """Next comes the knob after which the fewest states are open; None as soon as the bound is passed."""
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
        """Move one knob to where it costs least, again and again, while that helps."""
        cost, improved = self.cost(order), True
        while improved:
            improved = False
            for knob in list(order):
                rest = [i for i in order if i != knob]
                moved = min(([*rest[:p], knob, *rest[p:]] for p in range(len(order))), key=self.cost)
                if self.cost(moved) < cost * 0.99:
                    order, cost, improved = moved, self.cost(moved), True
        return order


def _ones(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
