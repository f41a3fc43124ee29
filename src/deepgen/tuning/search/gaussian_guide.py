"""The guide made of a Gaussian process, alone or with trees beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepgen.tuning.search.acquisition import log_improvement, standardised
from deepgen.tuning.search.encoding import Encoding, Floats
from deepgen.tuning.search.gaussian import Covariance, Posterior
from deepgen.tuning.search.lessons import Told
from deepgen.tuning.search.pool import Pool
from deepgen.tuning.search.regressors import Regressor

_MOST = 200  # trials that are learned from; a process of n trials costs n^2 a trial
_BEST = 120  # of which the fastest; the others are drawn from the rest
_FIRST_STEPS, _STEPS = 60, 12
_PART = 5  # trees are trained again when trials have grown by one part in so many
_WORKS = 0.9  # the chance that an unknown config works
_DOUBT = 0.1  # the noise of right and wrong
_FLOOR = 0.02  # no config is given up entirely
_SHORT = 256  # configs among which several are chosen together
DIGITS = 9  # desires that differ by less are equal, so that rounding in another BLAS does not change a search


class GaussianGuide:
    """Time and chance to work, each a Gaussian process over the same kernel.

    With `trees`, the expected time is the mean of the process's and theirs; how unsure it is, the process says.
    """

    def __init__(self, encoding: Encoding, seed: int, trees: Regressor | None = None) -> None:
        self.kernel = Covariance(encoding.distances)
        self._seed = seed
        self._fitted = False
        self._trees = trees
        self._trained = 0  # trials that the trees know

    def general(self) -> list[float]:
        return self.kernel.logs

    def recall(self, general: Sequence[float]) -> None:
        self.kernel.recall(general)
        self._fitted = True

    def choose(self, told: Sequence[Told]) -> list[Told]:
        """All, or when they are many the fastest and some of the others."""
        if len(told) <= _MOST:
            return list(told)
        order = sorted(range(len(told)), key=lambda i: (told[i].seconds is None, told[i].seconds or 0.0))
        rng = np.random.default_rng([self._seed, len(told)])
        others = rng.permutation(np.array(order[_BEST:]))[: _MOST - _BEST].tolist()
        return [told[i] for i in sorted(order[:_BEST] + others)]

    def renew(self, pool: Pool, chosen: Sequence[Told], *, fit: bool = True) -> None:
        self._pool = pool
        self._tried = list(chosen)
        self._right = [t for t in chosen if t.seconds is not None]
        places = [pool.place[t.rank] for t in self._right]
        if fit:
            self.kernel.fit(pool.columns[:, places].T, self._results(), _STEPS if self._fitted else _FIRST_STEPS)
            self._fitted = True
        self._time = Posterior(self.kernel, pool.columns)
        self._time.start(places)
        self._works: Posterior | None = None
        if len(self._right) < len(self._tried):
            self._learn_failures()
        self._dreamt: list[float] = []
        self._train()

    def hear(self, told: Sequence[Told]) -> None:
        if len(self._tried) >= _MOST:
            self._hear(told)  # the trees learn of it when all is renewed
            return
        for one in told:
            self._hear([one])
            if len(self._tried) - self._trained >= max(1, len(self._tried) // _PART):
                self._train()

    def _hear(self, told: Sequence[Told]) -> None:
        right = [t for t in told if t.seconds is not None]
        self._tried += told
        self._right += right
        self._observe(self._time, right)
        if self._works is not None:
            self._observe(self._works, told)
        elif len(right) < len(told):
            self._learn_failures()

    def _observe(self, posterior: Posterior, told: Sequence[Told]) -> None:
        places = [self._pool.place[t.rank] for t in told]
        if len(places) == 1:
            posterior.add(places[0])
        elif places:
            posterior.add_all(places)

    def imagine(self, place: int) -> None:
        if not self._dreamt:
            self._awake = self._time.mark()
        self._dreamt.append(float(self._mean[place]))
        self._time.add(place)

    def wake(self) -> None:
        if self._dreamt:
            self._time.back(self._awake)
        self._dreamt.clear()

    def acquisition(self) -> Floats:
        results = self._results()
        self._mean, spread = self._time.predict(np.concatenate([results, self._dreamt]))
        if self._trees is not None:
            self._mean = 0.5 * (self._mean + self._by_trees)
        self._best = float(results.min())
        acquisition = log_improvement(self._mean, spread, self._best)
        if self._works is not None:
            worked = np.array([float(t.seconds is not None) for t in self._tried])
            chance, _ = self._works.predict(worked, _WORKS)
            self._chance = np.log(np.clip(chance, _FLOOR, 1.0))
            acquisition += self._chance
        return acquisition

    def ahead(self, count: int, pending: Sequence[int]) -> list[int]:
        """Of the configs that are desired most now, each in turn makes those near it less interesting.

        One that has ended as predicted changes how unsure the process is, but not what it expects; so all is
        predicted once.
        """
        acquisition = np.where(self._pool.open, np.round(self.acquisition(), DIGITS), -np.inf)
        short = np.argsort(-acquisition, kind="stable")[:_SHORT]
        places = np.concatenate([np.array(pending, dtype=np.int64), short[np.isfinite(acquisition[short])]])
        part, mean = self._time.part(places), self._mean[places]
        chance = self._chance[places] if self._works is not None else np.zeros(len(places))
        for i in range(len(pending)):
            part.add(i)
        chosen: list[int] = []
        for _ in range(min(count, len(places) - len(pending))):
            wanted = np.round(log_improvement(mean, part.spread(), self._best) + chance, DIGITS)
            wanted[: len(pending)] = -np.inf
            wanted[chosen] = -np.inf
            chosen.append(int(np.argmax(wanted)))
            part.add(chosen[-1])
        return [int(places[i]) for i in chosen]

    def _results(self) -> Floats:
        return standardised(np.array([t.seconds for t in self._right]))

    def _train(self) -> None:
        self._trained = len(self._tried)
        if self._trees is not None:
            places = [self._pool.place[t.rank] for t in self._right]
            self._trees.fit(self._pool.columns[:, places].T, self._results())
            self._by_trees = self._trees.predict(self._pool.columns.T)

    def _learn_failures(self) -> None:
        self._works = Posterior(self.kernel, self._pool.columns, _DOUBT)
        self._works.start([self._pool.place[t.rank] for t in self._tried])
