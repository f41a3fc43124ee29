"""Strategies without a model: random search, the whole space in order, simulated annealing, and evolution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from deepgen.space import Space
from deepgen.tuning.search.base import Fresh, Setting, Shuffle, check_options
from deepgen.vocabulary import BadInput, Trial


class Random:
    """Draws configs in a seeded random order of the whole space."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, setting: Setting) -> None:
        check_options("random", setting.options, self.OPTIONS)
        self._fresh = Fresh(setting)

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = self._fresh.starts(n)
        return self._fresh.configs(ranks + self._fresh.random(n - len(ranks)))

    def tell(self, trial: Trial) -> None:
        """Random search ignores results."""


class Exhaustive:
    """Goes through the space by rank. Options: `start_from`, the first place; `shuffled`, a seeded random order."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {"start_from": 0, "shuffled": False}

    def __init__(self, setting: Setting) -> None:
        options = check_options("exhaustive", setting.options, self.OPTIONS)
        self._space = setting.space
        self._count = setting.space.ranks
        self._order = Shuffle(self._count, setting.seed) if options["shuffled"] else range(self._count)
        self._next = int(options["start_from"])
        if not 0 <= self._next <= self._count:
            raise BadInput(f"start_from is {self._next}", allowed=f"a rank from 0 to {self._count - 1}")

    def ask(self, n: int) -> list[dict[str, Any]]:
        listed: list[int] = []
        while len(listed) < n and self._next < self._count:
            places = range(self._next, min(self._next + n - len(listed), self._count))
            self._next = places.stop
            ranks = [self._order[place] for place in places]
            listed += [rank for rank, valid in zip(ranks, self._space.are_ranks(ranks), strict=True) if valid]
        return [self._space.at(rank) for rank in listed]

    def tell(self, trial: Trial) -> None:
        """The order does not depend on results."""


_OPTIONS = {
    "warm_up": 10,  # random configs; the walk starts from the best of them
    "temperature": 0.2,  # initial slowdown, as a logarithm, that is accepted with probability 1/e
    "cooling": 0.97,  # factor on the temperature after each trial
    "patience": 20,  # trials without a step after which the walk returns to the best config
}


class Annealing:
    """The strategy `annealing`."""

    OPTIONS: ClassVar[Mapping[str, Any]] = _OPTIONS

    def __init__(self, setting: Setting) -> None:
        options = check_options("annealing", setting.options, self.OPTIONS)
        self._temperature, self._cooling = float(options["temperature"]), float(options["cooling"])
        self._patience, self._warm_up = int(options["patience"]), int(options["warm_up"])
        self._fresh = Fresh(setting)
        self._rng = np.random.default_rng(setting.seed)
        self._here: tuple[float, int] | None = None  # logarithm of the time, and rank
        self._best: tuple[float, int] | None = None
        self._heard = 0
        self._stuck = 0  # trials since the last step

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = self._fresh.starts(n)
        while len(ranks) < n:
            step = self._step()
            if not step:
                break
            ranks += step
        return self._fresh.configs(ranks)

    def tell(self, trial: Trial) -> None:
        self._heard += 1
        if self._heard > self._warm_up:
            self._temperature *= self._cooling
            self._stuck += 1
        if trial.seconds is None:
            return
        now = (math.log(trial.seconds), trial.rank)
        if self._best is None or now < self._best:
            self._best = now
        if self._heard <= self._warm_up:
            self._here = self._best
        elif self._here is None or self._accepts(now[0] - self._here[0]):
            self._here, self._stuck = now, 0
        elif self._stuck > self._patience:
            self._here, self._stuck = self._best, 0

    def _accepts(self, worse: float) -> bool:
        return worse <= 0.0 or bool(self._rng.random() < math.exp(-worse / max(self._temperature, 1e-9)))

    def _step(self) -> list[int]:
        """A new neighbour of the walk's current config, or a random config if there is none."""
        if self._here is not None and len(self._fresh.taken) >= self._warm_up:
            space = self._fresh.space
            around = [space.rank(c) for c in space.neighbors(space.at(self._here[1]))]
            free = [rank for rank in around if rank not in self._fresh.taken]
            if free:
                return self._fresh.take([free[int(self._rng.integers(len(free)))]])
        return self._fresh.random(1)


_EVOLUTION = {
    "population": 20,  # the best configs so far, from which parents are drawn
    "mutation": 0.4,  # the share of children that change one knob of one parent
    "tournament": 3,  # a parent is the best of this many drawn ones
}
_TRIES = 20


class Evolution:
    """The strategy `evolution`. There are no generations: each trial may enter the population at once."""

    OPTIONS: ClassVar[Mapping[str, Any]] = _EVOLUTION

    def __init__(self, setting: Setting) -> None:
        options = check_options("evolution", setting.options, self.OPTIONS)
        self._size, self._draws = int(options["population"]), int(options["tournament"])
        self._mutation = float(options["mutation"])
        self._fresh = Fresh(setting)
        self._rng = np.random.default_rng(setting.seed)
        self._population: list[tuple[float, int]] = []  # time and rank, fastest first

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
    """The rank of the best of several randomly drawn members."""
    return min(population[int(i)] for i in rng.integers(len(population), size=draws))[1]


def mutate(space: Space, config: Mapping[str, Any], rng: np.random.Generator) -> Config | None:
    """A valid config that differs in one knob."""
    around = space.neighbors(config)
    return around[int(rng.integers(len(around)))] if around else None


def mix(space: Space, one: Mapping[str, Any], other: Mapping[str, Any], rng: np.random.Generator) -> Config | None:
    """Take each knob from either parent; if the result is invalid, repair it knob by knob from the first parent."""
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
