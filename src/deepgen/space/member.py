"""A space that is one alternative of a union, and shares the union's engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space.definition import Knob
from deepgen.space.diagram import Diagram
from deepgen.space.engine import Size
from deepgen.space.relax import Partial
from deepgen.space.union import NEW, OTHER, Union


@dataclass(frozen=True)
class MemberEngine:
    """An alternative from the view of its original space: with its own knobs in their order, and its own places.

    This way a union and the spaces in it are compiled once.
    """

    engine: Diagram | Partial | Union
    columns: tuple[int, ...]  # for each knob: the index of the union's knob
    places: tuple[Mapping[int, int], ...]  # for each knob, by its place: the place in the alternative
    blank: tuple[int, ...]  # a row of the alternative, to be filled in these columns
    free: tuple[int, ...]  # its places of absent knobs, to be filled in these columns

    uniform = True

    @cached_property
    def _back(self) -> list[npt.NDArray[np.int64]]:
        tables = []
        for places in self.places:
            table = np.full(max(places.values(), default=0) + 1, OTHER)
            table[[*places.values()]] = [*places]
            tables.append(table)
        return tables

    def _inward(self, row: Sequence[int]) -> list[int]:
        return self._filled(self.blank, row, OTHER)

    def _filled(self, blank: Sequence[int], row: Sequence[int], missing: int) -> list[int]:
        own = list(blank)
        for column, places, place in zip(self.columns, self.places, row, strict=True):
            own[column] = places.get(place, missing)
        return own

    def _outward(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self.columns:
            return np.zeros((len(rows), 0), dtype=np.int32)
        return np.stack([back[rows[:, i]] for i, back in zip(self.columns, self._back, strict=True)], axis=1)

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        return self.engine.orders

    @property
    def ranks(self) -> int:
        return self.engine.ranks

    def count(self) -> int:
        return self.engine.count()

    def size(self) -> Size:
        return self.engine.size()

    def empty(self) -> bool:
        return self.engine.empty()

    def valid(self, ranks: Sequence[int]) -> list[bool]:
        return self.engine.valid(ranks)

    def row(self, rank: int) -> list[int] | None:
        row = self.engine.row(rank)
        return None if row is None else self._outward(np.array([row]))[0].tolist()

    def rank(self, row: Sequence[int]) -> int | None:
        own = self._inward(row)
        return None if OTHER in own else self.engine.rank(own)

    def contains(self, row: Sequence[int]) -> bool:
        return self.rank(row) is not None

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[Any]:
        return self._outward(self.engine.rows(ranks))

    def chunks(self, start: int) -> Iterator[npt.NDArray[Any]]:
        return map(self._outward, self.engine.chunks(start))

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        return self._outward(self.engine.drawn_rows(n, rng))

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]:
        return self.engine.drawn_ranks(n, rng)

    def one_knob_away(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return self._near(self.engine.one_knob_away(self._inward(row), self._filled(self.free, absent, NEW)))

    def repaired(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return self._near(self.engine.repaired(self._inward(row), self._filled(self.free, absent, NEW)))

    def _near(self, rows: list[list[int]]) -> list[list[int]]:
        return self._outward(np.array(rows)).tolist() if rows else []


def member_engine(union: Union, knobs: Sequence[Knob], label: int, own: Sequence[Knob]) -> MemberEngine | None:
    """The engine for a space that is the alternative `label` in a union with these knobs; None if it has other knobs or
    values."""
    alternative = union.parts[label]
    backs = [{place: i for i, place in enumerate(places)} for places in alternative.places]
    free = [
        back.get(len(k.values) if k.places > len(k.values) else NEW, NEW) for k, back in zip(knobs, backs, strict=True)
    ]
    named = {k.name: i for i, k in enumerate(knobs)}
    columns, places = [], []
    for knob in own:
        if knob.name not in named or not {*knob.values} <= {*knobs[named[knob.name]].values}:
            return None
        columns.append(named[knob.name])
        theirs, back = knobs[columns[-1]], backs[columns[-1]]
        at = [*(theirs.values.index(value) for value in knob.values), len(theirs.values)][: knob.places]
        places.append({i: back[place] for i, place in enumerate(at) if place in back})
    return MemberEngine(alternative.engine, tuple(columns), tuple(places), (0,) * len(knobs), tuple(free))
