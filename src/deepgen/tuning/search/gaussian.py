"""A Gaussian process over knobs: the cost model that learns most from few trials. Needs numpy alone.

The kernel is a product over the knobs of (1 + w k(distance)) / (1 + w): a sum over all subsets of knobs of their
interactions, in which a knob of small weight w drops out. As knobs have few values, a knob's part is a small table,
and the kernel of two configs is a product of look-ups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
_LEAST_NOISE = 1e-4  # of the amplitude: below it, rounding would decide
_ROOT5 = math.sqrt(5.0)


class Covariance:
    """The kernel's hyperparameters, and the tables that follow from them."""

    def __init__(self, distances: Sequence[Floats]) -> None:
        self._distances = distances
        width = len(distances)
        self._centre = np.array([LENGTH[0]] * width + [WEIGHT[0]] * width + [_NOISE[0]])
        self._spread = np.array([LENGTH[1]] * width + [WEIGHT[1]] * width + [_NOISE[1]])
        self._logs = self._centre.copy()
        self.noise = 0.0
        self.tables: list[Floats] = []
        self._tabulate()

    def settings(self) -> list[tuple[float, float]]:
        """The logarithms of length and weight of each column."""
        width = len(self._distances)
        return list(zip(self._logs[:width].tolist(), self._logs[width : 2 * width].tolist(), strict=True))

    def centre(self, settings: Mapping[int, tuple[float, float]]) -> None:
        """Expect these settings of some columns, and start from them."""
        width = len(self._distances)
        for column, (length, weight) in settings.items():
            self._centre[column], self._centre[width + column] = length, weight
        self._logs = self._centre.copy()
        self._tabulate()

    @property
    def logs(self) -> list[float]:
        """All hyperparameters, as logarithms."""
        return [float(log) for log in self._logs]

    def recall(self, logs: Sequence[float]) -> None:
        """Take hyperparameters that were fitted before; ValueError where they are not of such a kernel."""
        if len(logs) != len(self._logs) or not np.isfinite(logs).all():
            raise ValueError(f"{len(self._logs)} finite hyperparameters are needed")
        self._logs = np.array(logs, dtype=np.float64)
        self._tabulate()

    def importances(self) -> Floats:
        """How much each knob matters, in shares of 1: how far its values lie apart in the fitted kernel."""
        spans = np.array([1.0 - table.min() for table in self.tables])
        return np.asarray(spans / max(float(spans.sum()), _JITTER))

    def between(self, left: Ints, right: Ints) -> Floats:
        """The kernel of each row of codes on the left with each *column* of codes on the right."""
        result: Floats = np.take(self.tables[0][left[:, 0]], right[0], axis=1)
        for i, table in enumerate(self.tables[1:], 1):
            result *= np.take(table[left[:, i]], right[i], axis=1)
        return result

    def fit(self, codes: Ints, y: Floats, steps: int) -> float:
        """Move the hyperparameters to where the observations are likeliest, from where they are (Adam's rule).

        Gives the negative logarithm of that likelihood, times the prior.
        """
        members = [np.eye(len(d))[codes[:, i]] for i, d in enumerate(self._distances)]
        logs = self._logs.copy()
        best, kept = math.inf, logs
        first, second = np.zeros_like(logs), np.zeros_like(logs)
        for step in range(1, steps + 1):
            loss, slope = self._loss(logs, codes, members, y)
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
        width = len(self._distances)
        lengths, weights = np.exp(self._logs[:width]), np.exp(self._logs[width : 2 * width])
        self.noise = float(np.exp(self._logs[-1])) + _LEAST_NOISE
        self.tables = [
            (1.0 + w * _matern(d / length)) / (1.0 + w)
            for d, length, w in zip(self._distances, lengths, weights, strict=True)
        ]

    def _loss(self, logs: Floats, codes: Ints, members: list[Floats], y: Floats) -> tuple[float, Floats]:
        """The negative log posterior, with mean and amplitude at their best values, and its slope."""
        width, n = len(self._distances), len(y)
        lengths, weights, noise = (
            np.exp(logs[:width]),
            np.exp(logs[width : 2 * width]),
            math.exp(logs[-1]) + _LEAST_NOISE,
        )
        kernel = np.ones((n, n))
        by_length, by_weight = [], []
        for i, distance in enumerate(self._distances):
            scaled, w = distance / lengths[i], weights[i]
            plain = _matern(scaled)
            table = (1.0 + w * plain) / (1.0 + w)
            by_length.append(w * _matern_slope(scaled) / (1.0 + w) / table)
            by_weight.append(w * (plain - 1.0) / (1.0 + w) ** 2 / table)
            kernel *= table[codes[:, i]][:, codes[:, i]]
        noisy = kernel + noise * np.eye(n)
        lower = np.linalg.cholesky(noisy)
        inverse = np.linalg.inv(noisy)
        sums = inverse.sum(axis=1)
        centred = y - (sums @ y) / sums.sum()
        pull = inverse @ centred
        amplitude = (centred @ pull + _PRIOR_WEIGHT) / (n + _PRIOR_WEIGHT)
        off = (logs - self._centre) / self._spread
        loss = 0.5 * (n + _PRIOR_WEIGHT) * math.log(amplitude) + np.log(np.diag(lower)).sum() + 0.5 * (off @ off)
        inner = inverse - np.outer(pull, pull) / amplitude
        weighted = inner * kernel
        slope = off / self._spread
        for i, member in enumerate(members):
            # Summed by pairs of values first: a knob has far fewer values than there are observations.
            pairs = member.T @ weighted @ member
            slope[i] += 0.5 * np.sum(pairs * by_length[i])
            slope[width + i] += 0.5 * np.sum(pairs * by_weight[i])
        slope[-1] += 0.5 * (noise - _LEAST_NOISE) * np.trace(inner)
        return float(loss), slope


@dataclass(frozen=True, eq=False)
class Mark:
    """Where a posterior stood: its observations, and how much of the pool they explained."""

    size: int
    explained: Floats


class Posterior:
    """What a kernel and observations say of every config of a pool. An observation more costs one pass over the pool.

    `pool` holds the codes of its configs as columns; observations are places in the pool.
    """

    def __init__(self, kernel: Covariance, pool: Ints, noise: float | None = None) -> None:
        self._kernel, self._pool = kernel, pool
        self._noise = kernel.noise if noise is None else noise
        self._half = np.zeros((64, 64))  # the inverse of the Cholesky factor
        self._rows = np.empty((64, pool.shape[1]))
        self._explained = np.zeros(pool.shape[1])
        self._amplitude = 1.0  # as `predict` last found it
        self.size = 0

    def start(self, places: Sequence[int]) -> None:
        """Observe all these at once."""
        n = len(places)
        self._make_room(n)
        cross = self._kernel.between(self._pool[:, places].T, self._pool)
        lower = np.linalg.cholesky(cross[:, places] + self._noise * np.eye(n))
        self._half[:n, :n] = np.linalg.inv(lower)
        self._rows[:n] = self._half[:n, :n] @ cross
        self._explained = np.einsum("ij,ij->j", self._rows[:n], self._rows[:n])
        self.size = n

    def add(self, place: int) -> None:
        """Observe one more."""
        n = self.size
        self._make_room(n + 1)
        cross = self._kernel.between(self._pool[:, [place]].T, self._pool)[0]
        solved = self._rows[:n, place].copy()
        corner = math.sqrt(max(cross[place] + self._noise - solved @ solved, self._noise))
        row = (cross - solved @ self._rows[:n]) / corner
        self._half[n, :n], self._half[n, n] = -(solved @ self._half[:n, :n]) / corner, 1.0 / corner
        self._rows[n] = row
        self._explained = self._explained + row * row
        self.size = n + 1

    def add_all(self, places: Sequence[int]) -> None:
        """Observe some more, which is quicker than one after another."""
        n, end = self.size, self.size + len(places)
        self._make_room(end)
        cross = self._kernel.between(self._pool[:, places].T, self._pool)
        solved = self._rows[:n, places].T
        corner = cross[:, places] + self._noise * np.eye(len(places)) - solved @ solved.T
        inverse = np.linalg.inv(np.linalg.cholesky(corner))
        rows = inverse @ (cross - solved @ self._rows[:n])
        self._half[n:end, :n], self._half[n:end, n:end] = -inverse @ (solved @ self._half[:n, :n]), inverse
        self._rows[n:end] = rows
        self._explained = self._explained + np.einsum("ij,ij->j", rows, rows)
        self.size = end

    def part(self, places: Ints) -> Posterior:
        """The same of some places only, which then count from 0; it goes its own way from here."""
        part = Posterior(self._kernel, self._pool[:, places], self._noise)
        n = self.size
        part._make_room(n)
        part._half[:n, :n] = self._half[:n, :n]
        part._rows[:n] = self._rows[:n, places]
        part._explained = self._explained[places]
        part._amplitude = self._amplitude
        part.size = n
        return part

    def mark(self) -> Mark:
        """Where it stands, for `back`."""
        return Mark(self.size, self._explained)

    def back(self, mark: Mark) -> None:
        """Forget what was observed since. To the last bit: a resumed search never observed it."""
        self.size, self._explained = mark.size, mark.explained

    def predict(self, y: Floats, mean: float | None = None) -> tuple[Floats, Floats]:
        """Mean and standard deviation over the pool, given what was observed; its own mean unless one is given."""
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


def _matern(r: Floats) -> Floats:
    """The Matern kernel of smoothness 5/2."""
    return np.asarray((1.0 + _ROOT5 * r + (5.0 / 3.0) * r * r) * np.exp(-_ROOT5 * r))


def _matern_slope(r: Floats) -> Floats:
    """Its slope by the logarithm of the length."""
    return np.asarray((5.0 / 3.0) * r * r * (1.0 + _ROOT5 * r) * np.exp(-_ROOT5 * r))
