"""Skips a built config if its build statistics predict that it is too slow to be worth running."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from deepgen.space import Space
from deepgen.tuning.search.encoding import Encoding, Floats, Ints
from deepgen.tuning.search.gaussian import Covariance
from deepgen.tuning.search.guide import CLEARLY_SLOWER
from deepgen.vocabulary import Trial
from deepgen.vocabulary.dtypes import distinct

_LEARN = 40  # correct trials before which every built kernel is run
_GROWTH = 1.5  # the model is retrained when the correct trials have grown by this factor
_MOST = 200  # the latest trials that are learned from
_STEPS = 25
_LEVELS = 12  # levels of a build fact
_SURE = 4.0  # standard deviations

Facts = Mapping[str, Any]


class SecondLook:
    """Predicts the time from the config and the numeric build facts. It is told about trials like a strategy."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._trials: list[Trial] = []
        self._best = math.inf
        self._next = _LEARN  # correct trials at which it is trained next
        self._learned = 0  # correct trials at the last training
        self._model: _FactsModel | None = None

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding(self._space)

    def hear(self, trial: Trial) -> None:
        if trial.seconds is not None:
            self._trials.append(trial)
            self._best = min(self._best, trial.seconds)

    def opinions(self, ranks: Sequence[int]) -> list[Opinion]:
        """The current opinions of these configs, to be used once their kernels are built. Opinions never change."""
        while len(self._trials) >= self._next:
            self._learned, self._next = self._next, math.ceil(self._next * _GROWTH)
            self._model = None
        if self._learned and self._model is None:
            learned = self._trials[: self._learned][-_MOST:]
            # If the build facts do not vary, there is no reason to skip a run.
            if not _edges([t.build_facts for t in learned]):
                return [Opinion()] * len(ranks)
            self._model = _FactsModel(self._encoding, learned)
        if self._model is None:
            return [Opinion()] * len(ranks)
        return [Opinion(self._model, self._best, codes) for codes in self._encoding.codes(ranks)]


@dataclass(frozen=True)
class Opinion:
    """The prediction for a config at one point of a search; the same in every thread."""

    model: _FactsModel | None = None
    best: float = math.inf
    codes: Ints | None = None

    def hopeless(self, facts: Facts) -> bool:
        """Whether its built kernel is almost certainly much slower than the best one."""
        if self.model is None or self.codes is None:
            return False
        mean, deviation = self.model.expect(self.codes, facts)
        return mean - _SURE * deviation > math.log(CLEARLY_SLOWER * self.best)


class _FactsModel:
    """A model of the logarithm of the time, trained on correct trials."""

    def __init__(self, encoding: Encoding, trials: Sequence[Trial]) -> None:
        facts = [t.build_facts for t in trials]
        self.facts = _edges(facts)
        self._codes = self._rows(encoding.codes([t.rank for t in trials]), facts)
        logs = np.array([math.log(t.seconds) for t in trials if t.seconds is not None])
        self._kernel = Covariance([*encoding.distances, *(_line(len(edges) + 1) for edges in self.facts.values())])
        spread = float(logs.std()) or 1.0
        self._kernel.fit(self._codes, (logs - logs.mean()) / spread, _STEPS)
        covariance = self._kernel.between(self._codes, self._codes.T) + self._kernel.noise * np.eye(len(logs))
        self._inverse = np.linalg.inv(covariance)
        self._mean = float(self._inverse.sum(axis=1) @ logs / self._inverse.sum())
        self._pull = self._inverse @ (logs - self._mean)
        self._amplitude = float((logs - self._mean) @ self._pull) / len(logs)

    def expect(self, codes: Ints, facts: Facts) -> tuple[float, float]:
        """The expected logarithm of the time, and its standard deviation."""
        cross = self._kernel.between(self._codes, self._rows(codes[None, :], [facts]).T)[:, 0]
        unknown = max(1.0 + self._kernel.noise - float(cross @ self._inverse @ cross), 1e-6)
        return self._mean + float(self._pull @ cross), math.sqrt(self._amplitude * unknown)

    def _rows(self, codes: Ints, facts: Sequence[Facts]) -> Ints:
        levels = [
            [int(np.searchsorted(edges, _number(f.get(name)))) for f in facts] for name, edges in self.facts.items()
        ]
        return np.column_stack([codes, *(np.array(column) for column in levels)])


def _edges(facts: Sequence[Facts]) -> dict[str, Floats]:
    """The levels of each numeric fact that varies. Build times are left out: they say nothing about a kernel."""
    edges_of = {}
    for name in sorted({n for f in facts for n in f if not n.endswith("seconds")}):
        values = [_number(f.get(name)) for f in facts]
        edges = distinct(np.quantile(values, np.linspace(0.0, 1.0, _LEVELS + 1)[1:-1]))
        if min(values) < max(values):
            edges_of[name] = edges
    return edges_of


def _number(value: Any) -> float:
    return math.log1p(abs(value)) if isinstance(value, (int, float)) else 0.0


def _line(levels: int) -> Floats:
    at = np.linspace(0.0, 1.0, levels)
    return np.abs(at[:, None] - at[None, :])
