"""How to reproduce a study: the equivalent command line, and the kernels' sources and assembly."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from deepgen import operators
from deepgen.operators import Operator
from deepgen.tuning import Study
from deepgen.tuning.study.definition import is_own_kernel
from deepgen.tuning.study.recorded_study import is_recorded
from deepgen.vocabulary import DeepgenError, Trial

if TYPE_CHECKING:
    from deepgen.report.facts import Facts

_OF_THE_BUDGET = ("time_budget", "keep_top", "target_speedup", "patience")  # each has an option of the same name
Assembly = Callable[[Trial], str]
MOST_LETTERS = 150_000  # of one text; `deepgen show` prints the rest


def tune_command(study: Study, budget: Mapping[str, Any]) -> str | None:
    """`deepgen tune ...`, or None if no command line can express the study. Imports no user code."""
    definition = study.definition
    # deepgen's own strategies choose their options themselves; the command line has only a few of them.
    special = set(definition["options"]) - {"library", "start_from"}
    if definition["domains"] or special or definition.get("code") or is_own_kernel(definition):
        return None
    if "recipe" in definition or "rules" in definition or is_recorded(study):
        return None
    try:
        shapes = [operators.from_json(data) for data in (definition["operator"], *definition.get("also", ()))]
        parameters = [_words(shape) for shape in shapes]
    except (DeepgenError, KeyError, TypeError, ValueError):
        return None
    words = ["deepgen", "tune", shapes[0].name, *parameters[0]]
    for other in parameters[1:]:
        words += ["--also", " ".join(word for word in other if word not in parameters[0])]
    words += ["--target", study.target.name, "--family", definition["generator"]]
    words += ["--strategy", definition["strategy"], "--seed", str(definition["seed"])]
    words += ["--trials", str(budget["trials"])] if budget.get("trials") else []
    for name in _OF_THE_BUDGET:
        if budget.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", f"{budget[name]:g}"]
    if budget.get("counters"):
        words += ["--counters", ",".join(map(str, budget["counters"]))]
    if "start_from" in definition["options"]:
        words += ["--start-from", str(definition["options"]["start_from"])]
    if definition["policy"].get("threads") is not None:
        words += ["--threads", str(definition["policy"]["threads"])]
    words += [] if definition["policy"].get("cold", True) else ["--warm"]
    words += ["--strict-floats"] if definition["policy"].get("strict_floats") else []
    words += ["--no-transfer"] if definition.get("transfer") is False else []
    words += ["--no-second-look"] if definition.get("second_look") is False else []
    return shlex.join(words)


def _words(operator: Operator) -> list[str]:
    """NAME=VALUE for each parameter; raises ValueError if these do not fully describe the operator."""
    parameters = {name: value for name, value in operator.parameters().items() if value is not None}
    if type(operator).make(parameters) != operator:
        raise ValueError(operator.describe())
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in parameters.items()]


def with_code(facts: Facts, study: Study, assembly: Assembly) -> Facts:
    """The facts with `code`. This needs the study's generator, and for `assembly` a compiler or a disassembler."""
    if facts["winner"] is None:
        return facts
    trials = {"winner": facts["winner"]["trial"], "default": facts["default"]}
    if trials["default"] == trials["winner"]:
        trials["default"] = None
    kernels = {who: _kernel(study, number, assembly) for who, number in trials.items() if number is not None}
    return {**facts, "code": kernels}


def _kernel(study: Study, number: int, assembly: Assembly) -> dict[str, Any]:
    """The sources and the assembly, or a sentence saying why they are missing."""
    trial = study.trial(number)
    shown: dict[str, Any] = {"trial": number, "sources": [], "flags": "", "assembly": None, "why": "", "why_asm": ""}
    if not trial.kernel_id:
        return {**shown, "why": "the recording does not name the kernel"}
    try:
        kernel = study.kernel(trial)
        shown["sources"] = [{"name": s.name, **_cut(s.text)} for s in kernel.sources]
        shown["flags"] = " ".join(kernel.flags)
    except DeepgenError as error:
        shown["why"] = str(error)
    try:
        shown["assembly"] = _cut(assembly(trial))
    except DeepgenError as error:
        shown["why_asm"] = str(error)
    return shown


def _cut(text: str) -> dict[str, Any]:
    if len(text) <= MOST_LETTERS:
        return {"text": text, "lines": text.count("\n") + 1, "cut": False}
    kept = text[:MOST_LETTERS].rpartition("\n")[0]
    return {"text": kept, "lines": kept.count("\n") + 1, "cut": True}
