"""A Gaussian process over knobs: the cost model that learns most from few trials. It needs only numpy.

The kernel is a product over the knobs of (1 + w k(distance)) / (1 + w): a sum of interactions over all subsets of
knobs, in which a knob with a small weight w drops out. As knobs have few values, each knob's factor is a small table,
and the kernel of two configs is a product of lookups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deepgen.tuning.search.encoding import Floats, Ints

# The prior of each hyperparameter's logarithm: centre and width.
LENGTH = (math.log(0.7), 0.7)
WEIGHT = (0.0, 1.0)
_NOISE = (math.log(0.05), 1.0)
# The amplitude's prior is worth this many observations of 1, as observations are standardised.
_PRIOR_WEIGHT = 2.0
_RATE = 0.15
_JITTER = 1e-6
_LEAST_NOISE = 1e-4  # times the amplitude: below it, rounding errors would dominate
_ROOT5 = math.sqrt(5.0)


_TOGETHER = 64  # columns are joined up to this many combinations of values,
_TOGETHER_IN_FIT = 32  # or this many when there are few configs
_BLOCK = 64  # rows of a triangular matrix that are multiplied at a time
_PAIRS = 1 << 14  # possible combinations; above this, columns are not joined


class Joined:
    """Codes of some configs, with columns joined as long as few combinations of their values occur.

    A kernel is then a product of a few lookups instead of one per column. In `order`, columns that are best joined are
    adjacent.
    """

    def __init__(self, columns: Ints, order: Sequence[int] | None = None, most: int = _TOGETHER) -> None:
        self.columns = columns
        # For each group: its columns, the combinations of codes that occur, and the index of each config's combination.
        self.groups: list[tuple[list[int], Ints, Ints]] = []
        for i in order if order is not None else range(len(columns)):
            codes, places = columns[i], int(columns[i].max(initial=0)) + 1
            if self.groups and self.groups[-1][1].shape[1] * places <= _PAIRS:
                members, combinations, which = self.groups[-1]
                seen, joined = _distinct(which * places + codes)
                if len(seen) <= most:
                    combinations = np.vstack([combinations[:, seen // places], seen % places])
                    self.groups[-1] = ([*members, i], combinations, joined)
                    continue
            seen, which = _distinct(codes)
            self.groups.append(([i], seen[None, :], which))

    def part(self, places: Ints) -> Joined:
        """The same for some of the configs."""
        part = Joined(self.columns[:0])
        part.columns = self.columns[:, places]
        part.groups = [(members, combinations, which[places]) for members, combinations, which in self.groups]
        return part


def _distinct(codes: Ints) -> tuple[Ints, Ints]:
    """The distinct codes in order, and the index of each element's code among them."""
    seen = np.flatnonzero(np.bincount(codes))
    number = np.empty(int(seen[-1]) + 1 if len(seen) else 1, dtype=np.int64)
    number[seen] = np.arange(len(seen))
    return seen, number[codes]


class Covariance:
    """The kernel's hyperparameters, and the tables computed from them."""

    def __init__(self, distances: Sequence[Floats]) -> None:
        self._shapes = [d.shape for d in distances]
        self._starts = np.cumsum([0, *(d.size for d in distances)])
        self._column = np.repeat(np.arange(len(distances)), [d.size for d in distances])
        self._flat = np.concatenate([d.ravel() for d in distances]) if distances else np.empty(0)
        width = self._width = len(distances)
        self._centre = np.array([LENGTH[0]] * width + [WEIGHT[0]] * width + [_NOISE[0]])
        self._spread = np.array([LENGTH[1]] * width + [WEIGHT[1]] * width + [_NOISE[1]])
        self._logs = self._centre.copy()
        self.noise = 0.0
        self.tables: list[Floats] = []
        self._tabulate()

    def settings(self) -> list[tuple[float, float]]:
        """The logarithms of length and weight of each column."""
        width = self._width
        return list(zip(self._logs[:width].tolist(), self._logs[width : 2 * width].tolist(), strict=True))

    def centre(self, settings: Mapping[int, tuple[float, float]]) -> None:
        """Use these settings as the prior centre of some columns, and start from them."""
        for column, (length, weight) in settings.items():
            self._centre[column], self._centre[self._width + column] = length, weight
        self._logs = self._centre.copy()
        self._tabulate()

    @property
    def logs(self) -> list[float]:
        """All hyperparameters, as logarithms."""
        return [float(log) for log in self._logs]

    def recall(self, logs: Sequence[float]) -> None:
        """Restore hyperparameters that were fitted before; ValueError if they do not belong to such a kernel."""
        if len(logs) != len(self._logs) or not np.isfinite(logs).all():
            raise ValueError(f"{len(self._logs)} finite hyperparameters are needed")
        self._logs = np.array(logs, dtype=np.float64)
        self._tabulate()

    def importances(self) -> Floats:
        """The importance of each knob, with a sum of 1: how far apart its values are in the fitted kernel."""
        spans = np.array([1.0 - table.min() for table in self.tables])
        return np.asarray(spans / max(float(spans.sum()), _JITTER))

    def between(self, left: Ints, right: Ints | Joined) -> Floats:
        """The kernel between each row of codes on the left and each *column* of codes on the right."""
        right = right if isinstance(right, Joined) else Joined(right)
        tables = []
        for members, combinations, _ in right.groups:
            tables.append(_product(self.tables[i][c].take(left[:, i], 1) for i, c in _each(members, combinations)))
        return np.asarray(_looked_up(tables, right, len(left)).T)

    def over(self, configs: Joined) -> list[Floats]:
        """For each group, the kernel between all pairs of its combinations."""
        return [
            _product(self.tables[i][c].take(c, 1) for i, c in _each(members, combinations))
            for members, combinations, _ in configs.groups
        ]

    def fit(self, codes: Ints, y: Floats, steps: int) -> float:
        """Move the hyperparameters towards the maximum of the posterior, from their current values (with Adam).

        Returns the negative log posterior.
        """
        observed = self._observed(codes)
        logs = self._logs.copy()
        best, kept = math.inf, logs
        first, second = np.zeros_like(logs), np.zeros_like(logs)
        for step in range(1, steps + 1):
            loss, slope = self._loss(logs, observed, y)
            if loss < best:
                best, kept = loss, logs
            first = 0.8 * first + 0.2 * slope
            second = 0.95 * second + 0.05 * slope * slope
            move = first / (1.0 - 0.8**step) / (np.sqrt(second / (1.0 - 0.95**step)) + 1e-8)
            logs = logs - _RATE * move
        self._logs = kept
        self._tabulate()
        return best

    def _tabulate(self) -> None:
        lengths, weights = np.exp(self._logs[: self._width]), np.exp(self._logs[self._width : -1])
        self.noise = float(np.exp(self._logs[-1])) + _LEAST_NOISE
        w = weights[self._column]
        flat = (1.0 + w * _matern(self._flat / lengths[self._column])) / (1.0 + w)
        cut = np.split(flat, self._starts[1:-1])[: self._width]
        self.tables = [table.reshape(shape) for table, shape in zip(cut, self._shapes, strict=True)]

    def _observed(self, codes: Ints) -> _Observed:
        configs = Joined(codes.T, most=_TOGETHER_IN_FIT)
        cells = [
            np.stack([self._starts[i] + c[:, None] * self._shapes[i][1] + c[which] for i, c in _each(members, seen)])
            for members, seen, which in configs.groups
        ]
        ends = np.cumsum([0, *(shape[0] for shape in self._shapes)]).tolist()
        columns = [slice(start, end) for start, end in pairwise(ends)]
        members = np.zeros((len(codes), ends[-1]))
        members[np.arange(len(codes))[:, None], codes + ends[:-1]] = 1.0
        return _Observed(configs, cells, members, columns)

    def _loss(self, logs: Floats, observed: _Observed, y: Floats) -> tuple[float, Floats]:
        """The negative log posterior, with mean and amplitude at their optimum, and its gradient."""
        width, n = self._width, len(y)
        noise = math.exp(logs[-1]) + _LEAST_NOISE
        w = np.exp(logs[width:-1])[self._column]
        scaled = self._flat / np.exp(logs[:width])[self._column]
        decay = np.exp(-_ROOT5 * scaled)
        plain, steep = _matern(scaled, decay), _matern_slope(scaled, decay)
        table = (1.0 + w * plain) / (1.0 + w)
        tables = [table.take(cells).prod(axis=0) for cells in observed.cells]
        kernel = _looked_up(tables, observed.configs, n)
        noisy = kernel.copy()
        noisy.flat[:: n + 1] += noise
        lower = np.linalg.cholesky(noisy)
        half = _inverted(lower)
        inverse = half.T @ half
        sums = inverse.sum(axis=1)
        centred = y - (sums @ y) / sums.sum()
        pull = inverse @ centred
        amplitude = (centred @ pull + _PRIOR_WEIGHT) / (n + _PRIOR_WEIGHT)
        off = (logs - self._centre) / self._spread
        loss = 0.5 * (n + _PRIOR_WEIGHT) * math.log(amplitude) + np.log(np.diag(lower)).sum() + 0.5 * (off @ off)
        inner = inverse - np.outer(pull, pull / amplitude)
        slope = off / self._spread
        slope[-1] += 0.5 * (noise - _LEAST_NOISE) * np.trace(inner)
        # Sums over pairs of values first: a knob has far fewer values than there are observations.
        inner *= kernel
        wide = inner @ observed.members
        pairs = np.concatenate([(observed.members[:, own].T @ wide[:, own]).ravel() for own in observed.columns])
        pairs *= 0.5 * w / (1.0 + w) / table
        starts = self._starts[:-1]
        slope[:width] += np.add.reduceat(pairs * steep, starts)
        slope[width:-1] += np.add.reduceat(pairs * (plain - 1.0) / (1.0 + w), starts)
        return float(loss), slope


@dataclass(frozen=True)
class _Observed:
    """Configs that a kernel is fitted to, and the indices of their kernel in the tables of all columns."""

    configs: Joined
    cells: list[Ints]  # by group: table indices for each column, combination and config
    members: Floats  # one-hot codes, all columns side by side
    columns: list[slice]  # the slice of `members` for each column


def _inverted(lower: Floats) -> Floats:
    """The inverse of a triangular matrix, computed by blocks: a third of the work of a full inverse."""
    n = len(lower)
    if n <= _BLOCK:
        return np.asarray(np.linalg.inv(lower), dtype=np.float64)
    above, below = _inverted(lower[: n // 2, : n // 2]), _inverted(lower[n // 2 :, n // 2 :])
    result = np.zeros_like(lower)
    result[: n // 2, : n // 2], result[n // 2 :, n // 2 :] = above, below
    result[n // 2 :, : n // 2] = -below @ (lower[n // 2 :, : n // 2] @ above)
    return result


def _each(members: Sequence[int], combinations: Ints) -> Iterator[tuple[int, Ints]]:
    return zip(members, combinations, strict=True)


def _product(tables: Iterable[Floats]) -> Floats:
    result: Floats | None = None
    for table in tables:
        result = table if result is None else result * table
    assert result is not None, "a group has columns"
    return result


def _looked_up(tables: Sequence[Floats], configs: Joined, width: int) -> Floats:
    """The product over groups of table rows: for each config, the row of its combination."""
    result: Floats = np.ones((configs.columns.shape[1], width))
    for table, (_, _, which) in zip(tables, configs.groups, strict=True):
        result *= table.take(which, 0)
    return result


class Posterior:
    """Mean and uncertainty of every config of a pool, given a kernel and observations. Adding an observation takes one
    pass over the pool.

    Observations are given as places in the pool.
    """

    def __init__(self, kernel: Covariance, pool: Joined, noise: float | None = None) -> None:
        self._kernel, self._pool = kernel, pool
        self._tables = kernel.over(pool)
        self._noise = kernel.noise if noise is None else noise
        self._half = np.zeros((64, 64))  # the inverse of the Cholesky factor
        self._rows = np.empty((64, pool.columns.shape[1]))
        self._explained = np.zeros(pool.columns.shape[1])
        self._amplitude = 1.0  # from the last call of `predict`
        self.size = 0

    def _cross(self, places: Sequence[int]) -> Floats:
        """The kernel between these places and the whole pool."""
        tables = [t.take(g[2][places], 1) for t, g in zip(self._tables, self._pool.groups, strict=True)]
        return np.asarray(_looked_up(tables, self._pool, len(places)).T)

    def start(self, places: Sequence[int]) -> None:
        """Add all of these observations at once, as the first."""
        n = len(places)
        self._make_room(n)
        cross = self._cross(places)
        lower = np.linalg.cholesky(cross[:, places] + self._noise * np.eye(n))
        half = self._half[:n, :n] = _inverted(np.asarray(lower, dtype=np.float64))
        for low in range(0, n, _BLOCK):  # triangular: the first rows have few columns
            high = min(low + _BLOCK, n)
            np.matmul(half[low:high, :high], cross[:high], out=self._rows[low:high])
        self._explained = np.einsum("ij,ij->j", self._rows[:n], self._rows[:n])
        self.size = n

    def add(self, place: int) -> None:
        """Add one observation."""
        n = self.size
        self._make_room(n + 1)
        cross = self._cross([place])[0]
        solved = self._rows[:n, place].copy()
        corner = math.sqrt(max(cross[place] + self._noise - solved @ solved, self._noise))
        row = (cross - solved @ self._rows[:n]) / corner
        self._half[n, :n], self._half[n, n] = -(solved @ self._half[:n, :n]) / corner, 1.0 / corner
        self._rows[n] = row
        self._explained = self._explained + row * row
        self.size = n + 1

    def add_all(self, places: Sequence[int]) -> None:
        """Add several observations, which is faster than one at a time."""
        n, end = self.size, self.size + len(places)
        self._make_room(end)
        cross = self._cross(places)
        solved = self._rows[:n, places].T
        corner = cross[:, places] + self._noise * np.eye(len(places)) - solved @ solved.T
        inverse = np.linalg.inv(np.linalg.cholesky(corner))
        rows = inverse @ (cross - solved @ self._rows[:n])
        self._half[n:end, :n], self._half[n:end, n:end] = -inverse @ (solved @ self._half[:n, :n]), inverse
        self._rows[n:end] = rows
        self._explained = self._explained + np.einsum("ij,ij->j", rows, rows)
        self.size = end

    def widen(self, pool: Joined, observed: Sequence[int]) -> None:
        """Extend the posterior to a pool that has grown at its end; `observed` are the places observed so far."""
        n, before = self.size, self._rows.shape[1]
        fresh = pool.part(np.arange(before, pool.columns.shape[1]))
        self._pool, self._tables = pool, self._kernel.over(pool)
        tables = [t.take(g[2][observed], 1) for t, g in zip(self._tables, pool.groups, strict=True)]
        rows = np.empty((len(self._rows), fresh.columns.shape[1]))
        rows[:n] = self._half[:n, :n] @ _looked_up(tables, fresh, n).T
        self._rows = np.hstack([self._rows, rows])
        self._explained = np.concatenate([self._explained, np.einsum("ij,ij->j", rows[:n], rows[:n])])

    def part(self, places: Ints) -> Posterior:
        """An independent copy restricted to some places, which are then numbered from 0."""
        part = Posterior(self._kernel, self._pool.part(places), self._noise)
        n = self.size
        part._make_room(n)
        part._half[:n, :n] = self._half[:n, :n]
        part._rows[:n] = self._rows[:n, places]
        part._explained = self._explained[places]
        part._amplitude = self._amplitude
        part.size = n
        return part

    def imagine(self, places: Sequence[int]) -> None:
        """Add observations that end as predicted: only the uncertainty and its scale change."""
        self._amplitude *= (self.size + _PRIOR_WEIGHT) / (self.size + len(places) + _PRIOR_WEIGHT)
        if len(places) == 1:
            self.add(places[0])
        else:
            self.add_all(places)

    def predict(self, y: Floats, mean: float | None = None) -> tuple[Floats, Floats]:
        """Mean and standard deviation over the pool, given observations `y`; estimates the mean unless one is given."""
        n = self.size
        half = self._half[:n, :n]
        ones = half.sum(axis=1)
        target = half @ y
        centre = (ones @ target) / (ones @ ones) if mean is None else mean
        pull = target - centre * ones
        self._amplitude = (pull @ pull + _PRIOR_WEIGHT) / (n + _PRIOR_WEIGHT)
        return centre + pull @ self._rows[:n], self.spread()

    def spread(self) -> Floats:
        """The standard deviation over the pool, on the scale of the last prediction."""
        return np.asarray(np.sqrt(self._amplitude * np.maximum(1.0 - self._explained, _JITTER)))

    def _make_room(self, n: int) -> None:
        if n <= len(self._rows):
            return
        room = max(n, 2 * len(self._rows))
        half, rows = np.zeros((room, room)), np.empty((room, self._rows.shape[1]))
        half[: self.size, : self.size] = self._half[: self.size, : self.size]
        rows[: self.size] = self._rows[: self.size]
        self._half, self._rows = half, rows


def _matern(r: Floats, decay: Floats | None = None) -> Floats:
    """The Matern kernel of smoothness 5/2; `decay` is its exponential."""
    decay = np.exp(-_ROOT5 * r) if decay is None else decay
    return np.asarray((1.0 + _ROOT5 * r + (5.0 / 3.0) * r * r) * decay)


def _matern_slope(r: Floats, decay: Floats) -> Floats:
    """Its derivative with respect to the logarithm of the length."""
    return np.asarray((5.0 / 3.0) * r * r * (1.0 + _ROOT5 * r) * decay)
