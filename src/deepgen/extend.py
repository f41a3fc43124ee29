"""The API for extensions of deepgen. deepgen's own plug-ins use only this and what users import (`deepgen`,
`deepgen.torch`...).

Pass operators, generators, baselines and strategies to `deepgen.tune` as objects, or let an installed package provide
them through entry points:

| group | name | object |
|---|---|---|
| `deepgen.operators` | the operator's | the class |
| `deepgen.generators`, `deepgen.baselines`, `deepgen.strategies` | its own | a factory without arguments |
| `deepgen.schedule_rules` | its own | the same: it gives a `Rule` |
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
    # Errors, JSON, untrusted files
    from deepgen.vocabulary import BadInput, DeepgenError, Json, Missing
    from deepgen.vocabulary import digest
    from deepgen.vocabulary.errors import install_extra
    from deepgen.vocabulary import foreign
    # Operators
    from deepgen.operators import (
        Answer, Array, Operator, Param, Signature, Tensor, TensorFacts, Tolerance, Word, Work, least_work,
    )
    from deepgen.operators.compare import compare, explain
    from deepgen.operators.expr.nodes import Expression, HasExpression, Read, Select, Stage, reads, walk
    from deepgen.operators.expr.contraction import plain_contraction
    from deepgen.vocabulary import dtype
    from deepgen.vocabulary.dtypes import narrow, widen
    # Targets
    from deepgen.targets import KINDS, host
    from deepgen.targets import Cpu, Gpu, Kind, Target
    from deepgen import targets
    # Generators: spaces and kernels
    from deepgen.kernels import Generator, HasRank, Rank
    from deepgen.space import Expr, Space, Value, divides, implies, where
    from deepgen.space.expr import knob_ref
    from deepgen.compiler.family import Rules
    from deepgen.compiler.rules.draft import Draft
    from deepgen.compiler.rules.facts import plain
    from deepgen.compiler.rules.gpu.plan import Plan
    from deepgen.compiler.rules.rule import Rule
    from deepgen.compiler.schedule import steps
    from deepgen.kernels.shared import shared_headers
    from deepgen.vocabulary.registry import Lowering
    from deepgen.vocabulary import DescriptorArg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, WorkspaceArg
    # Toolchains
    from deepgen.toolchains import BuildError, BuildLimits, Built, Group, Toolchain, build_once, toolchain_for
    from deepgen.toolchains.base import Recipe
    from deepgen.toolchains.find import triton_for
    from deepgen.toolchains.base import ALLOWED as PLAIN_FLAGS, strange_flag
    from deepgen.toolchains.compilers.triton import Triton
    from deepgen.toolchains import Cache, default_cache_folder, make as make_artifact
    # Runners
    from deepgen.run.measure.base import Contender, Runner, RunnerOptions, Task, WAYS
    from deepgen.run.counters import Counted
    from deepgen.vocabulary import Artifact, Measurement, Verdict
    from deepgen.run.call.native import lend, torchs_threads
    from deepgen.run.measure import bandwidth, handed, open_runner, peak_gflops
    from deepgen.run.measure.base import Helper, least_seconds
    from deepgen.run.measure.helpers import helpers_for
    from deepgen.run.measure.worker_slot import DeviceSetAside
    from deepgen.vocabulary import completed
    # Baselines and strategies
    from deepgen.baselines import Baseline, NewResult, PackedAhead
    from deepgen.tuning.search import Past, Setting, Strategy
    from deepgen.vocabulary import Trial
    from deepgen import baselines
    from deepgen.tuning import search
    # Engines, studies and their folders
    from deepgen.frontends import formats
    from deepgen.tuning import Progress, Request, tune as tune_request
    from deepgen.tuning.engines.base import Engine, Look, NOT_WORTH_IT, Outcome
    from deepgen.tuning.study import lock, trust
    from deepgen.report.serve.places import Runs, file_mark
    # Commands: settings, options, what is shown
    from deepgen import settings
    from deepgen.settings import Settings, read_json, read_toml
    from deepgen.vocabulary.folders import Scratch, appending, sweep, user_folder
    from deepgen.frontends.cli import options
    from deepgen.frontends.cli.output import labelled, print_json, table as print_table, shown
    from deepgen.frontends.cli.processes import PROGRAM
    from deepgen.report.view import live
    from deepgen.report.view.live import LINE_EVERY, clock
    from deepgen.report.view.live import Stopped, stop_on_signals
    from deepgen.report.view import console, cut, note
    from deepgen.tuning.study.text import bytes_text, counted, rate_text, seconds_text
    # Programs that run on other machines
    from deepgen.vocabulary.registry import metadata_files, own_plugins
    # Files of other tools, and kernels described by them
    from deepgen import __version__, tune
    from deepgen.kernels import Scheduled
    from deepgen.generators import by_name as generator_by_name, member_of
    from deepgen.kernels.own.arguments import Argument, ScalarArgument, TensorArgument, scalar, texture
    from deepgen.kernels.own.description import Description, checked as checked_description, divided, launch, values_of
    from deepgen.kernels.own.own import NO_MODULE, OwnKernel
    from deepgen.kernels.own.sources import (
        LANGUAGES as LANGUAGE_OF, SUFFIXES as SUFFIX_OF, parameters as declared_parameters, names as names_in,
        read as read_source, text_of,
    )
    from deepgen.operators import OPERATORS
    from deepgen.operators.words import FORMATS as NAMED_FORMATS
    from deepgen.operators.signature import INOUT, INPUT, OUTPUT, Size
    from deepgen.run.call.loaded import load
    from deepgen.run.measure.base import Policy
    from deepgen.space import parse
    from deepgen.space.definition import value_from_json, value_to_json
    from deepgen.space.expr import Config, Requirement, all_of, const, maximum, points, table
    from deepgen.space.parse import parse_values
    from deepgen.tuning import Study
    from deepgen.frontends.formats import Document, FileFormat, MeasuredConfig, TuningFile, write_results
    from deepgen.tuning.search import DEFAULT as DEFAULT_STRATEGY, make as make_strategy, settle as settle_options
    from deepgen.tuning.search.recorded import read as read_recorded
    from deepgen.vocabulary import JsonObject
    from deepgen.vocabulary.codec import Serializable, coded
    from deepgen.vocabulary.dtypes import our_name

# The same at run time: module -> names; `name=other` is exported as `other`. Imported on first use: an operator does
# not load what strategies need.
_NAMES = {
    "deepgen": "__version__ tune",
    "deepgen.baselines": "Baseline NewResult PackedAhead",
    "deepgen.compiler.family": "Rules",
    "deepgen.compiler.rules.draft": "Draft",
    "deepgen.compiler.rules.facts": "plain",
    "deepgen.compiler.rules.gpu.plan": "Plan",
    "deepgen.compiler.rules.rule": "Rule",
    "deepgen.frontends.cli.output": "labelled print_json table=print_table shown",
    "deepgen.frontends.cli.processes": "PROGRAM",
    "deepgen.kernels": "Generator HasRank Rank Scheduled",
    "deepgen.generators": "by_name=generator_by_name member_of",
    "deepgen.kernels.own.arguments": "Argument ScalarArgument TensorArgument scalar texture",
    "deepgen.kernels.own.description": "Description checked=checked_description divided launch values_of",
    "deepgen.kernels.own.own": "NO_MODULE OwnKernel",
    "deepgen.kernels.own.sources": (
        "LANGUAGES=LANGUAGE_OF SUFFIXES=SUFFIX_OF parameters=declared_parameters names=names_in read=read_source "
        "text_of"
    ),
    "deepgen.kernels.shared": "shared_headers",
    "deepgen.operators": (
        "Answer Array OPERATORS Operator Param Signature Tensor TensorFacts Tolerance Word Work least_work"
    ),
    "deepgen.operators.compare": "compare explain",
    "deepgen.operators.expr.contraction": "plain_contraction",
    "deepgen.operators.expr.nodes": "Expression HasExpression Read Select Stage reads walk",
    "deepgen.operators.signature": "INOUT INPUT OUTPUT Size",
    "deepgen.operators.words": "FORMATS=NAMED_FORMATS",
    "deepgen.report.serve.places": "Runs file_mark",
    "deepgen.report.view.live": "LINE_EVERY Stopped clock stop_on_signals",
    "deepgen.report.view": "console cut note",
    "deepgen.run.call.loaded": "load",
    "deepgen.run.call.native": "lend torchs_threads",
    "deepgen.run.counters": "Counted",
    "deepgen.run.measure": "bandwidth open_runner peak_gflops",
    "deepgen.run.measure.base": "Contender Helper Policy Runner RunnerOptions Task WAYS least_seconds",
    "deepgen.run.measure.helpers": "helpers_for",
    "deepgen.run.measure.worker_slot": "DeviceSetAside",
    "deepgen.settings": "Settings read_json read_toml",
    "deepgen.space": "Expr Space Value divides implies parse where",
    "deepgen.space.definition": "value_from_json value_to_json",
    "deepgen.space.expr": "Config Requirement all_of const knob_ref maximum points table",
    "deepgen.space.parse": "parse_values",
    "deepgen.targets": "Cpu Gpu KINDS Kind Target",
    "deepgen.toolchains": (
        "BuildError BuildLimits Built Cache Group Toolchain build_once default_cache_folder make=make_artifact "
        "toolchain_for"
    ),
    "deepgen.toolchains.base": "ALLOWED=PLAIN_FLAGS Recipe strange_flag",
    "deepgen.toolchains.compilers.triton": "Triton",
    "deepgen.toolchains.find": "triton_for",
    "deepgen.tuning": "Progress Request Study tune=tune_request",
    "deepgen.tuning.engines.base": "Engine Look NOT_WORTH_IT Outcome",
    "deepgen.frontends.formats": "Document FileFormat MeasuredConfig TuningFile write_results",
    "deepgen.tuning.search": "DEFAULT=DEFAULT_STRATEGY Past Setting Strategy make=make_strategy settle=settle_options",
    "deepgen.tuning.search.recorded": "read=read_recorded",
    "deepgen.tuning.study.text": "bytes_text counted rate_text seconds_text",
    "deepgen.vocabulary": (
        "Artifact BadInput DeepgenError DescriptorArg Json JsonObject Kernel LaunchPlan Measurement Missing ScalarArg "
        "Source Step TensorArg Trial Verdict WorkspaceArg completed digest dtype"
    ),
    "deepgen.vocabulary.codec": "Serializable coded",
    "deepgen.vocabulary.dtypes": "narrow our_name widen",
    "deepgen.vocabulary.errors": "install_extra",
    "deepgen.vocabulary.folders": "Scratch appending sweep user_folder",
    "deepgen.vocabulary.registry": "Lowering metadata_files own_plugins",
}
_MODULES = {
    "baselines": "deepgen.baselines",
    "foreign": "deepgen.vocabulary.foreign",
    "formats": "deepgen.frontends.formats",
    "handed": "deepgen.run.measure.handed",
    "host": "deepgen.targets.host",
    "live": "deepgen.report.view.live",
    "lock": "deepgen.tuning.study.lock",
    "options": "deepgen.frontends.cli.options",
    "search": "deepgen.tuning.search",
    "settings": "deepgen.settings",
    "steps": "deepgen.compiler.schedule.steps",
    "targets": "deepgen.targets",
    "trust": "deepgen.tuning.study.trust",
}
__all__ = [  # noqa: RUF022
    "Answer", "Argument", "Array", "Artifact", "BadInput", "Baseline", "BuildError", "BuildLimits", "Built", "Cache",
    "Config", "Contender", "Counted", "Cpu", "DEFAULT_STRATEGY", "DeepgenError", "Description", "DescriptorArg",
    "DeviceSetAside", "Document", "Draft", "Engine", "Expr", "Expression", "FileFormat", "Generator", "Gpu", "Group",
    "HasExpression", "HasRank", "Helper", "INOUT", "INPUT", "Json", "JsonObject", "KINDS", "Kernel", "Kind",
    "LANGUAGE_OF", "LINE_EVERY", "LaunchPlan", "Look", "Lowering", "MeasuredConfig", "Measurement", "Missing",
    "NAMED_FORMATS", "NOT_WORTH_IT", "NO_MODULE", "NewResult", "OPERATORS", "OUTPUT", "Operator", "Outcome",
    "OwnKernel", "PLAIN_FLAGS", "PROGRAM", "PackedAhead", "Param", "Past", "Plan", "Policy", "Progress", "Rank", "Read",
    "Recipe", "Request", "Requirement", "Rule", "Rules", "Runner", "RunnerOptions", "Runs", "SUFFIX_OF", "ScalarArg",
    "ScalarArgument", "Scheduled", "Scratch", "Select", "Serializable", "Setting", "Settings", "Signature", "Size",
    "Source", "Space", "Stage", "Step", "Stopped", "Strategy", "Study", "Target", "Task", "Tensor", "TensorArg",
    "TensorArgument", "TensorFacts", "Tolerance", "Toolchain", "Trial", "Triton", "TuningFile", "Value", "Verdict",
    "WAYS", "Word", "Work", "WorkspaceArg", "__version__", "all_of", "appending", "bandwidth", "baselines",
    "build_once", "bytes_text", "checked_description", "clock", "coded", "compare", "completed", "console", "const",
    "counted", "cut", "declared_parameters", "default_cache_folder", "digest", "divided", "divides", "dtype", "explain",
    "file_mark", "foreign", "formats", "generator_by_name", "handed", "helpers_for", "host", "implies", "install_extra",
    "knob_ref", "labelled", "launch", "least_seconds", "least_work", "lend", "live", "load", "lock", "make_artifact",
    "make_strategy", "maximum", "member_of", "metadata_files", "names_in", "narrow", "note", "open_runner", "options",
    "our_name", "own_plugins", "parse", "parse_values", "peak_gflops", "plain", "plain_contraction", "points",
    "print_json", "print_table", "rate_text", "read_json", "read_recorded", "read_source", "read_toml", "reads",
    "scalar", "search", "seconds_text", "settings", "settle_options", "shared_headers", "shown", "steps",
    "stop_on_signals", "strange_flag", "sweep", "table", "targets", "text_of", "texture", "toolchain_for",
    "torchs_threads", "triton_for", "trust", "tune", "tune_request", "user_folder", "value_from_json", "value_to_json",
    "values_of", "walk", "where", "widen", "write_results",
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
