"""What an extension of deepgen is written with: operators, generators, targets, baselines and strategies of your own.

Pass them to `deepgen.tune` as objects, or let an installed package bring them by entry points of the groups
`deepgen.operators` (classes), `deepgen.generators`, `deepgen.baselines` and `deepgen.strategies` (factories without
arguments). docs/add-an-operator.md and the pages beside it show how.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepgen.baselines import Baseline
    from deepgen.kernels.base import Generator, Yielding
    from deepgen.operators import (
        Answer,
        Array,
        Operator,
        Param,
        Signature,
        Tensor,
        TensorFacts,
        Tolerance,
        Word,
        Work,
        least_work,
    )
    from deepgen.space import Space
    from deepgen.targets import Cpu, Gpu, Kind, Target
    from deepgen.tuning.search import Past, Setting, Strategy
    from deepgen.vocabulary import (
        BadInput,
        DeepgenError,
        DescriptorArg,
        Kernel,
        LaunchPlan,
        Missing,
        ScalarArg,
        Source,
        Step,
        TensorArg,
        Trial,
        WorkspaceArg,
        dtype,
    )
    from deepgen.vocabulary.dtypes import narrow, widen

_NAMES = {
    "deepgen.baselines": ("Baseline", "NewResult"),
    "deepgen.kernels.base": ("Generator", "Yielding"),
    "deepgen.operators": (
        "Answer", "Array", "Operator", "Param", "Signature", "Tensor", "TensorFacts", "Tolerance", "Word", "Work",
        "least_work",
    ),
    "deepgen.tuning.search": ("Past", "Setting", "Strategy"),
    "deepgen.space": ("Space",),
    "deepgen.targets": ("Cpu", "Gpu", "Kind", "Target"),
    "deepgen.vocabulary": (
        "BadInput", "DeepgenError", "DescriptorArg", "Kernel", "LaunchPlan", "Missing", "ScalarArg", "Source", "Step",
        "TensorArg", "Trial", "WorkspaceArg", "dtype",
    ),
    "deepgen.vocabulary.dtypes": ("narrow", "widen"),
}  # fmt: skip
# Imported when first used: an operator does not load what strategies need.
_WHERE = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'deepgen.extend' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)


__all__ = [
    "Answer",
    "Array",
    "BadInput",
    "Baseline",
    "Cpu",
    "DeepgenError",
    "DescriptorArg",
    "Generator",
    "Gpu",
    "Kernel",
    "Kind",
    "LaunchPlan",
    "Missing",
    "Operator",
    "Param",
    "Past",
    "ScalarArg",
    "Setting",
    "Signature",
    "Source",
    "Space",
    "Step",
    "Strategy",
    "Target",
    "Tensor",
    "TensorArg",
    "TensorFacts",
    "Tolerance",
    "Trial",
    "Word",
    "Work",
    "WorkspaceArg",
    "Yielding",
    "dtype",
    "least_work",
    "narrow",
    "widen",
]
