"""A baseline as a user would write it, in a separate file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deepgen.extend import NewResult, Operator, Target

COPYING = 0.05  # seconds


class Einsum:
    """numpy.einsum, which is a slow way to multiply matrices."""

    name = "einsum"

    def missing(self, operator: Operator, target: Target) -> str | None:
        return None if operator.name == "gemm" else f"it computes no {operator.name}"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        a, b, c = (tensors[name] for name in "ABC")
        return lambda: np.einsum("ik,kj->ij", a, b, out=c)


def multiplied(A: Any, B: Any, M: int) -> Any:
    """A plain function."""
    assert len(A) == M
    return A @ B


def misnamed(left: Any) -> Any:
    return left


class SlowCopy(Einsum):
    """The same with a new result that takes long to copy."""

    name = "slow_copy"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        a, b, c = (tensors[name] for name in "ABC")

        def keep(result: Any) -> None:
            time.sleep(COPYING)
            c[:] = result

        return NewResult(lambda: np.einsum("ik,kj->ij", a, b), keep)


class Copied(Einsum):
    """The same, presented as running on copies."""

    name = "copied"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        multiply = super().prepare(operator, tensors, threads)

        def run() -> None:
            multiply()

        run.form = "padded copies"  # type: ignore[attr-defined]
        return run
