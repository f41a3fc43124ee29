"""The first configs of a search: each as far as possible from all before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepgen.search.encoding import Encoding, Floats
from deepgen.search.pool import Pool

_CANDIDATES = 1_000  # enough to reach the corners, few enough that two seeds do not choose the same ones


class Design:
    """Farthest-first choice among some configs of a pool; a distance is the sum of the knobs' distances."""

    def __init__(self, encoding: Encoding, pool: Pool) -> None:
        self._tables = encoding.distances[: len(encoding.knobs)]
        self._pool = pool
        self._columns = pool.columns[:, :_CANDIDATES]
        self._nearest: Floats | None = None

    def next(self) -> int | None:
        """The place in the pool of the next config, if one is open among the candidates."""
        free = self._pool.open[:_CANDIDATES]
        if not free.any():
            return None
        if self._nearest is None:
            return int(np.argmax(free))
        return int(np.argmax(np.where(free, self._nearest, -1.0)))

    def keep_away(self, codes: Sequence[int]) -> None:
        """From now on, be far from this config too."""
        distance = np.zeros(self._columns.shape[1])
        for i, table in enumerate(self._tables):
            distance += table[codes[i]][self._columns[i]]
        self._nearest = distance if self._nearest is None else np.minimum(self._nearest, distance)
