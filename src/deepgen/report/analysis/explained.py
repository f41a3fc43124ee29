"""What explains log time: how it correlates with each metric, and how much of its variation each knob explains.

Correlations are Pearson's, Spearman's, and Pearson's with the knobs held fixed. The p-values are adjusted for the
number of tests: the times are shuffled among the trials many times, and an adjusted p-value is the share of shuffles in
which any metric shows an equally strong relation by any of the three (Westfall and Young's maximum statistic). So if
nothing is related, the smallest p-value is at most 1% in 1% of all studies, whatever the distribution of the times and
the dependence between the metrics.

The model of the knobs is a sum of one term for each and one for each pair, each term with mean zero (a functional
analysis of variance), fitted by kernel ridge regression. The share of a knob is how much worse held-out trials are
predicted when all terms with that knob are left out. A model that fits noise predicts nothing, so noise explains
nothing. Its p-values come from shuffling too, but once knobs are found, only the part of the time that they leave
unexplained is shuffled, until no more are found: next to a strong knob, a weak one is hard to detect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.report.analysis.numbers import KNOB, Floats, NumberColumn, design, distances, group_of, pulled_in

_SHUFFLES = 999
_AT_A_TIME = 100  # shuffles at a time, to limit memory
_LEAST_FREEDOM = 10  # degrees of freedom that must remain after holding the knobs fixed
_NOTHING_LEFT = 1e-6  # of a number's spread: if less remains, the knobs determine it


@dataclass(frozen=True)
class Estimate:
    """A correlation, and its adjusted p-value."""

    r: float
    p: float


@dataclass(frozen=True)
class Relation:
    """The relation of one number to log time over `trials` trials."""

    name: str
    group: str
    trials: int
    pearson: Estimate
    spearman: Estimate
    partial: Estimate | None  # None if the knobs determine the number, or too few trials are left

    def strength(self, level: float) -> float:
        """The largest significant correlation; 0 if there is none."""
        sure = [e for e in (self.pearson, self.spearman, self.partial) if e is not None and e.p <= level]
        return max((abs(estimate.r) for estimate in sure), default=0.0)


def relations(
    columns: Sequence[NumberColumn], log_time: Floats, knobs: Mapping[str, Sequence[Any]], seed: int = 0
) -> list[Relation]:
    """One relation for each column, in the same order."""
    keys = np.random.default_rng(seed).random((_SHUFFLES, len(log_time)))
    largest = np.zeros(_SHUFFLES)
    parts: list[tuple[NumberColumn, list[_Score | None]]] = []
    for mask, some in _by_presence(columns).items():
        chosen = np.frombuffer(mask, dtype=np.bool_)
        tests = _tests(some, chosen, log_time, knobs)
        # A uniform permutation of these trials, and nearly the same one as for columns present in more trials.
        orders = np.argsort(keys[:, chosen], axis=1)
        for test in tests:
            largest = np.maximum(largest, test.largest(orders))
        parts += [(column, [test.score(column.name) for test in tests]) for column in some]
    related = {column.name: _relation(column, scores, np.sort(largest)) for column, scores in parts}
    return [related[column.name] for column in columns]


@dataclass(frozen=True)
class _Score:
    r: float
    z: float  # comparable between tests with different numbers of trials


@dataclass(frozen=True, eq=False)
class _Test:
    """One kind of correlation of some columns with a time, over the same trials."""

    names: tuple[str, ...]
    columns: Floats  # of length 1 each, and orthogonal to what is held fixed
    time: Floats
    fixed: Floats  # an orthonormal basis of what is held fixed, including the constant

    def score(self, name: str) -> _Score | None:
        if name not in self.names:
            return None
        r = float(self._correlate(self.time[None, :])[0, self.names.index(name)])
        return _Score(r, float(abs(self._z(np.array(r)))))

    def largest(self, orders: npt.NDArray[np.int64]) -> Floats:
        """The largest score of any column in each shuffle of the times."""
        if not self.names:
            return np.zeros(len(orders))
        chunks = [orders[i : i + _AT_A_TIME] for i in range(0, len(orders), _AT_A_TIME)]
        return np.concatenate([np.abs(self._z(self._correlate(self.time[chunk]))).max(axis=1) for chunk in chunks])

    def _correlate(self, times: Floats) -> Floats:
        left = times - (times @ self.fixed) @ self.fixed.T
        lengths = np.linalg.norm(left, axis=1, keepdims=True)
        return np.asarray(left @ self.columns / np.maximum(lengths, 1e-300))

    def _z(self, r: Floats) -> Floats:
        freedom = len(self.time) - self.fixed.shape[1] - 1
        return np.asarray(np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12)) * np.sqrt(max(freedom - 1, 1)))


def _by_presence(columns: Sequence[NumberColumn]) -> dict[bytes, list[NumberColumn]]:
    """Columns grouped by the set of trials that have them."""
    groups: dict[bytes, list[NumberColumn]] = {}
    for column in columns:
        groups.setdefault(column.present.tobytes(), []).append(column)
    return groups


def _tests(
    columns: Sequence[NumberColumn],
    chosen: npt.NDArray[np.bool_],
    log_time: Floats,
    knobs: Mapping[str, Sequence[Any]],
) -> list[_Test]:
    names = [column.name for column in columns]
    values = np.column_stack([column.values[chosen] for column in columns])
    time = pulled_in(log_time[chosen])
    constant = np.full((len(time), 1), len(time) ** -0.5)
    ordered = np.column_stack([ranks(v) for v in values.T])
    tests = [_test(names, values, time, constant), _test(names, ordered, ranks(log_time[chosen]), constant)]
    fixed = _basis({name: [v for v, c in zip(settings, chosen, strict=True) if c] for name, settings in knobs.items()})
    if fixed is None:
        return [*tests, _test([], np.empty((len(time), 0)), time, constant)]
    held = [name.startswith(KNOB) for name in names]
    others = [name for name, knob in zip(names, held, strict=True) if not knob]
    return [*tests, _test(others, values[:, ~np.array(held, dtype=np.bool_)], _left(time, fixed), fixed)]


def _test(names: Sequence[str], values: Floats, time: Floats, fixed: Floats) -> _Test:
    """The test, without columns that are fully determined by what is held fixed."""
    left = _left(values, fixed)
    lengths, spread = np.linalg.norm(left, axis=0), np.linalg.norm(values - values.mean(axis=0), axis=0)
    good = lengths > _NOTHING_LEFT * np.maximum(spread, 1e-300)
    if np.linalg.norm(_left(time, fixed)) <= _NOTHING_LEFT * np.linalg.norm(time - time.mean()):
        good[:] = False
    kept = tuple(name for name, keep in zip(names, good, strict=True) if keep)
    return _Test(kept, left[:, good] / lengths[good], time, fixed)


def _basis(knobs: Mapping[str, Sequence[Any]]) -> Floats | None:
    """The knobs and the constant as an orthonormal basis; None if it would leave too few degrees of freedom.

    One column for each value if that leaves at least half of the trials as degrees of freedom, otherwise curves.
    """
    for fine, least in ((True, 0.5), (False, 0.0)):
        columns = design(knobs, fine=fine)
        size = len(columns)
        if columns.shape[1] > size:
            continue
        full = np.column_stack([np.ones(size), columns])
        left, lengths, _ = np.linalg.svd(full / np.linalg.norm(full, axis=0).clip(1e-300), full_matrices=False)
        basis = left[:, lengths > 1e-9]
        if size - basis.shape[1] - 1 >= max(_LEAST_FREEDOM, least * size):
            return np.asarray(basis)
    return None


def _left(values: Floats, fixed: Floats) -> Floats:
    return np.asarray(values - fixed @ (fixed.T @ values))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


def _relation(column: NumberColumn, scores: Sequence[_Score | None], largest: Floats) -> Relation:
    pearson, spearman, partial = (_estimate(score, largest) for score in scores)
    nothing = Estimate(0.0, 1.0)
    of = (column.name, group_of(column.name), int(column.present.sum()))
    return Relation(*of, pearson or nothing, spearman or nothing, partial)


def _estimate(score: _Score | None, largest: Floats) -> Estimate | None:
    if score is None:
        return None
    as_strong = len(largest) - int(np.searchsorted(largest, score.z - 1e-9))
    return Estimate(score.r, (1 + as_strong) / (1 + len(largest)))


_REFITS = 499
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
        fit = model.fit(np.column_stack([time, *(predicted + rng.permutation(left) for _ in range(_REFITS))]))
        whole = fit.errors(every)
        lost = {name: fit.errors(every - {name}) - whole for name in sorted(every - sure)}
        largest = np.sort(np.max([shares[1:] for shares in lost.values()], axis=0))
        floor = max((p_values[name] for name in sure), default=0.0)
        for name, shares in lost.items():
            as_strong = _REFITS - int(np.searchsorted(largest, shares[0] - 1e-12))
            p_values[name] = max(floor, (1 + as_strong) / (1 + _REFITS))
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
