"""How much a trial of a config may bring: the expected improvement, and results on a scale that models learn well."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from deepgen.tuning.search.encoding import Floats

_GRID = np.linspace(-40.0, 10.0, 5001)


def log_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """The logarithm of the expected improvement on `best`, right also where that is next to nothing."""
    return np.asarray(np.log(spread) + np.interp((best - mean) / spread, _GRID, _log_gain()))


@lru_cache(maxsize=1)
def _log_gain() -> Floats:
    """log(phi(z) + z Phi(z)) on the grid."""
    values = []
    for z in _GRID.tolist():
        density = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
        if z < -8.0:  # the difference below would cancel: its series instead
            values.append(density - 2.0 * math.log(-z) + math.log1p(-3.0 / (z * z)))
        else:
            values.append(math.log(math.exp(density) + 0.5 * z * math.erfc(-z / math.sqrt(2.0))))
    return np.array(values)


def standardised(seconds: Floats) -> Floats:
    """Times for a model: half their logarithm, half their rank as a normal score; mean 0, spread 1.

    Ranks alone hide how much better the best is; logarithms alone let the slowest configs govern the fit.
    """
    logs = _scaled(np.log(seconds))
    ranks = _scaled(_normal_scores(len(seconds))[np.argsort(np.argsort(logs, kind="stable"), kind="stable")])
    return _scaled(0.5 * logs + 0.5 * ranks)


def _scaled(values: Floats) -> Floats:
    spread = float(values.std())
    return np.asarray((values - values.mean()) / (spread if spread > 1e-12 else 1.0))


@lru_cache(maxsize=1024)
def _normal_scores(n: int) -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / n) for i in range(n)])
