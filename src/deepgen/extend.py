"""What an extension of deepgen is written with. deepgen's own plug-ins, too, use nothing of it but this and what users
import (`deepgen`, `deepgen.torch`...).

Pass operators, generators, baselines and strategies to `deepgen.tune` as objects, or let an installed package bring
them by entry points:

| group | name | object |
|---|---|---|
| `deepgen.operators` | the operator's | the class |
| `deepgen.generators`, `deepgen.baselines`, `deepgen.strategies` | its own | a factory without arguments |
| `deepgen.targets` | the kind, before the colon of a target's name | a function that gives the `Kind` |
| `deepgen.runners` | a target's `runner` | a function of a `Task` and `RunnerOptions` that gives a `Runner` |
| `deepgen.toolchains` | a language, or `language.runner` | a function of a target and paths that gives a `Toolchain` |

docs/add-an-operator.md and the pages beside it show how, docs/plug-ins.md has all groups.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# fmt: off
# isort: off
if TYPE_CHECKING:
    # Errors, JSON, files that others wrote
    from deepgen.vocabulary import BadInput, DeepgenError, Json, Missing
    from deepgen.vocabulary import foreign
    # Operators
    from deepgen.operators import (
        Answer, Array, Operator, Param, Signature, Tensor, TensorFacts, Tolerance, Word, Work, least_work,
    )
    from deepgen.operators.compare import compare, explain
    from deepgen.operators.expr.nodes import Expression, HasExpression, Read, Select, walk
    from deepgen.operators.expr.contraction import plain_contraction
    from deepgen.vocabulary import dtype
    from deepgen.vocabulary.dtypes import narrow, widen
    # Targets
    from deepgen.targets import Cpu, Gpu, Kind, Target
    from deepgen import targets
    # Generators: spaces and kernels
    from deepgen.kernels.base import Generator, Yielding
    from deepgen.space import Expr, Space, Value, divides, implies, where
    from deepgen.space.expr import knob_ref
    from deepgen.compiler.rules.facts import plain
    from deepgen.vocabulary import DescriptorArg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg
    # Toolchains
    from deepgen.toolchains import BuildError, BuildLimits, Built, Group, Toolchain, build_once, toolchain_for
    from deepgen.toolchains.base import Recipe
    from deepgen.toolchains.find_gpu import triton_for
    from deepgen.toolchains.compilers.judge import run_judged
    from deepgen.toolchains.compilers.sources import write_sources
    from deepgen.toolchains.compilers.triton import Triton, checked_unit
    # Runners
    from deepgen.run.measure.base import Contender, Runner, RunnerOptions, STRIDED, Task
    from deepgen.run.counters.counted import Counted
    from deepgen.vocabulary import Artifact, Measurement, Verdict
    from deepgen.run.call.openmp import torchs_threads
    # Baselines and strategies
    from deepgen.baselines import Baseline, NewResult
    from deepgen.tuning.search import Past, Setting, Strategy
    from deepgen.vocabulary import Trial
    # Programs that run elsewhere
    from deepgen.vocabulary.registry import metadata_files, own_plugins

# The same for when it runs: module -> names. Imported when first used: an operator does not load what strategies need.
_NAMES = {
    "deepgen.baselines": "Baseline NewResult",
    "deepgen.compiler.rules.facts": "plain",
    "deepgen.kernels.base": "Generator Yielding",
    "deepgen.operators": "Answer Array Operator Param Signature Tensor TensorFacts Tolerance Word Work least_work",
    "deepgen.operators.compare": "compare explain",
    "deepgen.operators.expr.contraction": "plain_contraction",
    "deepgen.operators.expr.nodes": "Expression HasExpression Read Select walk",
    "deepgen.run.call.openmp": "torchs_threads",
    "deepgen.run.counters.counted": "Counted",
    "deepgen.run.measure.base": "Contender Runner RunnerOptions STRIDED Task",
    "deepgen.space": "Expr Space Value divides implies where",
    "deepgen.space.expr": "knob_ref",
    "deepgen.targets": "Cpu Gpu Kind Target",
    "deepgen.toolchains": "BuildError BuildLimits Built Group Toolchain build_once toolchain_for",
    "deepgen.toolchains.base": "Recipe",
    "deepgen.toolchains.compilers.judge": "run_judged",
    "deepgen.toolchains.compilers.sources": "write_sources",
    "deepgen.toolchains.compilers.triton": "Triton checked_unit",
    "deepgen.toolchains.find_gpu": "triton_for",
    "deepgen.tuning.search": "Past Setting Strategy",
    "deepgen.vocabulary": (
        "Artifact BadInput DeepgenError DescriptorArg Json Kernel LaunchPlan Measurement Missing ScalarArg Source "
        "Step TensorArg Trial Verdict WorkspaceArg dtype"
    ),
    "deepgen.vocabulary.dtypes": "narrow widen",
    "deepgen.vocabulary.registry": "metadata_files own_plugins",
}
_MODULES = {
    "foreign": "deepgen.vocabulary.foreign",
    "targets": "deepgen.targets",
}
__all__ = [  # noqa: RUF022
    "Answer", "Array", "Artifact", "BadInput", "Baseline", "BuildError", "BuildLimits", "Built", "Contender",
    "Counted", "Cpu", "DeepgenError", "DescriptorArg", "Expr", "Expression", "Generator", "Gpu", "Group",
    "HasExpression", "Json", "Kernel", "Kind", "LaunchPlan", "Measurement", "Missing", "NewResult", "Operator",
    "Param", "Past", "Read", "Recipe", "Runner", "RunnerOptions", "STRIDED", "ScalarArg", "Select", "Setting",
    "Signature", "Source", "Space", "Step", "Strategy", "Target", "Task", "Tensor", "TensorArg", "TensorFacts",
    "Tolerance", "Toolchain", "Trial", "Triton", "Value", "Verdict", "Word", "Work", "WorkspaceArg", "Yielding",
    "build_once", "checked_unit", "compare", "divides", "dtype", "explain", "foreign", "implies", "knob_ref",
    "least_work", "metadata_files", "narrow", "own_plugins", "plain", "plain_contraction", "run_judged", "targets",
    "toolchain_for", "torchs_threads", "triton_for", "walk", "where", "widen", "write_sources",
]
# fmt: on
# isort: on
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _WHERE:
        raise AttributeError(f"module 'deepgen.extend' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def place_of(name: str) -> str:
    """The module that a name of `__all__` comes from."""
    return _MODULES.get(name) or _WHERE[name]


def __dir__() -> list[str]:
    return sorted(__all__)
