"""Guides: the cost models of the `model` strategy.

This module has the lessons that guides learn from (`Lessons`), the expected improvement of a config, and the guide made
of a Gaussian process, alone or together with trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from deepgen.tuning.search.encoding import Encoding, Floats
from deepgen.tuning.search.gaussian import Covariance, Posterior
from deepgen.tuning.search.pool import Pool
from deepgen.tuning.search.regressors import Regressor
from deepgen.vocabulary import Trial, Verdict


class Guide(Protocol):
    """Learns from trials, and predicts how much a trial of each config in a pool may gain."""

    def general(self) -> list[float]:
        """The hyperparameters of the knobs, which take longest to learn."""
        ...

    def recall(self, general: Sequence[float]) -> None:
        """Restore these hyperparameters; ValueError if they cannot have been learned in this space."""
        ...

    def choose(self, lessons: Sequence[Lesson]) -> list[Lesson]:
        """The trials that it will learn from, in the order of telling."""
        ...

    def renew(self, pool: Pool, chosen: Sequence[Lesson], *, fit: bool = True) -> None:
        """Learn again from the chosen trials, for a pool that contains their configs. This may take long; it is called
        rarely.

        Without `fit` the hyperparameters stay as they are.
        """
        ...

    def hear(self, lessons: Sequence[Lesson]) -> None:
        """Learn from some more trials, whose configs are in the pool. This must be fast."""
        ...

    def heir(self) -> Guide:
        """A copy with the same hyperparameters, to be renewed while this one stays in use."""
        ...

    def widen(self) -> None:
        """Adapt to a pool that has grown at its end."""
        ...

    def ahead(self, count: int, pending: Sequence[int]) -> list[int]:
        """The places of the next configs. Each is chosen as if those before it, and the pending ones, had ended as
        predicted."""
        ...


CLEARLY_SLOWER = 2.0  # times the best time: a kernel that certainly takes longer need not be run


@dataclass(frozen=True)
class Lesson:
    """How a config ended: its time, or None if it failed."""

    rank: int
    seconds: float | None


class Lessons:
    """Converts trials to lessons, in the order of telling."""

    def __init__(self) -> None:
        self._best = math.inf

    def of(self, trial: Trial) -> list[Lesson]:
        """One lesson or none.

        A failure is a lesson: it may reveal a constraint of the machine. A kernel that was not run did not fail: it
        counts as clearly slow. A time that did not settle counts, but as no better than the best settled one.
        """
        if trial.seconds is not None:
            self._best = min(self._best, trial.seconds)
            return [Lesson(trial.rank, trial.seconds)]
        verdict, unsettled = trial.measurement.verdict, trial.measurement.seconds
        if verdict is Verdict.NOT_RUN:
            slow = CLEARLY_SLOWER * self._best
        elif verdict is Verdict.UNSTABLE:
            slow = math.inf if unsettled is None else max(unsettled, self._best)
        else:
            return [Lesson(trial.rank, None)]
        return [Lesson(trial.rank, slow)] if math.isfinite(slow) else []


_GRID = np.linspace(-40.0, 10.0, 5001)


def log_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """The logarithm of the expected improvement on `best`, accurate even where it is almost zero."""
    at = np.clip((best - mean) / spread, _GRID[0], _GRID[-1]) * 100.0 - 100.0 * _GRID[0]
    place = np.minimum(at.astype(np.int64), len(_GRID) - 2)
    gains, steps = _log_gain()
    return np.asarray(np.log(spread) + gains[place] + (at - place) * steps[place])


@lru_cache(maxsize=1)
def _log_gain() -> tuple[Floats, Floats]:
    """log(phi(z) + z Phi(z)) on the grid, and the differences between neighbours."""
    values = []
    for z in _GRID.tolist():
        density = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
        if z < -8.0:  # the difference below would cancel: use its series instead
            values.append(density - 2.0 * math.log(-z) + math.log1p(-3.0 / (z * z)))
        else:
            values.append(math.log(math.exp(density) + 0.5 * z * math.erfc(-z / math.sqrt(2.0))))
    return np.array(values), np.diff(values)


def standardised(seconds: Floats) -> Floats:
    """Times for a model: half from their logarithms, half from ranks as normal scores; mean 0, standard deviation 1.

    Ranks alone hide how much better the best is; with logarithms alone the slowest configs dominate the fit.
    """
    logs = _scaled(np.log(seconds))
    ranks = _scaled(_normal_scores(len(seconds))[np.argsort(np.argsort(logs, kind="stable"), kind="stable")])
    return _scaled(0.5 * logs + 0.5 * ranks)


def _scaled(values: Floats) -> Floats:
    spread = float(values.std())
    return np.asarray((values - values.mean()) / (spread if spread > 1e-12 else 1.0))


@lru_cache(maxsize=1024)
def _normal_scores(n: int) -> Floats:
    normal = NormalDist()
    upper = [-normal.inv_cdf((i + 0.5) / n) for i in range(n // 2)]  # the other half mirrors it
    return np.array([*(-score for score in upper), *([0.0] * (n % 2)), *reversed(upper)])


_MOST = 200  # trials that are learned from; a Gaussian process over n trials costs n^2 per trial
_BEST = 120  # the fastest of these; the others are drawn from the rest
_FIRST_STEPS, _STEPS = 60, 12
_PART = 5  # trees are retrained when the trials have grown by one part in this many
_WORKS = 0.9  # the prior probability that a config works
_DOUBT = 0.1  # the noise of the observations that a config works or fails
_FLOOR = 0.02  # least probability: no config is ruled out entirely
_SHORT = 256  # configs among which a batch is chosen at first
DIGITS = 9  # acquisitions are rounded to these digits, so that rounding errors of another BLAS do not change a search


class GaussianGuide:
    """The time and the probability to work, each a Gaussian process over the same kernel.

    With `trees`, the expected time is the mean of the process's and the trees' predictions; the uncertainty is the
    process's.
    """

    def __init__(self, encoding: Encoding, seed: int, trees: Regressor | None = None) -> None:
        self.kernel = Covariance(encoding.distances)
        self._seed = seed
        self._fitted = False
        self._trees = trees
        self._trained = 0  # trials that the trees were trained on

    def general(self) -> list[float]:
        return self.kernel.logs

    def recall(self, general: Sequence[float]) -> None:
        self.kernel.recall(general)
        self._fitted = True

    def heir(self) -> GaussianGuide:
        heir = copy(self)
        heir.kernel = copy(self.kernel)  # a fit replaces its arrays without modifying them
        return heir

    def choose(self, lessons: Sequence[Lesson]) -> list[Lesson]:
        """All of them, or if there are many, the fastest ones and some of the others."""
        if len(lessons) <= _MOST:
            return list(lessons)
        order = sorted(range(len(lessons)), key=lambda i: (lessons[i].seconds is None, lessons[i].seconds or 0.0))
        rng = np.random.default_rng([self._seed, len(lessons)])
        others = rng.permutation(np.array(order[_BEST:]))[: _MOST - _BEST].tolist()
        return [lessons[i] for i in sorted(order[:_BEST] + others)]

    def renew(self, pool: Pool, chosen: Sequence[Lesson], *, fit: bool = True) -> None:
        self._pool = pool
        self._tried = list(chosen)
        self._right = [t for t in chosen if t.seconds is not None]
        places = [pool.place[t.rank] for t in self._right]
        if fit:
            self.kernel.fit(pool.columns[:, places].T, self._results(), _STEPS if self._fitted else _FIRST_STEPS)
            self._fitted = True
        self._time = Posterior(self.kernel, pool.joined)
        self._time.start(places)
        self._works: Posterior | None = None
        if len(self._right) < len(self._tried):
            self._learn_failures()
        self._train()

    def widen(self) -> None:
        for posterior, lessons in ((self._time, self._right), (self._works, self._tried)):
            if posterior is not None:
                posterior.widen(self._pool.joined, [self._pool.place[t.rank] for t in lessons])

    def hear(self, lessons: Sequence[Lesson]) -> None:
        if self._trees is None or len(self._tried) >= _MOST:
            self._hear(lessons)  # the trees learn of them at the next renewal
            return
        for one in lessons:
            self._hear([one])
            if len(self._tried) - self._trained >= max(1, len(self._tried) // _PART):
                self._train()

    def _hear(self, lessons: Sequence[Lesson]) -> None:
        right = [t for t in lessons if t.seconds is not None]
        self._tried += lessons
        self._right += right
        self._observe(self._time, right)
        if self._works is not None:
            self._observe(self._works, lessons)
        elif len(right) < len(lessons):
            self._learn_failures()

    def _observe(self, posterior: Posterior, lessons: Sequence[Lesson]) -> None:
        places = [self._pool.place[t.rank] for t in lessons]
        if len(places) == 1:
            posterior.add(places[0])
        elif places:
            posterior.add_all(places)

    def ahead(self, count: int, pending: Sequence[int]) -> list[int]:
        """Everything is predicted once: a trial that ends as predicted changes the uncertainty, not the expected times.

        So the expected improvement of a config can only fall. It is enough to look at the most promising configs, until
        another one could be better than the best of them.
        """
        acquisition = np.where(self._pool.open, np.round(self._acquisition(), DIGITS), -np.inf)
        count = min(count, int(np.isfinite(acquisition).sum()))
        if count == 1 and not pending:
            return [int(np.argmax(acquisition))]
        most, chosen = _SHORT, None
        while chosen is None:
            chosen = self._chosen(count, pending, acquisition, most)
            most *= 4
        return chosen

    def _chosen(self, count: int, pending: Sequence[int], acquisition: Floats, most: int) -> list[int] | None:
        """Choose among the most promising configs; None if others could be better."""
        least = np.partition(acquisition, -most)[-most] if most < len(acquisition) else -np.inf
        short = np.flatnonzero((acquisition >= least) & np.isfinite(acquisition))
        others = float(acquisition[acquisition < least].max(initial=-np.inf))
        places = np.concatenate([np.array(pending, dtype=np.int64), short])
        part, mean = self._time.part(places), self._mean[places]
        chance = self._chance[places] if self._works is not None else np.zeros(len(places))
        chance[: len(pending)] = -np.inf
        if pending:
            part.imagine(range(len(pending)))
        chosen: list[int] = []
        for _ in range(count):
            wanted = np.round(log_improvement(mean, part.spread(), self._best) + chance, DIGITS)
            best = int(np.argmax(wanted))
            if wanted[best] < others:
                return None
            chosen.append(best)
            chance[best] = -np.inf
            part.imagine([best])
        return places[chosen].tolist()  # type: ignore[no-any-return]

    def _acquisition(self) -> Floats:
        """The logarithm of the expected gain from a trial of each config in the pool."""
        results = self._results()
        self._mean, spread = self._time.predict(results)
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

    def _results(self) -> Floats:
        return standardised(np.array([t.seconds for t in self._right]))

    def _train(self) -> None:
        self._trained = len(self._tried)
        if self._trees is not None:
            places = [self._pool.place[t.rank] for t in self._right]
            self._trees.fit(self._pool.columns[:, places].T, self._results())
            self._by_trees = self._trees.predict(self._pool.columns.T)

    def _learn_failures(self) -> None:
        self._works = Posterior(self.kernel, self._pool.joined, _DOUBT)
        self._works.start([self._pool.place[t.rank] for t in self._tried])
