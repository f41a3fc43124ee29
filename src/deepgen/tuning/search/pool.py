"""The configs that a model evaluates: all of a small space; of a large one, samples and neighbours of the best configs.

The first configs of a search are chosen far apart (`Design`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deepgen.tuning.search.encoding import Encoding, Floats, Ints
from deepgen.tuning.search.gaussian import Joined


class Pool:
    """Ranks with their codes, and whether each may still be proposed."""

    def __init__(self, encoding: Encoding, ranks: Sequence[int], taken: Iterable[int]) -> None:
        self.ranks = list(ranks)
        self._order = encoding.order
        self.columns: Ints = np.ascontiguousarray(encoding.codes(self.ranks).T)
        self.place = {rank: place for place, rank in enumerate(self.ranks)}
        self.open: npt.NDArray[np.bool_] = np.ones(len(self.ranks), dtype=np.bool_)
        for rank in taken:
            self.close(rank)

    @cached_property
    def joined(self) -> Joined:
        """The codes with joined columns, as a kernel takes them."""
        return Joined(self.columns, self._order)

    def add(self, encoding: Encoding, ranks: Sequence[int]) -> None:
        """Append ranks that were already proposed."""
        self.place.update({rank: place for place, rank in enumerate(ranks, len(self.ranks))})
        self.ranks += ranks
        self.columns = np.hstack([self.columns, encoding.codes(ranks).T])
        self.open = np.concatenate([self.open, np.zeros(len(ranks), dtype=np.bool_)])
        self.__dict__.pop("joined", None)

    def close(self, rank: int) -> None:
        """Mark this rank as proposed."""
        place = self.place.get(rank)
        if place is not None:
            self.open[place] = False


def draw_pool(
    encoding: Encoding, taken: set[int], needed: Sequence[int], best: Sequence[int], limit: int, seed: int
) -> Pool:
    """A pool of about `limit` configs that includes the `needed` ones and those one knob away from the `best`.

    Its order is random, so that taking the first of several equal configs is unbiased.
    """
    space = encoding.space
    size = space.size()
    if size.exact and size.count <= limit:
        ranks = space.sample_ranks(size.count, seed, distinct=True)
        return Pool(encoding, ranks, taken)
    near = [other for rank in best for other in encoding.neighbors(rank)]
    drawn = space.sample_ranks(limit, seed, distinct=True)
    return Pool(encoding, list(dict.fromkeys([*needed, *near, *drawn])), taken)


class Design:
    """Farthest-first selection among some places of a pool; the distance is the sum of the knobs' distances."""

    def __init__(self, encoding: Encoding, pool: Pool, places: Ints) -> None:
        self._tables = encoding.distances[: len(encoding.knobs)]
        self._pool, self._places = pool, places
        self._columns = pool.columns[:, places]
        self._nearest: Floats | None = None

    def next(self) -> int | None:
        """The next place in the pool, if a candidate is still open; initially the first candidate."""
        free = self._pool.open[self._places]
        if not free.any():
            return None
        score = free.astype(np.float64) if self._nearest is None else np.where(free, self._nearest, -1.0)
        return int(self._places[int(np.argmax(score))])

    def keep_away(self, codes: Sequence[int]) -> None:
        """Prefer configs far from this one too, from now on."""
        distance = np.zeros(len(self._places))
        for i, table in enumerate(self._tables):
            distance += table[codes[i]][self._columns[i]]
        self._nearest = distance if self._nearest is None else np.minimum(self._nearest, distance)
