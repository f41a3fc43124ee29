"""The compiled space: layered diagrams whose edges carry counts, and walks through them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from deepgen.space.engine import Size
from deepgen.space.layers import Ints, Layer, count_points, edges_of
from deepgen.space.neighbors import deviations, nearest, repairs

_SMALL = 1 << 62
_CHUNK = 4096
_WIDE = 1024  # edges in a layer above which each state's own edges are searched instead of the whole layer


class Chain:
    """One independent part of the space: its layers, from the first variable to the last, and its number of points."""

    def __init__(self, layers: tuple[Layer, ...], count: int) -> None:
        self.layers, self.count = layers, count
        # The data for walking a single config, unpacked once: attribute access would cost as much as the walk.
        self._steps = [(y.variable, y.first_view, y.place_view, y.child_view, y.before_view) for y in layers]

    def row(self, rank: int, row: list[int]) -> None:
        """Write the places of a rank into `row`."""
        state = 0
        for variable, first, place, child, before in self._steps:
            start = first[state]
            rank += before[start]
            edge = bisect_right(before, rank, start, first[state + 1]) - 1
            rank -= before[edge]
            row[variable] = place[edge]
            state = child[edge]

    def rank(self, row: Sequence[int]) -> int | None:
        if self.count == 0:
            return None
        rank = state = 0
        for variable, first, places, child, before in self._steps:
            start, stop = first[state], first[state + 1]
            place = row[variable]
            edge = bisect_left(places, place, start, stop)
            if edge == stop or places[edge] != place:
                return None
            rank += before[edge] - before[start]
            state = child[edge]
        return rank

    def rows(self, ranks: Ints, rows: Ints) -> None:
        """Write the places of many ranks into the columns of `rows`."""
        # Sorted ranks access the layers in order; better cache use saves a third of the time.
        to = np.argsort(ranks, kind="stable") if len(self.layers) > 1 else slice(None)
        ranks = ranks[to]
        states: Ints | None = None  # None: all are in the first state
        for layer in self.layers:
            if ranks.dtype == object and layer.before.dtype != object:
                ranks = ranks.astype(np.int64)  # below this layer the numbers fit
            if states is not None:
                ranks = ranks + layer.base[states]
            if layer.unit:
                edges, ranks = ranks, np.zeros_like(ranks)
            else:
                if states is None or layer.before.dtype == object or len(layer.before) <= _WIDE:
                    edges = _edges(layer.before, ranks)
                else:
                    edges = _edges_of(layer, states, ranks)
                ranks = ranks - layer.before[edges]
            rows[to, layer.variable] = layer.place[edges]
            states = layer.child[edges]

    def within(self, allowed: Mapping[int, Collection[int]]) -> Chain:
        """The points in which some variables take only these places."""
        if not any(layer.variable in allowed for layer in self.layers):
            return self
        upwards = ((y.variable, edges_of(y, allowed.get(y.variable))) for y in reversed(self.layers))
        return Chain(*count_points(upwards))


def _edges_of(layer: Layer, states: Ints, ranks: Ints) -> Ints:
    """The same, searched among the edges of each rank's own state: a whole large layer would not stay in the cache."""
    low, high = layer.first[states], layer.first[states + 1]
    for _ in range((layer.most - 1).bit_length()):
        middle = (low + high) >> 1
        further = layer.before[middle] <= ranks
        low, high = np.where(further, middle, low), np.where(further, high, middle)
    return low


def _edges(before: Ints, ranks: Ints) -> Ints:
    """The last edge with before <= rank, for each rank."""
    if before.dtype != object:
        return np.searchsorted(before, ranks, side="right") - 1
    # Searching Python integers is slow: find the edge in floating point, then correct the few misses exactly.
    edges = np.searchsorted(before.astype(np.float64), ranks.astype(np.float64), side="right") - 1
    edges = np.clip(edges, 0, len(before) - 2)
    wrong = np.flatnonzero((before[edges] > ranks) | (before[edges + 1] <= ranks))
    whole = before.tolist() if len(wrong) else []
    for miss in wrong.tolist():
        edges[miss] = bisect_right(whole, ranks[miss]) - 1
    return edges


@dataclass(frozen=True)
class Diagram:
    """All parts. A rank is a number whose digits are the ranks in the parts, with the last part running fastest."""

    chains: tuple[Chain, ...]
    width: int  # the number of variables in a row
    fixed: tuple[tuple[int, int], ...]  # variables with a single place, and that place
    orders: tuple[tuple[str, ...], ...] = ()  # orders of knobs that took long to find

    uniform = True

    @cached_property
    def total(self) -> int:
        return prod(c.count for c in self.chains)

    def count(self) -> int:
        return self.total

    def size(self) -> Size:
        return Size(self.total)

    @property
    def ranks(self) -> int:
        return self.total

    def valid(self, ranks: Sequence[int]) -> list[bool]:
        return [0 <= rank < self.total for rank in ranks]

    @cached_property
    def _blank(self) -> list[int]:
        places = dict(self.fixed)
        return [places.get(variable, 0) for variable in range(self.width)]

    @cached_property
    def _plan(self) -> list[tuple[int, int, list[int], Chain]]:
        """The parts, last first, with a lookup for single-knob parts: (count, the knob or -1, its places, part)."""
        plan = []
        for chain in reversed(self.chains):
            alone = len(chain.layers) == 1
            places = chain.layers[0].place.tolist() if alone else []
            plan.append((chain.count, chain.layers[0].variable if alone else -1, places, chain))
        return plan

    @cached_property
    def _ranking(self) -> list[tuple[int, int, dict[int, int], Chain]]:
        """The inverse, first part first: the digit of each place."""
        return [(count, v, {p: i for i, p in enumerate(places)}, c) for count, v, places, c in reversed(self._plan)]

    def row(self, rank: int) -> list[int]:
        row = self._blank.copy()
        for count, variable, places, chain in self._plan:
            rank, digit = divmod(rank, count)
            if variable >= 0:
                row[variable] = places[digit]
            else:
                chain.row(digit, row)
        return row

    def rank(self, row: Sequence[int]) -> int | None:
        for variable, place in self.fixed:
            if row[variable] != place:
                return None
        rank = 0
        for count, variable, digits, chain in self._ranking:
            digit = digits.get(row[variable]) if variable >= 0 else chain.rank(row)
            if digit is None:
                return None
            rank = rank * count + digit
        return rank

    def rows(self, ranks: Sequence[int] | Ints) -> npt.NDArray[np.int32]:
        """The places of many ranks, one row each."""
        small = self.count() < _SMALL
        left: Ints = np.array(ranks, dtype=np.int64 if small else object)
        return self._rows(len(left), self._digits(left))

    def contains(self, row: Sequence[int]) -> bool:
        return self.rank(row) is not None

    def empty(self) -> bool:
        return self.count() == 0

    def chunks(self, start: int) -> Iterator[npt.NDArray[np.int32]]:
        """All rows in rank order from a rank on, in chunks of some thousands."""
        count = self.count()
        for first in range(max(start, 0), count, _CHUNK):
            yield self.rows(range(first, min(first + _CHUNK, count)))

    def one_knob_away(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return [_patched(row, changes) for c in self.chains for changes in deviations(c.layers, row, absent)]

    def repaired(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return [_patched(row, changes) for c in self.chains for changes in repairs(c.layers, row, absent)]

    def nearest(self, row: Sequence[int], absent: Sequence[int]) -> tuple[int, list[int]] | None:
        """The valid row with the fewest changes, and the number of changes."""
        if self.empty():
            return None
        near = self._blank.copy()
        changes = sum(place not in (row[v], absent[v]) and row[v] != absent[v] for v, place in self.fixed)
        for chain in self.chains:
            fewest, places = nearest(chain.layers, row, absent)
            changes += fewest
            for variable, place in places.items():
                near[variable] = place
        return changes, near

    def within(self, allowed: Mapping[int, Collection[int]]) -> Diagram | None:
        """The part in which some variables take only these places; None if it is empty. It has its own ranks.

        Only the counts are computed again, which is a small part of the work of compiling.
        """
        if any(place not in allowed.get(variable, (place,)) for variable, place in self.fixed):
            return None
        chains = tuple(chain.within(allowed) for chain in self.chains)
        return Diagram(chains, self.width, self.fixed) if all(c.count for c in chains) else None

    def _digits(self, ranks: Ints) -> list[Ints]:
        digits: list[Ints] = []
        for chain in reversed(self.chains):
            if ranks.dtype == object:
                digit = ranks % chain.count
                digits.append(digit.astype(np.int64) if chain.count < _SMALL else digit)
                ranks = ranks // chain.count
            else:
                digits.append(ranks % chain.count)
                ranks = ranks // chain.count
        return digits[::-1]

    def _rows(self, n: int, digits: Sequence[Ints]) -> npt.NDArray[np.int32]:
        rows = np.zeros((n, self.width), dtype=np.int32, order="F")
        for variable, place in self.fixed:
            rows[:, variable] = place
        for chain, digit in zip(self.chains, digits, strict=True):
            chain.rows(digit, rows)
        return rows

    def draw(self, n: int, rng: np.random.Generator) -> list[Ints]:
        """Uniform random ranks, as digits for each part."""
        return [uniform_below(n, chain.count, rng) for chain in self.chains]

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
        return self._rows(n, self.draw(n, rng))

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]:
        small = self.count() < _SMALL
        total: Ints = np.zeros(n, dtype=np.int64 if small else object)
        for chain, digit in zip(self.chains, self.draw(n, rng), strict=True):
            total = total * chain.count + (digit if small else digit.astype(object))
        return total.tolist()  # type: ignore[no-any-return]


def _patched(row: Sequence[int], changes: dict[int, int]) -> list[int]:
    return [changes.get(variable, place) for variable, place in enumerate(row)]


def uniform_below(n: int, count: int, rng: np.random.Generator) -> Ints:
    """Uniform random integers below `count`, of any size, by rejection sampling."""
    if count < _SMALL:
        return rng.integers(0, count, n, dtype=np.int64)
    size = (count.bit_length() + 7) // 8
    excess = size * 8 - count.bit_length()
    drawn: list[int] = []
    while len(drawn) < n:
        raw = rng.bytes(size * (n - len(drawn)))
        numbers = (int.from_bytes(raw[i : i + size], "little") >> excess for i in range(0, len(raw), size))
        drawn.extend(x for x in numbers if x < count)
    result = np.empty(n, dtype=object)
    result[:] = drawn
    return result
