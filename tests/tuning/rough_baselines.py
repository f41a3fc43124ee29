"""Baselines that are less accurate than a kernel may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deepgen.extend import Operator, Target


class Rough:
    """Its sums are a little too large."""

    name, excess = "rough", 1e-5

    def missing(self, operator: Operator, target: Target) -> str | None:
        return None

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        def run() -> None:
            np.multiply(tensors["A"] @ tensors["B"], 1.0 + self.excess, out=tensors["C"], casting="same_kind")

        return run


class TooRough(Rough):
    name, excess = "too rough", 1e-2
