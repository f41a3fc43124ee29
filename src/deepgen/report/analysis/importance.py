"""How much of the variation in log time each knob explains, alone and together with others.

The model is a sum of one term for each knob and one for each pair of knobs, each term with mean zero (a functional
analysis of variance), fitted by kernel ridge regression. The share of a knob is how much worse held-out trials are
predicted when all terms with that knob are left out. A model that fits noise predicts nothing, so noise explains
nothing.

The p-values come from shuffling the times among the trials, as for correlations. Once knobs are found, only the part of
the time that they leave unexplained is shuffled, until no more are found: next to a strong knob, a weak one is hard to
detect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.report.analysis.numbers import Floats, distances, pulled_in

SHUFFLES = 499
MOST = 500  # trials; of more than that, a random sample is used
_FOLDS = 5
_RIDGES = (0.01, 0.1, 1.0)
_PAIRED = 8  # knobs whose pairs are examined


@dataclass(frozen=True)
class Importance:
    """What a knob explains, in shares of the variance of log time. `share` includes what it explains with others."""

    knob: str
    share: float
    alone: float
    p: float  # adjusted for the number of knobs
    partner: str | None = None  # the knob it explains most together with
    together: float = 0.0


def importances(
    knobs: Mapping[str, Sequence[Any]], log_time: Floats, level: float, seed: int = 0
) -> tuple[list[Importance], float]:
    """Every knob, the one that explains most first, and the share that all of them explain together."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(log_time))[:MOST])
    time = pulled_in(log_time[chosen])
    time = time - time.mean()
    if not knobs or time.std() == 0.0:
        return [], 0.0
    parts = {name: _part(distances([values[i] for i in chosen])) for name, values in knobs.items()}
    model, time = _KnobModel(parts, rng), time / time.std()
    every = frozenset(parts)
    fit = model.fit(time[:, None])
    whole = float(fit.errors(every)[0])
    explained = max(0.0, 1.0 - whole)
    p_values = _p_values(model, time, level, rng)
    shares = []
    for name in parts:
        lost = float(fit.errors(every - {name})[0]) - whole
        alone = 1.0 - float(fit.errors(frozenset({name}))[0])
        # The remaining terms may predict worse than the mean; still, no knob explains more than all together.
        lost, alone = (min(max(share, 0.0), explained) for share in (lost, alone))
        shares.append(Importance(name, lost, alone, p_values[name]))
    shares.sort(key=lambda one: (-one.share, one.p))
    return _with_partners(shares, fit, whole, level), explained


def _p_values(model: _KnobModel, time: Floats, level: float, rng: np.random.Generator) -> dict[str, float]:
    """Adjusted p-values: the share of shuffles in which any knob not yet found explains as much as this one."""
    every = frozenset(model.parts)
    p_values: dict[str, float] = {}
    sure: set[str] = set()
    predicted = np.zeros(len(time))  # what the knobs found so far predict
    while len(sure) < len(every):
        left = time - predicted
        fit = model.fit(np.column_stack([time, *(predicted + rng.permutation(left) for _ in range(SHUFFLES))]))
        whole = fit.errors(every)
        lost = {name: fit.errors(every - {name}) - whole for name in sorted(every - sure)}
        largest = np.sort(np.max([shares[1:] for shares in lost.values()], axis=0))
        floor = max((p_values[name] for name in sure), default=0.0)
        for name, shares in lost.items():
            as_strong = SHUFFLES - int(np.searchsorted(largest, shares[0] - 1e-12))
            p_values[name] = max(floor, (1 + as_strong) / (1 + SHUFFLES))
        more = {name for name in lost if p_values[name] <= level}
        if not more:
            break
        sure |= more
        predicted = fit.predict(frozenset(sure))[:, 0]
    return p_values


def _with_partners(knobs: list[Importance], fit: _Fit, whole: float, level: float) -> list[Importance]:
    """Add partners: what is lost in both cases, when two knobs are left out one at a time, they explain together."""
    sure = [one for one in knobs if one.p <= level][:_PAIRED]
    every = frozenset(one.knob for one in knobs)
    both: dict[tuple[str, str], float] = {}
    for i, one in enumerate(sure):
        for other in sure[i + 1 :]:
            lost = float(fit.errors(every - {one.knob, other.knob})[0]) - whole
            both[one.knob, other.knob] = both[other.knob, one.knob] = one.share + other.share - lost
    named = []
    for one in knobs:
        shared = {other: share for (knob, other), share in both.items() if knob == one.knob and share > 0}
        partner = max(shared, key=lambda other: shared[other], default=None)
        together = min(shared[partner], one.share) if partner else 0.0
        named.append(replace(one, partner=partner, together=together))
    return named


class _KnobModel:
    """Predicts each fold of the trials from the others."""

    def __init__(self, parts: Mapping[str, Floats], rng: np.random.Generator) -> None:
        self.parts = parts
        self.size = len(next(iter(parts.values())))
        folds = np.array_split(rng.permutation(self.size), _FOLDS)
        self.folds = [(fold, np.setdiff1d(np.arange(self.size), fold)) for fold in folds]
        every = self.kernel(frozenset(parts))
        self._solved = {ridge: [self._solve(every, ridge, rest) for _, rest in self.folds] for ridge in _RIDGES}

    def _solve(self, kernel: Floats, ridge: float, rest: npt.NDArray[np.int64]) -> Floats:
        return np.asarray(np.linalg.inv(kernel[np.ix_(rest, rest)] + ridge * np.eye(len(rest))))

    def fit(self, times: Floats) -> _Fit:
        """Fit each column of times."""
        means = [times[rest].mean(axis=0) for _, rest in self.folds]
        weights = {
            ridge: [
                inverse @ (times[rest] - mean)
                for inverse, (_, rest), mean in zip(solved, self.folds, means, strict=True)
            ]
            for ridge, solved in self._solved.items()
        }
        return _Fit(self, times, means, weights)

    def kernel(self, knobs: frozenset[str]) -> Floats:
        """The terms of these knobs and of their pairs; both kinds have the same total weight."""
        total, squares = np.zeros((self.size, self.size)), np.zeros((self.size, self.size))
        for name in sorted(knobs):
            total += self.parts[name]
            squares += self.parts[name] ** 2
        count = len(self.parts)
        pairs = (total**2 - squares) / 2
        return np.asarray(total / count + pairs / max(count * (count - 1) / 2, 1))


class _Fit:
    """A model fitted to many columns of times at once; the ridge is chosen for each column."""

    def __init__(
        self, model: _KnobModel, times: Floats, means: list[Floats], weights: Mapping[float, list[Floats]]
    ) -> None:
        self._model, self._times, self._means, self._weights = model, times, means, weights
        every = model.kernel(frozenset(model.parts))
        errors = [self._errors(self._predict(every, ridge)) for ridge in _RIDGES]
        self._best = np.argmin(errors, axis=0)

    def errors(self, knobs: frozenset[str]) -> Floats:
        """The mean squared errors of held-out trials, using only the terms of these knobs."""
        return self._errors(self.predict(knobs))

    def predict(self, knobs: frozenset[str]) -> Floats:
        """The times of each fold, predicted by the model fitted to the other folds."""
        kernel = self._model.kernel(knobs)
        result = np.empty_like(self._times)
        for place, ridge in enumerate(_RIDGES):
            which = self._best == place
            result[:, which] = self._predict(kernel, ridge, which)
        return result

    def _predict(self, kernel: Floats, ridge: float, which: Any = slice(None)) -> Floats:
        result = np.empty_like(self._times[:, which])
        for (fold, rest), mean, weights in zip(self._model.folds, self._means, self._weights[ridge], strict=True):
            result[fold] = mean[which] + kernel[np.ix_(fold, rest)] @ weights[:, which]
        return np.asarray(result)

    def _errors(self, predicted: Floats) -> Floats:
        return np.asarray(((self._times - predicted) ** 2).mean(axis=0))


def _part(apart: Floats) -> Floats:
    """The kernel of one knob: mean zero over the trials, mean of the diagonal 1."""
    kernel = np.exp(-2.0 * apart)
    rows = kernel.mean(axis=0)
    centred = kernel - rows[:, None] - rows[None, :] + rows.mean()
    return np.asarray(centred / max(float(np.trace(centred)) / len(apart), 1e-12))
