"""The first configs of a search: each as far as possible from all before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepgen.tuning.search.encoding import Encoding, Floats, Ints
from deepgen.tuning.search.pool import Pool


class Design:
    """Farthest-first choice among some places of a pool; a distance is the sum of the knobs' distances."""

    def __init__(self, encoding: Encoding, pool: Pool, places: Ints) -> None:
        self._tables = encoding.distances[: len(encoding.knobs)]
        self._pool, self._places = pool, places
        self._columns = pool.columns[:, places]
        self._nearest: Floats | None = None

    def next(self) -> int | None:
        """The next place in the pool, if one is open among the candidates; at first, the first of them."""
        free = self._pool.open[self._places]
        if not free.any():
            return None
        score = free.astype(np.float64) if self._nearest is None else np.where(free, self._nearest, -1.0)
        return int(self._places[int(np.argmax(score))])

    def keep_away(self, codes: Sequence[int]) -> None:
        """From now on, be far from this config too."""
        distance = np.zeros(len(self._places))
        for i, table in enumerate(self._tables):
            distance += table[codes[i]][self._columns[i]]
        self._nearest = distance if self._nearest is None else np.minimum(self._nearest, distance)
