"""Options, each declared once: command parameters, config file keys and requests are derived from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import typer

from deepgen.frontends.cli import completion
from deepgen.vocabulary.errors import BadInput

F = TypeVar("F", bound=Callable[..., None])

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR NAME=VALUE...",
        help="For example: gemm M=1024 N=2048 K=3072, or gemm MNK=1024.",
        show_default=False,
        autocompletion=completion.operators,
    ),
]
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A study's folder, name or unique prefix, or `last`; or a folder that contains one study.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="Run in the background; keeps running when the terminal closes.")
]
Trust = Annotated[bool, typer.Option("--trust", help="Run code and binaries that this user's deepgen did not write.")]


def seconds_of(text: str) -> float:
    """Seconds from a text such as 20, 20s, 1.5s, 5m or 1h30m."""
    from deepgen.tuning.progress import seconds_of as parsed

    try:
        return parsed(text)
    except BadInput as error:
        raise typer.BadParameter(str(error)) from None


@dataclass(frozen=True)
class OptionSpec:
    """A parameter of a run: an option of commands, a key of config files, or both."""

    name: str  # of a command's parameter; also the flag, unless `flag` is set
    kind: Any  # the type of a value; bool: a switch
    help: str = ""
    flag: str = ""
    least: float | None = None
    most: float | None = None
    metavar: str | None = None
    complete: Callable[[str], list[str]] | None = None
    default: Any = None
    repeated: bool = False
    field: str = ""  # of a request, if its name differs
    value: Callable[[Any], Any] | None = None  # converts the option's value to that field's
    key: str = ""  # in a config file
    allowed: str = ""  # for that key, in words
    parse: Callable[[str], Any] | None = None  # for the option's text, if the type alone does not determine it

    @cached_property
    def long(self) -> str:
        """The flag with its dashes."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    @cached_property
    def annotation(self) -> Any:
        """The annotation for Typer."""
        option = typer.Option(
            self.long,
            help=self.help,
            min=None if self.parse else self.least,
            max=self.most,
            parser=self.parse,
            metavar=self.metavar,
            autocompletion=self.complete,
            show_default=self.kind is bool or self.default is not None,
        )
        if self.kind is bool or self.default is not None:
            return Annotated[self.kind, option]
        return Annotated[Optional[list[self.kind] if self.repeated else self.kind], option]  # type: ignore[name-defined]  # noqa: UP045

    def parameter(self) -> inspect.Parameter:
        default = False if self.kind is bool else self.default
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=self.annotation)


_DECLARED = (
    OptionSpec(
        "dtype", str, "Data type of the tensors; same as dtype=...", complete=completion.dtypes
    ),
    OptionSpec("layout", str, "Memory layout of the tensors; same as layout=..."),
    OptionSpec(
        "epilogue", str, "Operations on the result, such as bias,relu; same as epilogue=...", metavar="STEP,..."
    ),
    OptionSpec(
        "fast_sums", bool, "Allow accumulation below f32 precision; same as fast_sums=true."
    ),
    OptionSpec("causal", bool, "Attention: a query sees no later keys; same as causal=true."),
    OptionSpec("lengths", bool, "Attention: a number of keys for each batch; same as lengths=true."),
    OptionSpec(
        "page", int, "Attention: keys per page of k and v; same as page=...", least=1, metavar="KEYS"
    ),
    OptionSpec(
        "also", str, "Another shape for the same kernel: the parameters that differ, such as M=64. Repeatable. Kernels "
        "are ranked by the geometric mean of their times.", metavar="NAME=VALUE...", repeated=True,
    ),
    OptionSpec(
        "target", str, "Device to tune for, such as x86:native. [the best device here]", complete=completion.targets,
        key="target", allowed="the name of a target, such as x86:native",
    ),
    OptionSpec(
        "host", str, "For board targets, such as riscv:k1: the board that runs kernels, over SSH. [local qemu]",
        metavar="USER@HOST[:PORT]",
    ),
    OptionSpec(
        "family", str, "Kernel family, or `all` for a study of each. [the fastest one for the target]",
        complete=completion.families, key="family", allowed="a family's name, or all",
    ),
    OptionSpec(
        "threads", int, "Maximum threads of CPU kernels and baselines. [all cores]", least=1,
        key="threads", allowed="an integer of at least 1",
    ),
    OptionSpec("one_kernel", bool, key="one_kernel", allowed="true or false"),
    OptionSpec("knobs", dict, key="knobs", allowed="a table of knobs with the values each may take"),
    OptionSpec(
        "trials", int, "How many configs to try. [200]", least=1,
        key="budget.trials", allowed="must be an integer of at least 1",
    ),
    OptionSpec(
        "time_budget", float, "Maximum time in total, finals included: 20 or 20s, 5m, 1h30m. [no limit]", least=0.001,
        key="budget.time", allowed="a positive number of seconds", parse=seconds_of, metavar="TIME",
    ),
    OptionSpec("jobs", int, "Parallel builds. [one per core]", least=1),
    OptionSpec("engine", str, "Where to build and measure: local, or ray for a Ray cluster.", default="local"),
    OptionSpec(
        "address", str, "With --engine ray: HOST:PORT, or auto for this machine's cluster. [start one here]",
        metavar="HOST:PORT",
    ),
    OptionSpec(
        "seed", int, "Random seed of inputs and search. [0]", least=0, key="seed", allowed="an integer of at least 0"
    ),
    OptionSpec(
        "strategy", str, "Search strategy. [model]", complete=completion.strategies,
        key="strategy", allowed="a strategy's name",
    ),
    OptionSpec(
        "start_from", int, "First rank to try, with --strategy exhaustive. [0]", least=0,
        field="options", value=lambda first: {"start_from": first},
    ),
    OptionSpec(
        "no_transfer", bool, "Do not learn from earlier studies.", field="transfer", value=lambda _: False
    ),
    OptionSpec(
        "learn_from", Path, "A recording to start from, T4 or Kernel Tuner's cache; repeatable.", repeated=True,
        value=tuple,
    ),
    OptionSpec(
        "no_second_look", bool, "Run every built kernel, even if its build statistics predict that it is slow.",
        field="second_look", value=lambda _: False,
    ),
    OptionSpec(
        "target_speedup", float, "Stop once the best kernel is this many times as fast as every baseline.", least=0.001
    ),
    OptionSpec("patience", int, "Stop after this many trials without improvement.", least=1),
    OptionSpec(
        "space_strategy", int, "For a legacy tuning config: 0 enumerates and filters, 1 prunes while enumerating. [1]",
        least=0, most=1,
    ),
    OptionSpec(
        "keep_top", int, "Finalists, in addition to the default config. [8]", least=1,
        key="keep_top", allowed="must be an integer of at least 1",
    ),
    OptionSpec(
        "counters", str, "Hardware events to count for every correct kernel, in separate runs. [none]",
        metavar="default|EVENT,...", key="counters",
    ),
    OptionSpec(
        "baseline", str, "Compare with this implementation; repeatable. [all available]", metavar="NAME",
        complete=completion.baselines, repeated=True, field="baselines",
    ),
    OptionSpec(
        "library", Path,
        "Add the winners to this library. [deepgen-library for recorded models, else none]", metavar="DIR",
    ),
    OptionSpec("noisy", bool, "With a library: also add winners that were timed on a busy machine."),
    OptionSpec("out", Path, "Folder for studies. [deepgen-studies]", key="out", allowed="a folder"),
    OptionSpec("warm", bool, "Measure with warm caches instead of cold."),
    OptionSpec("strict_floats", bool, "Kernels must handle NaN, infinities and denormals as the reference does."),
)  # fmt: skip
OPTIONS = {option.name: option for option in _DECLARED}
OPTIONS["one_family"] = OptionSpec(
    "family", str, "Kernel family. [the fastest for the target, as measured]", complete=completion.families
)
# Options that say what a word of that name may say, too.
OF_OPERATOR = ("dtype", "layout", "epilogue", "fast_sums", "causal", "lengths", "page")
# What the command line, a config file or an earlier run may say of a request, under the names that Request gives them.
OF_A_RUN = (
    "trials", "time_budget", "seed", "strategy", "options", "transfer", "learn_from", "second_look", "target_speedup",
    "patience", "keep_top", "counters", "out",
)  # fmt: skip
IN_FILES = tuple(option for option in _DECLARED if option.key)

if TYPE_CHECKING:
    Trials = Optional[int]  # noqa: UP045
    TimeBudget = Optional[float]  # noqa: UP045
    Seed = Optional[int]  # noqa: UP045
    Strategy = Optional[str]  # noqa: UP045
else:
    Trials, TimeBudget, Seed, Strategy = (
        OPTIONS[name].annotation for name in ("trials", "time_budget", "seed", "strategy")
    )


def taking(*names: str, after: str) -> Callable[[F], F]:
    """Add these options to a command after that parameter; the command receives them as **values."""

    def decorate(command: F) -> F:
        params: dict[str, inspect.Parameter] = {}
        for name, one in inspect.signature(command, eval_str=True).parameters.items():
            if one.kind is not inspect.Parameter.VAR_KEYWORD:
                params[name] = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            if name == after:
                params |= {option.name: option.parameter() for option in map(OPTIONS.__getitem__, names)}
        command.__signature__ = inspect.Signature(list(params.values()), return_annotation=None)  # type: ignore[attr-defined]
        return command

    return decorate


def requested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request set by options of a command; None for options that are not given."""
    fields = {}
    for name, value in values.items():
        option = OPTIONS[name]
        absent = value is None or value is False or (option.repeated and not value)
        fields[option.field or name] = None if absent else option.value(value) if option.value else value
    return fields


def of_operator(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the operator that are given as options."""
    return {name: values[name] for name in OF_OPERATOR if values.get(name) not in (None, False)}


def as_words(values: Mapping[str, Any], only: Collection[str]) -> list[str]:
    """Options as command line words, restricted to the given names."""
    return [
        word
        for name, value in values.items()
        if name in only and value is not None and value is not False
        for one in (value if isinstance(value, list) else [value])
        for word in (OPTIONS[name].long, *([] if one is True else [str(one)]))
    ]
