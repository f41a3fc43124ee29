"""The second look at a config, once it is built: what the toolchain told of it may show that it need not be run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deepgen.search.encoding import Encoding, Floats, Ints
from deepgen.search.gaussian import Kernel
from deepgen.space import Space
from deepgen.vocabulary import Trial

_LEARN = 40  # right trials, before which every built kernel is run
_MOST = 200  # trials that are learned from: the latest
_EVERY = 20  # trials after which it learns anew
_STEPS = 25
_LEVELS = 12  # of a fact
_SURE = 3.0  # standard deviations


class SecondLook:
    """Expects a time from the config and the numbers among its build facts. It is told of trials as a strategy is."""

    def __init__(self, space: Space, slower: float = 2.0) -> None:
        self._encoding = Encoding(space)
        self._slower = math.log(slower)
        self._trials: list[Trial] = []
        self._learned = 0
        self._best = math.inf
        self._edges: dict[str, Floats] = {}

    def hear(self, trial: Trial) -> None:
        if trial.seconds is not None:
            self._trials.append(trial)
            self._best = min(self._best, math.log(trial.seconds))

    def hopeless(self, rank: int, facts: Mapping[str, Any]) -> bool:
        """Whether a built kernel is surely slower than the best by the factor `slower`, and need not be run."""
        if len(self._trials) < _LEARN:
            return False
        if len(self._trials) >= self._learned + _EVERY or not self._learned:
            self._learn()
        cross = self._kernel.between(self._codes, self._rows([rank], [facts]).T)[:, 0]
        mean = self._mean + float(self._pull @ cross)
        unknown = max(1.0 + self._kernel.noise - float(cross @ self._inverse @ cross), 1e-6)
        return mean - _SURE * math.sqrt(self._amplitude * unknown) > self._best + self._slower

    def _learn(self) -> None:
        kept = self._trials[-_MOST:]
        self._learned = len(self._trials)
        self._edges = _edges([t.build_facts for t in kept])
        self._codes = self._rows([t.rank for t in kept], [t.build_facts for t in kept])
        logs = np.array([math.log(t.seconds) for t in kept if t.seconds is not None])
        self._kernel = Kernel([*self._encoding.distances, *(_line(len(e) + 1) for e in self._edges.values())])
        spread = float(logs.std()) or 1.0
        self._kernel.fit(self._codes, (logs - logs.mean()) / spread, _STEPS)
        covariance = self._kernel.between(self._codes, self._codes.T) + self._kernel.noise * np.eye(len(kept))
        self._inverse = np.linalg.inv(covariance)
        self._mean = float(self._inverse.sum(axis=1) @ logs / self._inverse.sum())
        self._pull = self._inverse @ (logs - self._mean)
        self._amplitude = float((logs - self._mean) @ self._pull) / len(kept)

    def _rows(self, ranks: Sequence[int], facts: Sequence[Mapping[str, Any]]) -> Ints:
        levels = [
            [int(np.searchsorted(edges, _number(f.get(name)))) for f in facts] for name, edges in self._edges.items()
        ]
        return np.column_stack([self._encoding.codes(ranks), *(np.array(column) for column in levels)])


def _edges(facts: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """The levels of each fact that is a number and differs. The time a build took says nothing of the kernel's."""
    found = {}
    for name in sorted({n for f in facts for n in f if not n.endswith("seconds")}):
        values = [_number(f.get(name)) for f in facts]
        edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, _LEVELS + 1)[1:-1]))
        if min(values) < max(values):
            found[name] = edges
    return found


def _number(value: Any) -> float:
    return math.log1p(abs(value)) if isinstance(value, (int, float)) else 0.0


def _line(levels: int) -> Floats:
    at = np.linspace(0.0, 1.0, levels)
    return np.abs(at[:, None] - at[None, :])
