"""Evolutionary search: children mix two good parents, or change one knob of one, and stay valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from deepgen.space import Space
from deepgen.tuning.search.base import Fresh, Setting, check_options
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


Config = dict[str, Any]


def tournament(population: Sequence[tuple[float, int]], draws: int, rng: np.random.Generator) -> int:
    """The rank of the best of some drawn members."""
    return min(population[int(i)] for i in rng.integers(len(population), size=draws))[1]


def mutate(space: Space, config: Mapping[str, Any], rng: np.random.Generator) -> Config | None:
    """A valid config that differs in one knob."""
    around = space.neighbors(config)
    return around[int(rng.integers(len(around)))] if around else None


def mix(space: Space, one: Mapping[str, Any], other: Mapping[str, Any], rng: np.random.Generator) -> Config | None:
    """Each knob from either parent; where the requirements refuse that, knob by knob towards the other parent."""
    sources = {name: one if rng.random() < 0.5 else other for name in {**one, **other}}
    child = {name: source[name] for name, source in sources.items() if name in source}
    return child if space.contains(child) else repair(space, child, one)


def repair(space: Space, broken: Mapping[str, Any], valid: Mapping[str, Any]) -> Config:
    """The valid config with as many knobs as possible, one after another, set as in the broken one."""
    fixed = dict(valid)
    for name, value in broken.items():
        if name in fixed:
            tried = {**fixed, name: value}
            if space.contains(tried):
                fixed = tried
    return fixed
