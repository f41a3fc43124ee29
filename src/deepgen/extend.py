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
    from deepgen.kernels.base import Generator, HasRank, Rank
    from deepgen.space import Expr, Space, Value, divides, implies, where
    from deepgen.space.expr import knob_ref
    from deepgen.compiler.rules.facts import plain
    from deepgen.kernels.shared import shared_headers
    from deepgen.kernels.own.triton_family import Lowering
    from deepgen.vocabulary import DescriptorArg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg
    # Toolchains
    from deepgen.toolchains import BuildError, BuildLimits, Built, Group, Toolchain, build_once, toolchain_for
    from deepgen.toolchains.base import Recipe
    from deepgen.toolchains.find_gpu import triton_for
    from deepgen.toolchains.compilers.triton import Triton
    # Runners
    from deepgen.run.measure.base import Contender, Runner, RunnerOptions, STRIDED, Task
    from deepgen.run.counters.base import Counted
    from deepgen.vocabulary import Artifact, Measurement, Verdict
    from deepgen.run.call.native import torchs_threads
    # Baselines and strategies
    from deepgen.baselines import Baseline, NewResult
    from deepgen.tuning.search import Past, Setting, Strategy
    from deepgen.vocabulary import Trial
    # Programs that run elsewhere
    from deepgen.vocabulary.registry import metadata_files, own_plugins
    # Files of other tools, and kernels that are described elsewhere
    from deepgen import __version__, tune
    from deepgen.kernels.base import Scheduled
    from deepgen.kernels.gemm.simt_gemm import SimtGemm
    from deepgen.kernels.gemm.simt_gemm.space import WIDEST as WIDEST_ACCESS
    from deepgen.kernels.own.arguments import Argument, ScalarArgument, TensorArgument, scalar, texture
    from deepgen.kernels.own.description import Description, checked as checked_description, divided, launch, values_of
    from deepgen.kernels.own.own import NO_MODULE, OwnKernel
    from deepgen.kernels.own.sources import (
        LANGUAGES as LANGUAGE_OF, SUFFIXES as SUFFIX_OF, parameters as declared_parameters, names as names_in,
        read as read_source, text_of,
    )
    from deepgen.operators import Gemm, OPERATORS, gemm
    from deepgen.operators.named.base import FORMATS as NAMED_FORMATS
    from deepgen.operators.signature import INOUT, INPUT, OUTPUT, Size
    from deepgen.run.call.loaded import load
    from deepgen.run.measure.base import Policy
    from deepgen.space import parse
    from deepgen.space.definition import value_from_json, value_to_json
    from deepgen.space.expr import Config, Requirement, all_of, const, maximum, points, table
    from deepgen.space.parse import parse_values
    from deepgen.tuning import Study
    from deepgen.tuning.formats import Document, FileFormat, MeasuredConfig, TuningFile, write_results
    from deepgen.tuning.search import DEFAULT as DEFAULT_STRATEGY, make as make_strategy, settle as settle_options
    from deepgen.tuning.search.recorded import read as read_recorded
    from deepgen.vocabulary import JsonObject
    from deepgen.vocabulary.dtypes import our_name

# The same for when it runs: module -> names; `name=other` is called `other` here. Imported when first used: an operator
# does not load what strategies need.
_NAMES = {
    "deepgen": "__version__ tune",
    "deepgen.baselines": "Baseline NewResult",
    "deepgen.compiler.rules.facts": "plain",
    "deepgen.kernels.base": "Generator HasRank Rank Scheduled",
    "deepgen.kernels.gemm.simt_gemm": "SimtGemm",
    "deepgen.kernels.gemm.simt_gemm.space": "WIDEST=WIDEST_ACCESS",
    "deepgen.kernels.own.arguments": "Argument ScalarArgument TensorArgument scalar texture",
    "deepgen.kernels.own.description": "Description checked=checked_description divided launch values_of",
    "deepgen.kernels.own.own": "NO_MODULE OwnKernel",
    "deepgen.kernels.own.sources": (
        "LANGUAGES=LANGUAGE_OF SUFFIXES=SUFFIX_OF parameters=declared_parameters names=names_in read=read_source "
        "text_of"
    ),
    "deepgen.kernels.own.triton_family": "Lowering",
    "deepgen.kernels.shared": "shared_headers",
    "deepgen.operators": (
        "Answer Array Gemm OPERATORS Operator Param Signature Tensor TensorFacts Tolerance Word Work gemm least_work"
    ),
    "deepgen.operators.compare": "compare explain",
    "deepgen.operators.expr.contraction": "plain_contraction",
    "deepgen.operators.expr.nodes": "Expression HasExpression Read Select walk",
    "deepgen.operators.named.base": "FORMATS=NAMED_FORMATS",
    "deepgen.operators.signature": "INOUT INPUT OUTPUT Size",
    "deepgen.run.call.loaded": "load",
    "deepgen.run.call.native": "torchs_threads",
    "deepgen.run.counters.base": "Counted",
    "deepgen.run.measure.base": "Contender Policy Runner RunnerOptions STRIDED Task",
    "deepgen.space": "Expr Space Value divides implies parse where",
    "deepgen.space.definition": "value_from_json value_to_json",
    "deepgen.space.expr": "Config Requirement all_of const knob_ref maximum points table",
    "deepgen.space.parse": "parse_values",
    "deepgen.targets": "Cpu Gpu Kind Target",
    "deepgen.toolchains": "BuildError BuildLimits Built Group Toolchain build_once toolchain_for",
    "deepgen.toolchains.base": "Recipe",
    "deepgen.toolchains.compilers.triton": "Triton",
    "deepgen.toolchains.find_gpu": "triton_for",
    "deepgen.tuning": "Study",
    "deepgen.tuning.formats": "Document FileFormat MeasuredConfig TuningFile write_results",
    "deepgen.tuning.search": "DEFAULT=DEFAULT_STRATEGY Past Setting Strategy make=make_strategy settle=settle_options",
    "deepgen.tuning.search.recorded": "read=read_recorded",
    "deepgen.vocabulary": (
        "Artifact BadInput DeepgenError DescriptorArg Json JsonObject Kernel LaunchPlan Measurement Missing ScalarArg "
        "Source Step TensorArg Trial Verdict WorkspaceArg dtype"
    ),
    "deepgen.vocabulary.dtypes": "narrow our_name widen",
    "deepgen.vocabulary.registry": "metadata_files own_plugins",
}
_MODULES = {
    "foreign": "deepgen.vocabulary.foreign",
    "targets": "deepgen.targets",
}
__all__ = [  # noqa: RUF022
    "Answer", "Argument", "Array", "Artifact", "BadInput", "Baseline", "BuildError", "BuildLimits", "Built",
    "Config", "Contender", "Counted", "Cpu", "DEFAULT_STRATEGY", "DeepgenError", "Description", "DescriptorArg",
    "Document", "Expr", "Expression", "FileFormat", "Gemm", "Generator", "Gpu", "Group", "HasExpression", "HasRank",
    "INOUT", "INPUT", "Json", "JsonObject", "Kernel", "Kind", "LANGUAGE_OF", "LaunchPlan", "Lowering",
    "MeasuredConfig", "Measurement", "Missing", "NAMED_FORMATS", "NO_MODULE", "NewResult", "OPERATORS", "OUTPUT",
    "Operator", "OwnKernel", "Param", "Past", "Policy", "Rank", "Read", "Recipe", "Requirement", "Runner",
    "RunnerOptions", "STRIDED", "SUFFIX_OF", "ScalarArg", "ScalarArgument", "Scheduled", "Select", "Setting",
    "Signature", "SimtGemm", "Size", "Source", "Space", "Step", "Strategy", "Study", "Target", "Task", "Tensor",
    "TensorArg", "TensorArgument", "TensorFacts", "Tolerance", "Toolchain", "Trial", "Triton", "TuningFile",
    "Value", "Verdict", "WIDEST_ACCESS", "Word", "Work", "WorkspaceArg", "__version__", "all_of", "build_once",
    "checked_description", "compare", "const", "declared_parameters", "divided", "divides", "dtype", "explain",
    "foreign", "gemm", "implies", "knob_ref", "launch", "least_work", "load", "make_strategy", "maximum",
    "metadata_files", "names_in", "narrow", "our_name", "own_plugins", "parse", "parse_values", "plain",
    "plain_contraction", "points", "read_recorded", "read_source", "scalar", "settle_options", "shared_headers",
    "table", "targets", "text_of", "texture", "toolchain_for", "torchs_threads", "triton_for", "tune",
    "value_from_json", "value_to_json", "values_of", "walk", "where", "widen", "write_results",
]
# fmt: on
# isort: on
_WHERE = {
    name.rpartition("=")[2]: (module, name.partition("=")[0])
    for module, names in _NAMES.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _WHERE:
        raise AttributeError(f"module 'deepgen.extend' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
