"""A space too wide to be compiled, answered by a diagram of most of its requirements.

Samples are drawn from that diagram, and those that break one of the other requirements are drawn again: what remains is
exactly uniform. The share that remains says about how many configs there are. A rank is that of the diagram, so
not every number is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.engine import Size, TooWide, TooWideToCount
from deepgen.space.relax import Relaxed

_TOGETHER = 1 << 14  # rows that are drawn at a time
_MOST = 1 << 19  # rows that are drawn for one that is valid: a solver finds rarer ones faster
_ENOUGH = 400  # valid rows among those that the share is estimated from


class Partial:
    """Draws from the relaxed diagram and checks. Raises TooWide where valid configs are too rare for that."""

    uniform = True
    orders: tuple[tuple[str, ...], ...] = ()

    def __init__(self, name: str, names: Sequence[str], relaxed: Relaxed, reason: str) -> None:
        self.name, self.names, self.reason = name, names, reason
        self.diagram, self.nodes, self.left = relaxed.diagram, relaxed.nodes, relaxed.left
        self._size = self._estimate()

    def _estimate(self) -> Size:
        rng = np.random.default_rng(0)
        drawn = valid = 0
        while valid < _ENOUGH and drawn < _MOST and not (drawn == 0 and self.diagram.empty()):
            valid += int(self.check(self.diagram.drawn_rows(_TOGETHER, rng)).sum())
            drawn += _TOGETHER
        if valid == 0:
            raise TooWide(f"{self.reason}, and valid configs are too rare to be found by chance")
        share = valid / drawn
        return Size(self.diagram.count() * valid // drawn, exact=False, error=sqrt((1 - share) / valid))

    def check(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which rows of the diagram meet the requirements that it does not hold."""
        fits = np.arange(len(rows))
        for expr in self.left:
            scope = self.nodes.scope(expr)
            places = {n: rows[fits, i] for i, n in enumerate(self.names) if n in scope}
            fits = fits[np.broadcast_to(evaluate_arrays(self.nodes, expr, places), fits.shape).astype(np.bool_)]
        mask = np.zeros(len(rows), dtype=np.bool_)
        mask[fits] = True
        return mask

    # What needs all configs -------------------------------------------------------------------------------------------

    def size(self) -> Size:
        return self._size

    def count(self) -> int:
        raise TooWideToCount(
            f"space {self.name!r} has no exact count: {self.reason}. It has {self._size} configs; "
            "to count it restrict it or give it more memory"
        )

    @property
    def ranks(self) -> int:
        return self.diagram.count()

    def empty(self) -> bool:
        return False

    # Rows and ranks ---------------------------------------------------------------------------------------------------

    def row(self, rank: int) -> list[int] | None:
        row = self.diagram.row(rank)
        return row if self._fits(row) else None

    def rank(self, row: Sequence[int]) -> int | None:
        rank = self.diagram.rank(row)
        return rank if rank is not None and self._fits(row) else None

    def contains(self, row: Sequence[int]) -> bool:
        return self.rank(row) is not None

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[Any]:
        return self.diagram.rows(ranks)

    def valid(self, ranks: Sequence[int]) -> list[bool]:
        return self.check(self.diagram.rows(ranks)).tolist()  # type: ignore[no-any-return]

    def chunks(self, start: int) -> Iterator[npt.NDArray[Any]]:
        for rows in self.diagram.chunks(start):
            yield rows[self.check(rows)]

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        return self.diagram.rows(self.drawn_ranks(n, rng))

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]:
        found: list[int] = []
        while len(found) < n:
            ranks = self.diagram.drawn_ranks(self._needed(n - len(found)), rng)
            found += [rank for rank, fits in zip(ranks, self.valid(ranks), strict=True) if fits]
        return found[:n]

    def _needed(self, n: int) -> int:
        """About how many rows must be drawn for n valid ones."""
        needed = (n + 3) * self.diagram.count() // max(1, self._size.count)
        return int(min(max(needed, 64), _TOGETHER))

    def one_knob_away(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return self._only_valid(self.diagram.one_knob_away(row, absent))

    def repaired(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return self._only_valid(self.diagram.repaired(row, absent))

    def nearest(self, row: Sequence[int], absent: Sequence[int]) -> tuple[int, list[int]] | None:
        """As far as the diagram tells: None where the nearest of its rows is not valid."""
        found = self.diagram.nearest(row, absent)
        return found if found is not None and self._fits(found[1]) else None

    def _fits(self, row: Sequence[int]) -> bool:
        return bool(self.check(np.array([row]))[0])

    def _only_valid(self, rows: list[list[int]]) -> list[list[int]]:
        mask = self.check(np.array(rows, dtype=np.int64).reshape(len(rows), len(self.names)))
        return [row for row, fits in zip(rows, mask.tolist(), strict=True) if fits]
