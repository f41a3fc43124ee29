"""numpy's matrix product, which calls the BLAS that numpy was built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from deepgen.operators import Array, Gemm, Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput


class NumpyBlas:
    """The number of its threads is set through the worker's environment, which the BLAS reads when it is loaded."""

    name = "numpy"

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"numpy does not run on {target.name}"
        if not isinstance(operator, Gemm):
            return f"numpy has no {operator.name}"
        if operator.a not in ("f32", "f64") or not operator.a == operator.b == operator.c:
            return "numpy's BLAS multiplies f32 or f64 only"
        if operator.beta != 0.0 or operator.alpha != 1.0 or operator.bias or operator.scales != "none":
            return "numpy's matmul has no alpha, beta, bias or scales"
        return None if operator.activation == "none" else "numpy's matmul has no activation"

    def prepare(self, operator: Operator, tensors: Mapping[str, Array], threads: int) -> Callable[[], None]:
        if not isinstance(operator, Gemm):
            raise BadInput(f"numpy has no {operator.name}")
        a, b = tensors["A"], tensors["B"]
        a = a if operator.layout[0] == "n" else a.swapaxes(-1, -2)
        b = b if operator.layout[1] == "n" else b.swapaxes(-1, -2)
        return partial(np.matmul, a, b, out=tensors["C"])

    @staticmethod
    def called(operator: Gemm) -> str:
        """The function that `prepare` calls."""
        return "numpy.matmul(out=)"
