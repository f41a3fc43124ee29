"""The guide made of any regressor: trained on all trials, a failed one being as bad as the worst."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepgen.search.acquisition import log_improvement, standardised
from deepgen.search.encoding import Encoding, Floats
from deepgen.search.guides import Told
from deepgen.search.pool import Pool
from deepgen.search.regressors import Regressor

_MOST = 2_000  # trials that are learned from: the latest
_PART = 16  # the regressor is trained anew when trials have grown by one part in so many
_NEAR = 0.5  # a distance, in knobs' full ranges, within which two configs tell much the same


class RegressorGuide:
    """Expected improvement by a regressor. What is imagined makes its surroundings less desirable."""

    def __init__(self, encoding: Encoding, regressor: Regressor) -> None:
        self._encoding, self._regressor = encoding, regressor
        self._trained = 0
        self._desire: Floats = np.empty(0)
        self._dream: Floats = np.empty(0)

    def choose(self, told: Sequence[Told]) -> list[Told]:
        return list(told[-_MOST:])

    def renew(self, pool: Pool, chosen: Sequence[Told]) -> None:
        self._pool, self._told = pool, list(chosen)
        self._train()

    def hear(self, told: Told) -> None:
        self._told.append(told)
        if len(self._told) - self._trained >= max(1, len(self._told) // _PART):
            self._train()
        else:
            self._shade(self._desire, self._pool.place[told.rank])
            self._dream = self._desire.copy()

    def imagine(self, place: int) -> None:
        self._shade(self._dream, place)

    def wake(self) -> None:
        self._dream = self._desire.copy()

    def desire(self) -> Floats:
        return self._dream

    def _train(self) -> None:
        kept = self._told
        times = np.array([t.seconds or 0.0 for t in kept])
        worked = times > 0.0
        y = np.empty(len(kept))
        y[worked] = standardised(times[worked])
        y[~worked] = y[worked].max()
        codes = self._pool.columns[:, [self._pool.place[t.rank] for t in kept]].T
        self._regressor.fit(codes, y)
        mean, spread = self._regressor.predict(self._pool.columns.T)
        self._desire = log_improvement(mean, spread, float(y.min()))
        self._dream = self._desire.copy()
        self._trained = len(self._told)

    def _shade(self, desire: Floats, place: int) -> None:
        distance = np.zeros(len(desire))
        for i, table in enumerate(self._encoding.distances):
            distance += table[self._pool.columns[i, place]][self._pool.columns[i]]
        desire -= np.exp(-distance / _NEAR)
