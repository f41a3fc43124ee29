"""The source and the assembly of a study's winner, and of the default beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepgen.report.facts import Facts
from deepgen.tuning import Study
from deepgen.vocabulary import DeepgenError, Trial

Assembly = Callable[[Trial], str]
MOST_LETTERS = 150_000  # of one text; `deepgen show` prints the rest


def with_code(facts: Facts, study: Study, assembly: Assembly) -> Facts:
    """The facts with `code`. This needs the study's generator, and a compiler or a disassembler for `assembly`."""
    if facts["winner"] is None:
        return facts
    trials = {"winner": facts["winner"]["trial"], "default": facts["default"]}
    if trials["default"] == trials["winner"]:
        trials["default"] = None
    kernels = {who: _kernel(study, number, assembly) for who, number in trials.items() if number is not None}
    return {**facts, "code": kernels}


def _kernel(study: Study, number: int, assembly: Assembly) -> dict[str, Any]:
    """The sources and the assembly, or a sentence that says why they are missing."""
    trial = study.trial(number)
    told: dict[str, Any] = {"trial": number, "sources": [], "flags": "", "assembly": None, "why": "", "why_asm": ""}
    if not trial.kernel_id:
        return {**told, "why": "the recording does not say which kernel was measured"}
    try:
        kernel = study.kernel(trial)
        told["sources"] = [{"name": s.name, **_cut(s.text)} for s in kernel.sources]
        told["flags"] = " ".join(kernel.flags)
    except DeepgenError as error:
        told["why"] = str(error)
    try:
        told["assembly"] = _cut(assembly(trial))
    except DeepgenError as error:
        told["why_asm"] = str(error)
    return told


def _cut(text: str) -> dict[str, Any]:
    if len(text) <= MOST_LETTERS:
        return {"text": text, "lines": text.count("\n") + 1, "cut": False}
    kept = text[:MOST_LETTERS].rpartition("\n")[0]
    return {"text": kept, "lines": kept.count("\n") + 1, "cut": True}
