"""`deepgen judge`: runs all checks of a winner on a single kernel and prints one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import generators, libraries, settings, targets
from deepgen.frontends.cli import build, options, studies
from deepgen.frontends.cli import words as operator_words
from deepgen.frontends.cli.build import ConfigText, Rank
from deepgen.frontends.cli.output import config_text, labelled, print_json, table
from deepgen.libraries.racing import contender_of
from deepgen.run.measure.base import Policy
from deepgen.settings import Settings
from deepgen.tuning.engines import local_engine
from deepgen.tuning.finals.crowning import fresh_seed
from deepgen.tuning.judging import Judgement, Suspect, Tried
from deepgen.tuning.judging import judge as judged
from deepgen.tuning.study.text import counted, seconds_text
from deepgen.vocabulary.errors import BadInput, DeepgenError

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="KERNEL [NAME=VALUE...]",
        help="A file that describes a kernel of your own (scale.py, scale.py:kernel, a T1 file), an operator of "
        "deepgen's, a study (its winner is verified), or LIBRARY:ENTRY.",
        show_default=False,
    ),
]
TrialNumber = Annotated[
    int | None,
    typer.Option("--trial", min=0, help="Verify this trial of the study instead of the winner.", show_default=False),
]
_INDENT = 12
# Names of properties on the page.
_PROPERTIES = {
    "nan": "NaN",
    "inf": "infinities",
    "denormals": "denormals",
    "threads": "callers",
    "alignment": "alignment",
}


@options.taking(*options.OF_OPERATOR, "target", "one_family", "threads", "seed", "strict_floats", after="words")
def judge(
    words: Words,
    config: ConfigText = None,
    rank: Rank = None,
    trial: TrialNumber = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Verify one kernel as thoroughly as a winner.

    Its properties are reported, too. The inputs are drawn from a fresh seed, which is printed; --seed repeats a
    judgement. The exit code is 0 where the kernel is correct, 1 where it is wrong, 2 where it could not be judged.
    """
    try:
        result = _judged(words, config, rank, trial, values, trust=trust)
    except DeepgenError as error:
        error.exit_code = 2  # exit code 1 is reserved for a wrong kernel
        raise
    if as_json:
        print_json(result.to_json())
    else:
        _print(result)
    raise typer.Exit(0 if result.right else 1)


def _judged(
    words: list[str],
    config: str | None,
    rank: int | None,
    trial: int | None,
    values: dict[str, Any],
    *,
    trust: bool,
) -> Judgement:
    current = settings.load()
    suspect = _suspect(words, config, rank, trial, current, values, trust=trust)
    targets.device_for(suspect.target)
    limits = {"timeout_seconds": current.limits.run_seconds, "threads": values["threads"]}
    policy = current.limited(Policy(**limits, strict_floats=values["strict_floats"]))
    seed = fresh_seed() if values["seed"] is None else values["seed"]
    return judged(suspect, engine=local_engine(current), policy=policy, seed=seed)


def _suspect(
    words: list[str],
    config: str | None,
    rank: int | None,
    trial: int | None,
    current: Settings,
    values: dict[str, Any],
    *,
    trust: bool,
) -> Suspect:
    """The kernel a user asked for."""
    folder, colon, entry = words[0].rpartition(":")
    if colon and Path(folder).is_dir():
        return _of_library(Path(folder), entry, trust=trust)
    if Path(words[0]).is_dir() or studies.is_study(current.studies / words[0]):
        return _of_study(words, trial, current, trust=trust)
    if trial is not None:
        raise BadInput("--trial is given without a study", allowed="a study's folder or name")
    operator, _ = operator_words.parse(words, **options.of_operator(values))
    target = targets.resolve(values["target"] or current.target)
    family = generators.find(operator, target, values["family"])
    space = family.space(operator, target)
    chosen = build.choose(space, family.default(operator, target.limited_to(values["threads"])), config, rank)
    return Suspect(operator, target, family.emit(operator, target, chosen), chosen, source=words[0])


def _of_study(words: list[str], trial: int | None, current: Settings, *, trust: bool) -> Suspect:
    if len(words) > 1:
        raise BadInput(f"{words[1]!r} follows a study", allowed="give only the study")
    study = studies.open_study(words[0], current, trust=trust)
    studies.check_machine(study)
    chosen = study.best().trial if trial is None else study.trial(trial)
    source = f"trial {chosen.id} of {study.folder.name}"
    return Suspect(study.operator, study.target, study.kernel(chosen), chosen.config, source=source)


def _of_library(folder: Path, name: str, *, trust: bool) -> Suspect:
    """An entry's stored binary, as programs execute it."""
    library = libraries.library(folder, trust=trust)
    entries = {entry.name: entry for entry in library.list()}
    if name not in entries:
        raise BadInput(f"{folder} has no entry {name!r}", allowed="one of " + (", ".join(entries) or "none"))
    entry, contender = entries[name], contender_of(library, entries[name])
    assert contender.kernel is not None
    where = f"{name} of {folder}"
    return Suspect(entry.operator, entry.target, contender.kernel, {}, contender.artifact, where)


def _print(result: Judgement) -> None:
    suspect, failed = result.suspect, result.failed
    labelled("kernel", f"{suspect.operator.describe()} from {suspect.source}", _INDENT)
    if suspect.config:
        labelled("config", config_text(suspect.config), _INDENT)
    labelled("id", suspect.kernel.id, _INDENT)
    labelled("target", suspect.target.describe(), _INDENT)
    labelled("seed", str(result.seed), _INDENT)
    if result.seconds is not None:
        labelled("time", seconds_text(result.seconds), _INDENT)
    table(None, ("tried", "result"), [(one.what, _result(one)) for one in result.tried if not one.refused])
    for name, text in _PROPERTIES.items():
        labelled(text, getattr(result.properties, name) or "not tried", _INDENT)
    if refused := list(dict.fromkeys(one.detail for one in result.tried if one.refused)):
        labelled("refuses", "; ".join(refused), _INDENT)
    if result.left_out:
        labelled("left out", ", ".join(result.left_out), _INDENT)
    print()
    held = sum(one.held or one.tells for one in result.tried)
    sentence = f"correct in all {counted(held, 'test')}"
    if failed:
        sentence = f"wrong in {len(failed)} of {counted(held + len(failed), 'test')}, the first: {failed[0].what}"
    labelled("verdict", sentence, _INDENT)


def _result(one: Tried) -> str:
    if one.held:
        return "right"
    verdict = "a property" if one.tells else one.verdict.value.replace("_", " ")
    return f"{verdict}: {one.detail}" if one.detail else verdict
