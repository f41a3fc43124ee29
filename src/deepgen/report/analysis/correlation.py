"""Correlation of each metric with log time: Pearson, Spearman, and Pearson with the knobs held fixed.

The p-values are adjusted for the number of tests: the times are shuffled among the trials many times, and an adjusted
p-value is the share of shuffles in which any metric shows an equally strong relation by any of the three (Westfall and
Young's maximum statistic). So if nothing is related, the smallest p-value is at most 1% in 1% of all studies, whatever
the distribution of the times and the dependence between the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.report.analysis.numbers import KNOB, Floats, NumberColumn, design, group_of, pulled_in

SHUFFLES = 999
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
    keys = np.random.default_rng(seed).random((SHUFFLES, len(log_time)))
    largest = np.zeros(SHUFFLES)
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
