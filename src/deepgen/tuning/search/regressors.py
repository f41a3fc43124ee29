"""Cost models as regressors: from encoded configs to standardised time, one per library.

`numpy` is the Gaussian process and needs no other package; `lightgbm` and `sklearn` are ensembles of boosted trees.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from deepgen.tuning.search.encoding import Encoding, Floats, Ints
from deepgen.tuning.search.gaussian import Covariance, Joined
from deepgen.vocabulary import BadInput, Missing

LIBRARIES = ("numpy", "lightgbm", "sklearn")
_PACKAGES = {"lightgbm": "lightgbm", "sklearn": "scikit-learn"}
_MEMBERS = 3  # models in an ensemble of trees, each trained on its own sample of the trials
_TREES = 60
_TOGETHER = 256  # columns are joined up to this many combinations, if many configs are predicted
_FIRST_STEPS, _STEPS = 60, 15  # steps of fitting the process: later fits start from the previous one


class Regressor(Protocol):
    """Learns times, and estimates which knobs matter."""

    def fit(self, codes: Ints, y: Floats) -> None: ...

    def predict(self, codes: Ints) -> Floats:
        """The expected time of each row."""
        ...

    def importances(self) -> Floats:
        """The importance of each knob, with a sum of 1."""
        ...


def make_regressor(library: str, encoding: Encoding, seed: int) -> Regressor:
    """The regressor of that library; raises if it is not installed."""
    check_library(library)
    if library == "numpy":
        return GaussianRegressor(encoding)
    return Trees(encoding, seed, _lightgbm if library == "lightgbm" else _sklearn)


def check_library(library: str) -> None:
    """Raise if a library is unknown or not installed. No other one is ever substituted."""
    if library not in LIBRARIES:
        raise BadInput(f"there is no cost model based on {library!r}", allowed="one of " + ", ".join(LIBRARIES))
    if library in _PACKAGES and importlib.util.find_spec(library) is None:
        package = _PACKAGES[library]
        raise Missing(
            package,
            blocks=f"the study's cost model uses {library}",
            remedy=f"Install it with `pip install {package}`, or start a new study with library=numpy",
        )


class GaussianRegressor:
    """The Gaussian process as a regressor."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.kernel = Covariance(encoding.distances)
        self._fitted = False

    def fit(self, codes: Ints, y: Floats) -> None:
        self.kernel.fit(codes, y, _STEPS if self._fitted else _FIRST_STEPS)
        self._fitted = True
        n = len(y)
        self._codes = codes
        inverse = np.linalg.inv(self.kernel.between(codes, codes.T) + self.kernel.noise * np.eye(n))
        self._mean = float(inverse.sum(axis=1) @ y / inverse.sum())
        self._pull = inverse @ (y - self._mean)

    def predict(self, codes: Ints) -> Floats:
        cross = self.kernel.between(self._codes, Joined(np.ascontiguousarray(codes.T), most=_TOGETHER))
        return np.asarray(self._mean + self._pull @ cross)

    def importances(self) -> Floats:
        return self._encoding.of_knobs(self.kernel.importances())


class Trees:
    """Boosted trees, several on different samples of the trials: their mean has a smaller error than each of them."""

    def __init__(self, encoding: Encoding, seed: int, make: Callable[[int, int], Any]) -> None:
        self._encoding, self._seed, self._make = encoding, seed, make
        self._models: list[Any] = []

    def fit(self, codes: Ints, y: Floats) -> None:
        features = self._encoding.features(codes)
        self._models = []
        for member in range(_MEMBERS):
            rng = np.random.default_rng([self._seed, member, len(y)])
            kept = np.sort(rng.permutation(len(y))[: max(2, int(0.8 * len(y)))])
            model = self._make(self._seed + member, len(kept))
            model.fit(features[kept], y[kept])
            self._models.append(model)

    def predict(self, codes: Ints) -> Floats:
        features = self._encoding.features(codes)
        return np.asarray(np.mean([model.predict(features) for model in self._models], axis=0))

    def importances(self) -> Floats:
        gains = [np.asarray(model.feature_importances_, dtype=np.float64) for model in self._models]
        return self._encoding.of_knobs(np.mean([g / max(float(g.sum()), 1e-12) for g in gains], axis=0))


def _lightgbm(seed: int, rows: int) -> Any:
    from lightgbm import LGBMRegressor

    return LGBMRegressor(
        n_estimators=_TREES,
        learning_rate=0.15,
        num_leaves=15,
        min_child_samples=max(1, min(10, rows // 20)),
        min_data_in_bin=1,
        random_state=seed,
        n_jobs=1,
        deterministic=True,
        force_row_wise=True,
        importance_type="gain",
        verbose=-1,
    )


def _sklearn(seed: int, rows: int) -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(
        n_estimators=_TREES, learning_rate=0.15, max_depth=4, subsample=0.8, random_state=seed
    )
