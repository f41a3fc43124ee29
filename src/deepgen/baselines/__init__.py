"""Implementations by others to compare with: each optional, each found at run time."""

from __future__ import annotations

from collections.abc import Callable

from deepgen.baselines.base import Baseline
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary.registry import Registry

BASELINES: Registry[Callable[[], Baseline]] = Registry(
    "deepgen.baselines",
    "baseline",
    {
        "numpy": "deepgen.baselines.numpy_blas:NumpyBlas",
        "torch": "deepgen.baselines.torch_cpu:TorchCpu",
        "torch-gpu": "deepgen.baselines.torch_gpu:TorchGpu",
        "cublaslt": "deepgen.baselines.cublaslt:CublasLt",
    },
)


def find(operator: Operator, target: Target) -> list[str]:
    """The names of those that can run this operator here."""
    return [b.name for b in (make() for make in BASELINES.working()) if b.missing(operator, target) is None]


def by_name(name: str) -> Baseline:
    return BASELINES.get(name)()


__all__ = ["BASELINES", "Baseline", "by_name", "find"]
