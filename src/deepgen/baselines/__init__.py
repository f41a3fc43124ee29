"""Implementations by others to compare with: each optional, each found at run time."""

from __future__ import annotations

from deepgen.baselines.base import Baseline
from deepgen.baselines.cublaslt import CublasLt
from deepgen.baselines.numpy_blas import NumpyBlas
from deepgen.baselines.torch_cpu import TorchCpu
from deepgen.baselines.torch_gpu import TorchGpu
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput

BASELINES: tuple[Baseline, ...] = (NumpyBlas(), TorchCpu(), TorchGpu(), CublasLt())


def find(operator: Operator, target: Target) -> list[str]:
    """The names of those that can run this operator here."""
    return [b.name for b in BASELINES if b.missing(operator, target) is None]


def by_name(name: str) -> Baseline:
    for baseline in BASELINES:
        if baseline.name == name:
            return baseline
    raise BadInput(f"unknown baseline {name!r}", allowed="one of " + ", ".join(b.name for b in BASELINES))


__all__ = ["BASELINES", "Baseline", "by_name", "find"]
