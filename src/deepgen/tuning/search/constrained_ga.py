"""A constrained genetic algorithm: genes are restrictions of the space, and solving them gives valid configs.

In a round, a population of random configs and the best measured ones evolves for some generations under the cost model.
Then a batch of it is measured, most of it chosen by prediction and the rest at random, and the model learns from it. A
child restricts the most important knobs to its parents' values; a mutation drops one of these restrictions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from deepgen.tuning.search.base import Fresh, Setting, check_options
from deepgen.tuning.search.encoding import Encoding, Floats, Ints
from deepgen.tuning.search.guide import Lesson, Lessons, standardised
from deepgen.tuning.search.plain import mix, mutate
from deepgen.tuning.search.pool import Pool
from deepgen.tuning.search.regressors import LIBRARIES, make_regressor
from deepgen.vocabulary import BadInput, Trial

_OPTIONS = {
    "population": 200,
    "history": 32,  # in the population, the fastest configs measured so far
    "generations": 5,
    "round": 32,  # configs measured before the model is retrained
    "by_prediction": 0.6,  # the share of a round chosen by prediction; the rest is random
    "key_share": 0.4,  # the share of knobs treated as key knobs
    "mutation": 0.3,  # the share of children that drop one restriction
    "variant": "full",
    "library": LIBRARIES[0],
}
# Variants that omit a part of the algorithm, to see what it contributes.
VARIANTS = ("full", "random_keys", "free_crossover", "repair", "random")
_LEARN = 3  # correct trials needed before the model learns
_MOST = 250  # the latest trials that the model learns from


class ConstrainedGA:
    """The strategy `constrained_ga`.

    Option `variant`: `full`; `random_keys`, random key knobs instead of the most important ones; `free_crossover`,
    children without restrictions; `repair`, a plain genetic algorithm whose invalid children are repaired; `random`,
    random valid configs.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = _OPTIONS

    def __init__(self, setting: Setting) -> None:
        self._options = check_options("constrained_ga", setting.options, self.OPTIONS)
        if self._options["variant"] not in VARIANTS:
            raise BadInput(f"variant is {self._options['variant']!r}", allowed="one of " + ", ".join(VARIANTS))
        self._fresh = Fresh(setting)
        self._encoding = Encoding(setting.space)
        self._regressor = make_regressor(self._options["library"], self._encoding, setting.seed)
        self._solver = RestrictionSolver(self._encoding)
        self._rng = np.random.default_rng(setting.seed)
        self._lessons = Lessons()
        self._learned: list[Lesson] = []
        self._queue: list[int] = []

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = self._fresh.starts(n)
        while len(ranks) < n:
            if not self._queue:
                self._queue = self._next_round()
            if not self._queue:
                break
            part = self._queue[: n - len(ranks)]
            self._queue = self._queue[len(part) :]
            ranks += part
        return self._fresh.configs(ranks)

    def tell(self, trial: Trial) -> None:
        self._learned += self._lessons.of(trial)

    def _next_round(self) -> list[int]:
        wanted = self._options["round"]
        right = sum(t.seconds is not None for t in self._learned)
        if right < _LEARN or self._options["variant"] == "random":
            return self._fresh.random(wanted)
        self._learn()
        population = self._first_population()
        for _ in range(self._options["generations"]):
            population = self._evolve(population)
        return self._select(population, wanted)

    def _learn(self) -> None:
        kept = self._learned[-_MOST:]
        times = np.array([t.seconds or 0.0 for t in kept])
        worked = times > 0.0
        if not worked.any():
            return
        y = np.empty(len(kept))
        y[worked] = standardised(times[worked])
        y[~worked] = y[worked].max()
        self._regressor.fit(self._encoding.codes([t.rank for t in kept]), y)

    def _first_population(self) -> list[int]:
        best = sorted((t.seconds, t.rank) for t in self._learned if t.seconds is not None)[: self._options["history"]]
        size = min(self._options["population"], self._fresh.count)
        drawn = self._fresh.space.sample_ranks(size, int(self._rng.integers(2**31)), distinct=True)
        return list(dict.fromkeys([*(r for _, r in best), *drawn]))[:size]

    def _evolve(self, population: list[int]) -> list[int]:
        """The next generation: the faster a member is predicted to be, the more children it has."""
        codes = self._encoding.codes(population)
        odds = _roulette(self._regressor.predict(codes))
        parents = self._rng.choice(len(population), size=(len(population), 2), p=odds)
        children = [self._child(population, codes, int(a), int(b)) for a, b in parents.tolist()]
        return list(dict.fromkeys([*(c for c in children if c is not None), *population]))[: len(population)]

    def _child(self, population: list[int], codes: Ints, a: int, b: int) -> int | None:
        rng, space = self._rng, self._fresh.space
        mutates = rng.random() < self._options["mutation"]
        if self._options["variant"] == "repair":
            config = mix(space, space.at(population[a]), space.at(population[b]), rng)
            changed = mutate(space, config, rng) if mutates and config is not None else config
            return None if changed is None else space.rank(changed)
        keys = [] if self._options["variant"] == "free_crossover" else self._key_knobs()
        if keys and mutates:
            keys.pop(int(rng.integers(len(keys))))
        return self._solver.draw({k: {int(codes[a, k]), int(codes[b, k])} for k in keys}, rng)

    def _key_knobs(self) -> list[int]:
        width = len(self._encoding.knobs)
        count = max(1, round(self._options["key_share"] * width))
        if self._options["variant"] == "random_keys":
            return [int(k) for k in self._rng.permutation(width)[:count]]
        return [int(k) for k in np.argsort(-self._regressor.importances(), kind="stable")[:count]]

    def _select(self, population: list[int], wanted: int) -> list[int]:
        """Mostly by prediction with roulette selection, some at random; only new ones. Random configs fill the rest."""
        free = [rank for rank in population if rank not in self._fresh.taken]
        chosen: list[int] = []
        if free:
            odds = _roulette(self._regressor.predict(self._encoding.codes(free)))
            count = min(len(free), round(self._options["by_prediction"] * wanted))
            picked = self._rng.choice(len(free), size=count, replace=False, p=odds)
            chosen = [free[int(i)] for i in picked]
            rest = [rank for rank in free if rank not in chosen]
            others = self._rng.permutation(len(rest))[: wanted - len(chosen)]
            chosen += [rest[int(i)] for i in others]
        chosen = self._fresh.take(chosen)
        return chosen + self._fresh.random(wanted - len(chosen))


def _roulette(predicted: Floats) -> Floats:
    """Probabilities that fall with the predicted time, which is in units of the trials' standard deviation."""
    weights = np.exp(-2.0 * (predicted - predicted.min()))
    return np.asarray(weights / weights.sum())


_LISTED = 50_000  # the largest space that is held as a table


class RestrictionSolver:
    """Draws valid configs under restrictions, each a set of allowed places for a knob of the encoding."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        size = encoding.space.size()
        # A table lookup takes a tenth of a millisecond, walking the compiled space a few milliseconds.
        small = size.exact and size.count <= _LISTED
        self._table: Ints | None = Pool(encoding, range(size.count), ()).columns if small else None

    def draw(self, restrictions: Mapping[int, Collection[int]], rng: np.random.Generator) -> int | None:
        """The rank of one config, uniform over those that satisfy the restrictions; None if there is none."""
        if self._table is None:
            return self._draw_restricted(restrictions, rng)
        fits = np.ones(self._table.shape[1], dtype=np.bool_)
        for knob, places in restrictions.items():
            fits &= np.isin(self._table[knob], list(places))
        matches = np.flatnonzero(fits)
        return int(matches[int(rng.integers(len(matches)))]) if len(matches) else None

    def _draw_restricted(self, restrictions: Mapping[int, Collection[int]], rng: np.random.Generator) -> int | None:
        space = self._encoding.space
        values = {}
        for knob, places in restrictions.items():
            restricted = self._encoding.knobs[knob]
            listed = [restricted.values[place] for place in sorted(places) if place < len(restricted.values)]
            if listed:  # if both parents lack the knob, it is not restricted
                values[restricted.name] = listed
        config = space.draw_within(values, int(rng.integers(2**31)))
        return None if config is None else space.rank(config)
