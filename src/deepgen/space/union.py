"""Chooses a space's engine: a diagram, a relaxed one, or a solver; for a union, one per alternative."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space.compile import compile_space
from deepgen.space.definition import Knob
from deepgen.space.diagram import Diagram, uniform_below
from deepgen.space.engine import Size, SpaceEngine, TooWide
from deepgen.space.expr import Requirement
from deepgen.space.layers import Ints
from deepgen.space.nodes import Nodes
from deepgen.space.relax import Partial, relax
from deepgen.space.rows import variable
from deepgen.vocabulary.dtypes import distinct
from deepgen.vocabulary.errors import BadInput

Places = tuple[tuple[int, ...], ...]  # by knob and place in an alternative: its place in the union
NEW, OTHER = -1, -2  # in a row of an alternative: a knob that may take any value; a value that it lacks
_TOGETHER = 1 << 14


def alternatives(knobs: Sequence[Knob], by: str) -> Iterator[tuple[str, list[Knob], Places]]:
    """For each value of the knob `by`: a mark, the knobs in that alternative, and their places in the union."""
    (chosen,) = (k for k in knobs if k.name == by)
    for place, value in enumerate(chosen.values):
        single = {k.name: k.values[0] if k.values else None for k in knobs if k.places == 1}
        fixed: dict[str, Any] = {**single, by: value}
        nodes = Nodes({k.name: variable(k) for k in knobs if k.places > 1 and k.name != by}, fixed)
        own: list[Knob] = []
        for knob in knobs:
            exists = None if knob.when is None else nodes.condition(knob.when)
            if knob.name == by:
                own.append(replace(knob, values=(value,)))
            elif exists is None or exists.op != "const":
                own.append(knob)
            elif exists.data:
                own.append(replace(knob, when=None))
            else:
                own.append(Knob(knob.name, (), optional=True))
                fixed[knob.name] = None  # for later conditions
        yield f"{by}={value}", own, tuple(_places(k, mine, place) for k, mine in zip(knobs, own, strict=True))


def _places(knob: Knob, own: Knob, chosen: int) -> tuple[int, ...]:
    if not own.values:
        return (len(knob.values),)
    return (chosen,) if len(own.values) < len(knob.values) else tuple(range(own.places))


@dataclass(frozen=True)
class Alternative:
    """The engine for one alternative, and the conversion of its rows to rows of the union and back."""

    mark: str
    engine: Diagram | Partial | Union
    places: Places

    @cached_property
    def _tables(self) -> list[npt.NDArray[np.int64]]:
        return [np.array(places) for places in self.places]

    @cached_property
    def _back(self) -> list[dict[int, int]]:
        return [{place: own for own, place in enumerate(places)} for places in self.places]

    def outward(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.stack([table[rows[:, i]] for i, table in enumerate(self._tables)], axis=1)

    def inward(self, row: Sequence[int]) -> list[int] | None:
        places = [back.get(place, OTHER) for back, place in zip(self._back, row, strict=True)]
        return None if OTHER in places else places

    def allowed(self, places: Mapping[int, Collection[int]]) -> dict[int, list[int]]:
        """By variable, the alternative's own places that correspond to these of the union."""
        return {v: [self._back[v][p] for p in some if p in self._back[v]] for v, some in places.items()}

    def towards(self, row: Sequence[int], absent: Sequence[int]) -> tuple[list[int], list[int]]:
        """A row of another alternative, as far as it fits here, and for each knob the place that is free of charge."""
        here, free = [], []
        for back, place, gone in zip(self._back, row, absent, strict=True):
            here.append(place if place < 0 else back.get(place, NEW if place == gone else OTHER))
            free.append(back.get(gone, NEW))
        return here, free


@dataclass(frozen=True)
class Union:
    """The alternatives one after another: ranks run through the first, then the second, and so on."""

    parts: tuple[Alternative, ...]
    by: int  # the knob that selects the alternative

    uniform = True

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(p.engine.ranks for p in self.parts))

    def _starts(self, part: int) -> int:
        return self._ends[part - 1] if part else 0

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        return tuple((p.mark, *order) for p in self.parts for order in p.engine.orders)

    @property
    def ranks(self) -> int:
        return self._ends[-1]

    def count(self) -> int:
        return sum(p.engine.count() for p in self.parts)

    def size(self) -> Size:
        sizes = [p.engine.size() for p in self.parts]
        count = sum(s.count for s in sizes)
        error = sqrt(sum((s.error * s.count) ** 2 for s in sizes)) / max(count, 1)
        return Size(count, all(s.exact for s in sizes), error)

    def empty(self) -> bool:
        return all(p.engine.empty() for p in self.parts)

    def row(self, rank: int) -> list[int] | None:
        part = bisect_right(self._ends, rank)
        row = self.parts[part].engine.row(rank - self._starts(part))
        return None if row is None else self._outward(part, [row])[0]

    def rank(self, row: Sequence[int]) -> int | None:
        part = row[self.by]
        own = self.parts[part].inward(row)
        rank = None if own is None else self.parts[part].engine.rank(own)
        return None if rank is None else self._starts(part) + rank

    def contains(self, row: Sequence[int]) -> bool:
        return self.rank(row) is not None

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[Any]:
        rows = np.zeros((len(ranks), len(self.parts[0].places)), dtype=np.int32)
        for part, at, own in self._grouped(ranks):
            rows[at] = self.parts[part].outward(self.parts[part].engine.rows(own))
        return rows

    def valid(self, ranks: Sequence[int]) -> list[bool]:
        results = [False] * len(ranks)
        for part, at, own in self._grouped(ranks):
            for i, fits in zip(at, self.parts[part].engine.valid(own), strict=True):
                results[i] = fits
        return results

    def _grouped(self, ranks: Sequence[int]) -> Iterator[tuple[int, list[int], list[int]]]:
        """By alternative: which of the ranks belong to it, and its own ranks for them."""
        try:
            numbers = np.array(ranks, dtype=np.int64)
            which = np.searchsorted(np.array(self._ends, dtype=np.int64), numbers, side="right")
        except OverflowError:  # too large for 64 bits
            numbers = np.array(ranks, dtype=object)
            which = np.array([bisect_right(self._ends, rank) for rank in ranks], dtype=np.int64)
        which[numbers < 0] = len(self.parts)
        for part in distinct(which[which < len(self.parts)]).tolist():
            at = np.flatnonzero(which == part)
            yield part, at.tolist(), (numbers[at] - self._starts(part)).tolist()

    def chunks(self, start: int) -> Iterator[npt.NDArray[Any]]:
        for part, alternative in enumerate(self.parts):
            if start < self._ends[part]:
                for rows in alternative.engine.chunks(max(0, start - self._starts(part))):
                    yield alternative.outward(rows)

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        return self.rows(self.drawn_ranks(n, rng))

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]:
        results: list[int] = []
        exact, share = self.size().exact, min(self.size().count / self.ranks, 1.0)
        while len(results) < n:
            wanted = n - len(results)
            ranks = uniform_below(wanted if share == 1.0 else min(int(wanted / share) + 64, _TOGETHER), self.ranks, rng)
            valid = [True] * len(ranks) if exact else self.valid(ranks.tolist())
            results += [rank for rank, fits in zip(ranks.tolist(), valid, strict=True) if fits]
        return results[:n]

    def one_knob_away(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        part, own, free = self._here(row, absent)
        near = self._outward(part, self.parts[part].engine.one_knob_away(own, free))
        return near + [near_row for changes, near_row in self._across(row, absent) if changes == 0]

    def repaired(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        part, own, free = self._here(row, absent)
        near = self._outward(part, self.parts[part].engine.repaired(own, free))
        return near + [near_row for _, near_row in self._across(row, absent)]

    def nearest(self, row: Sequence[int], absent: Sequence[int]) -> tuple[int, list[int]] | None:
        """The valid row with the fewest changes, and the number of changes, of which another alternative is one."""
        best: tuple[int, list[int]] | None = None
        for part, alternative in enumerate(self.parts):
            own, free = alternative.towards(row, absent)
            change = int(own[self.by] == OTHER)
            own[self.by] = 0
            nearest = alternative.engine.nearest(own, free)
            if nearest is not None and (best is None or nearest[0] + change < best[0]):
                best = nearest[0] + change, self._outward(part, [nearest[1]])[0]
        return best

    def _here(self, row: Sequence[int], absent: Sequence[int]) -> tuple[int, list[int], list[int]]:
        part = row[self.by]
        own, free = self.parts[part].towards(row, absent)
        return part, own, free

    def _across(self, row: Sequence[int], absent: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """In each other alternative, the config that differs least, and in how many of the knobs that both have."""
        for part, alternative in enumerate(self.parts):
            if part != row[self.by]:
                own, free = alternative.towards(row, absent)
                own[self.by] = 0  # the requested change
                nearest = alternative.engine.nearest(own, free)
                if nearest is not None:
                    yield nearest[0], self._outward(part, [nearest[1]])[0]

    def _outward(self, part: int, rows: list[list[int]]) -> list[list[int]]:
        if not rows:
            return []
        return self.parts[part].outward(np.array(rows)).tolist()  # type: ignore[no-any-return]


def open_engine(
    name: str,
    knobs: Sequence[Knob],
    requirements: Sequence[Requirement],
    memory: int,
    orders: Sequence[Sequence[str]] = (),
    by: str | None = None,
    nested: Mapping[Any, str] | None = None,
) -> SpaceEngine:
    """`by` is the knob whose values are alternatives, each with its own engine; for the alternatives in `nested` it is
    that of a union again."""
    try:
        if by is None:
            return _without_solver(name, knobs, requirements, memory, orders)
        return _union(name, knobs, requirements, memory, orders, by, nested or {})
    except TooWide as error:
        from deepgen.space.solver import SolverEngine

        return SolverEngine(name, knobs, requirements, str(error))


def _union(
    name: str,
    knobs: Sequence[Knob],
    requirements: Sequence[Requirement],
    memory: int,
    orders: Sequence[Sequence[str]],
    by: str,
    nested: Mapping[Any, str],
) -> Union:
    place = [k.name for k in knobs].index(by)
    parts = []
    for value, (mark, own, places) in zip(knobs[place].values, alternatives(knobs, by), strict=True):
        rest = [order[1:] for order in orders if order[0] == mark]
        inner = nested.get(value)
        if inner is not None and not any(k.name == inner and k.values and k.places == len(k.values) for k in own):
            raise BadInput(f"{mark} is a union by {inner!r}", allowed="the name of a knob that all of its configs have")
        engine = (
            _without_solver(name, own, requirements, memory, rest)
            if inner is None
            else _union(name, own, requirements, memory, rest, inner, {})
        )
        parts.append(Alternative(mark, engine, places))
    return Union(tuple(parts), place)


def _without_solver(
    name: str, knobs: Sequence[Knob], requirements: Sequence[Requirement], memory: int, orders: Sequence[Sequence[str]]
) -> Diagram | Partial:
    try:
        return compile_space(knobs, requirements, memory, orders)
    except TooWide as error:
        return Partial(name, [k.name for k in knobs], relax(knobs, requirements, memory), str(error))


Allowed = Mapping[int, Collection[int]]  # by variable: its allowed places
_DRAWN = 1 << 8  # rows drawn at a time if some may be invalid
_MOST = 1 << 14  # most rows drawn to find a valid one


@dataclass(frozen=True)
class _DrawnPart:
    diagram: Diagram
    engine: Diagram | Partial
    alternatives: tuple[Alternative, ...] = ()  # the innermost first

    def valid_rows(self, n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Which of n random rows are valid, and the rows in terms of the whole space."""
        rows = self.diagram.drawn_rows(n, rng)
        valid = self.engine.check(rows) if isinstance(self.engine, Partial) else np.ones(n, dtype=np.bool_)
        for alternative in self.alternatives:
            rows = alternative.outward(rows)
        return valid, rows


def draw_within(engine: Diagram | Partial | Union, allowed: Allowed, rng: np.random.Generator) -> list[int] | None:
    """A uniform draw from the valid rows in which variables take only these places; None if none was found."""
    parts = list(_parts(engine, allowed))
    if not parts:
        return None
    counts = [part.diagram.count() for part in parts]
    odds = [count / sum(counts) for count in counts]
    n = _DRAWN if any(isinstance(part.engine, Partial) for part in parts) else 1
    for _ in range(0, _MOST, n):
        picked = rng.choice(len(parts), size=n, p=odds)
        results: dict[int, list[int]] = {}  # by index among the picked ones: the first valid one is taken, without bias
        for which in distinct(picked).tolist():
            at = np.flatnonzero(picked == which)
            valid, rows = parts[which].valid_rows(len(at), rng)
            if valid.any():
                first = int(np.argmax(valid))
                results[int(at[first])] = rows[first].tolist()
        if results:
            return results[min(results)]
    return None


def _parts(engine: Diagram | Partial | Union, allowed: Allowed) -> Iterator[_DrawnPart]:
    """The remaining part of each alternative, or of the space if it has none."""
    if isinstance(engine, Union):
        for one in engine.parts:
            for part in _parts(one.engine, one.allowed(allowed)):
                yield replace(part, alternatives=(*part.alternatives, one))
        return
    narrowed = (engine.diagram if isinstance(engine, Partial) else engine).within(allowed)
    if narrowed is not None:
        yield _DrawnPart(narrowed, engine)
