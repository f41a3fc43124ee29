"""Transfer learning from earlier studies of similar spaces.

An earlier study contributes three things: the time it predicts for each config, as one more column of the encoding; its
fitted kernel, from which the new one starts; and the configs that the new search tries first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from deepgen.space import Knob, Space
from deepgen.tuning.search.base import Past
from deepgen.tuning.search.encoding import Encoding, Floats, Ints
from deepgen.tuning.search.gaussian import LENGTH, WEIGHT, Covariance
from deepgen.tuning.search.guide import standardised
from deepgen.tuning.search.regressors import GaussianRegressor
from deepgen.vocabulary import Trial, Verdict
from deepgen.vocabulary.dtypes import distinct

EXPECTED = "expected by earlier studies"  # the column's name
_SIMILAR = 0.6  # the least similarity: the share of the two spaces' knobs that both spaces have
_LEARN = 8  # correct trials needed for an earlier study to be used
_BEST, _OTHERS = 100, 150  # trials that its model is fitted to: the fastest, and some of the rest
_LEVELS = 32
_SAMPLE = 2_000  # configs sampled to set the levels


class Prior:
    """The predictions of earlier studies, each weighted by the share of the new space's knobs that it has."""

    def __init__(self, space: Space, history: Sequence[Past]) -> None:
        self._space = space
        useful = [past for past in history if _useful(space, past)]
        self._studies = sorted(useful, key=lambda past: -_similarity(space, past))
        self.names = [past.name for past in self._studies]

    @cached_property
    def _encoding(self) -> Encoding:
        return Encoding(self._space)

    @cached_property
    def _sources(self) -> list[_Source]:
        """Fitted at first use, so that the first config of a study does not wait for them."""
        return [_Source(self._encoding, past) for past in self._studies]

    @cached_property
    def _edges(self) -> Floats:
        ordered = np.sort(self.expected(self._encoding.codes(self._space.sample_ranks(_SAMPLE, 0, distinct=True))))
        # Levels are finest where configs are fastest, because the search has to distinguish those.
        shares = 10.0 ** np.linspace(-3.0, 0.0, _LEVELS + 1)[1:-1]
        return distinct(ordered[(shares * (len(ordered) - 1)).astype(np.int64)])

    @property
    def distances(self) -> Floats:
        at = np.linspace(0.0, 1.0, len(self._edges) + 1)
        return np.abs(at[:, None] - at[None, :])

    def expected(self, codes: Ints) -> Floats:
        """The expected time of each config, standardised: lower is better."""
        weights = np.array([source.similarity for source in self._sources])
        each = np.array([source.expected(codes) for source in self._sources])
        return np.asarray(weights @ each / weights.sum())

    def levels(self, codes: Ints) -> Ints:
        """The expected time as a column of the encoding."""
        return np.searchsorted(self._edges, self.expected(codes))

    def misleads(self, codes: Ints, seconds: Floats) -> bool:
        """Whether the new study's times are negatively correlated with the predicted ones."""
        expected, measured = np.argsort(np.argsort(self.expected(codes))), np.argsort(np.argsort(seconds))
        return bool(np.corrcoef(expected, measured)[0, 1] < 0.0)

    def inform(self, kernel: Covariance, encoding: Encoding) -> None:
        """Start a kernel from the most similar study's fitted one; the column of expected times weighs double."""
        self._sources[0].inform(kernel, encoding)
        if EXPECTED in encoding.names:
            kernel.centre({encoding.names.index(EXPECTED): (LENGTH[0], WEIGHT[0] + math.log(2.0))})


class _Source:
    """One earlier study, reduced to the knobs that it shares with the new space."""

    def __init__(self, encoding: Encoding, past: Past) -> None:
        self.name = past.name
        theirs = {k.name: k.values for k in past.space.knobs}
        shared = Space("shared")
        self._columns = []
        for i, knob in enumerate(encoding.knobs):
            if knob.name in theirs and _always(knob):
                values = [*knob.values, *(v for v in theirs[knob.name] if v not in knob.values)]
                shared.knob(knob.name, sorted(values) if _numbers(values) else values)
                self._columns.append(i)
        self._shared = Encoding(shared)
        self._maps = [
            np.array([k.values.index(v) for v in encoding.knobs[i].values])
            for i, k in zip(self._columns, self._shared.knobs, strict=True)
        ]
        self.similarity = _similarity(encoding.space, past)
        settled = [t for t in past.trials if t.measurement.verdict is not Verdict.UNSTABLE]
        self._learn([t for t in settled if all(k.name in t.config for k in self._shared.knobs)])

    def expected(self, codes: Ints) -> Floats:
        places = np.stack([m[codes[:, i]] for i, m in zip(self._columns, self._maps, strict=True)], axis=1)
        result = self._regressor.predict(self._shared.with_alignments(places))
        self._measured.put(places, result)
        return result

    def inform(self, kernel: Covariance, encoding: Encoding) -> None:
        fitted = dict(zip(self._shared.names, self._regressor.kernel.settings(), strict=True))
        kernel.centre({i: fitted[name] for i, name in enumerate(encoding.names) if name in fitted})

    def _learn(self, trials: Sequence[Trial]) -> None:
        ordered = sorted(trials, key=lambda t: (t.seconds is None, t.seconds or 0.0, t.id))
        times = np.array([t.seconds for t in ordered if t.seconds is not None])
        y = np.full(len(ordered), 0.0)
        y[: len(times)] = standardised(times)
        y[len(times) :] = y[len(times) - 1]  # failures and kernels that were not run count like the slowest
        codes = self._shared.codes_of([t.config for t in ordered])
        self._measured = _Measured(codes[:, : len(self._shared.knobs)], y)
        others = np.random.default_rng(0).permutation(np.arange(_BEST, max(_BEST, len(times))))[:_OTHERS]
        fitted = np.concatenate([np.arange(min(_BEST, len(times))), np.sort(others)])
        self._regressor = GaussianRegressor(self._shared)
        self._regressor.fit(codes[fitted], y[fitted])


def _useful(space: Space, past: Past) -> bool:
    """Whether it shares enough knobs and has enough correct trials."""
    return _similarity(space, past) >= _SIMILAR and past.succeeded() >= _LEARN


def _similarity(space: Space, past: Past) -> float:
    mine = {k.name for k in space.knobs if k.places > 1}
    shared = {k.name for k in space.knobs if k.places > 1 and _always(k)} & {k.name for k in past.space.knobs}
    return len(shared) / max(1, len(mine | {k.name for k in past.space.knobs if k.places > 1}))


def _always(knob: Knob) -> bool:
    """Whether the knob exists in every config: an earlier study cannot predict the effect of an absent knob."""
    return knob.places == len(knob.values)


def _numbers(values: Sequence[object]) -> bool:
    return all(isinstance(v, (int, float)) for v in values)


class _Measured:
    """The mean result of configs that are equal here: an earlier space may have additional knobs."""

    def __init__(self, places: Ints, y: Floats) -> None:
        self._rows, which = np.unique(places, axis=0, return_inverse=True)
        self._means = np.bincount(which.ravel(), weights=y) / np.bincount(which.ravel())
        # A hash of each row, to compare many rows at once; rows with equal hashes are compared in full.
        self._factors = np.random.default_rng(0).integers(1 << 62, size=places.shape[1])
        numbers = self._rows @ self._factors
        self._order = np.argsort(numbers)
        self._numbers = numbers[self._order]

    def put(self, places: Ints, expected: Floats) -> None:
        """Replace the expected results of configs that were measured by their measured ones."""
        at = np.searchsorted(self._numbers, places @ self._factors).clip(max=len(self._numbers) - 1)
        same = self._order[at]
        measured = (self._rows[same] == places).all(axis=1)
        expected[measured] = self._means[same[measured]]
