"""Evolutionary search: children mix two good parents, or change one knob of one, and stay valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from deepgen.tuning.search.base import Fresh, Setting, check_options
from deepgen.tuning.search.evolving import mix, mutate, tournament
from deepgen.vocabulary import Trial

_OPTIONS = {
    "population": 20,  # the best configs so far, from which parents come
    "mutation": 0.4,  # the share of children that change one knob of one parent
    "tournament": 3,  # a parent is the best of this many drawn ones
}
_TRIES = 20


class Evolution:
    """The strategy `evolution`. It has no generations: each trial may enter the population at once."""

    OPTIONS: ClassVar[Mapping[str, Any]] = _OPTIONS

    def __init__(self, setting: Setting) -> None:
        options = check_options("evolution", setting.options, self.OPTIONS)
        self._size, self._draws = int(options["population"]), int(options["tournament"])
        self._mutation = float(options["mutation"])
        self._fresh = Fresh(setting)
        self._rng = np.random.default_rng(setting.seed)
        self._population: list[tuple[float, int]] = []  # time and rank, the fastest first

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = self._fresh.starts(n)
        while len(ranks) < n:
            child = self._child() if len(self._population) >= self._size // 2 else []
            new = child or self._fresh.random(1)
            if not new:
                break
            ranks += new
        return self._fresh.configs(ranks)

    def tell(self, trial: Trial) -> None:
        if trial.seconds is not None:
            self._population = sorted([*self._population, (trial.seconds, trial.rank)])[: self._size]

    def _child(self) -> list[int]:
        space, rng = self._fresh.space, self._rng
        for _ in range(_TRIES):
            parents = [space.at(tournament(self._population, self._draws, rng)) for _ in range(2)]
            if rng.random() < self._mutation:
                config = mutate(space, parents[0], rng)
            else:
                config = mix(space, parents[0], parents[1], rng)
            new = self._fresh.take([space.rank(config)]) if config is not None else []
            if new:
                return new
        return []
