"""`deepgen show` and `top`: a study, its fastest configs, or a trial with its source, assembly or schedule."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import settings
from deepgen.frontends import formats
from deepgen.frontends.cli import options, studies
from deepgen.frontends.cli.output import (
    config_text,
    facts_text,
    labelled,
    paragraph,
    print_json,
    print_rules,
    shown,
    table,
    write_text,
)
from deepgen.frontends.formats import TuningFile
from deepgen.kernels import AsksRules, Scheduled, cost_of
from deepgen.report.view import printable
from deepgen.tuning import Study
from deepgen.tuning.reuse import top_rows
from deepgen.tuning.study.text import bytes_text, rate_text, seconds_text
from deepgen.vocabulary import Trial
from deepgen.vocabulary.errors import BadInput, DeepgenError

Number = Annotated[int | None, typer.Option("--trial", min=0, help="Trial number. [the best]", show_default=False)]
WantSource = Annotated[bool, typer.Option("--source", help="Print the kernel's source.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="With --source: write the source files to this folder.", show_default=False),
]
WantAssembly = Annotated[bool, typer.Option("--asm", help="Print the kernel's assembly.")]
WantSchedule = Annotated[
    bool, typer.Option("--schedule", help="Print the schedule steps and the loops of a kernel made by rules.")
]
WantRules = Annotated[bool, typer.Option("--rules", help="Print each schedule rule's answer, and why.")]
WantPasses = Annotated[
    bool, typer.Option("--passes", help="Print the loops after each pass, for a kernel made by rules.")
]
WantCost = Annotated[bool, typer.Option("--cost", help="Print the cost model's breakdown of a kernel's time.")]
WantCheck = Annotated[
    bool,
    typer.Option(
        "--check-passes", help="Check each pass by interpreting the loops on small sizes, for a kernel made by rules."
    ),
]

_OF_RULES = ("--rules", "--check-passes")


def show(
    study: options.StudyName,
    trial: Number = None,
    source: WantSource = False,
    asm: WantAssembly = False,
    schedule: WantSchedule = False,
    passes: WantPasses = False,
    check_passes: WantCheck = False,
    rules: WantRules = False,
    cost: WantCost = False,
    output: Output = None,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a study's result, or one trial: source, assembly, loops.

    Of a file, show what `tune` would do with it.
    """
    # Imported here: `top` does not need it.
    from deepgen.frontends.cli.build import assembly_of_trial

    if output is not None and not source:
        raise BadInput(f"-o {output} is given", allowed="with --source")
    if formats.is_file_name(study) and Path(study).is_file() and (file := formats.read(Path(study))).operators:
        _show_file(file, as_json=as_json)
        return
    current = settings.load()
    opened = studies.open_study(study, current, trust=trust)
    if trial is None and not (source or asm or schedule or passes or check_passes or rules or cost):
        _show_study(opened, as_json=as_json)
        return
    chosen = opened.best().trial if trial is None else opened.trial(trial)
    texts: dict[str, str] = {}
    files: dict[str, str] = {}
    if source:
        files, texts["source"] = _source(opened, chosen, current, output, as_json=as_json)
    if asm:
        texts["asm"] = assembly_of_trial(opened, chosen, current)
    answers, checked = list[dict[str, Any]](), dict[str, Any]()
    if schedule or passes or check_passes or rules:
        named = {"--rules": rules, "--check-passes": check_passes, "--schedule": schedule, "--passes": passes}
        family, config = _scheduled(opened, chosen, next(name for name, wanted in named.items() if wanted))
        asked = (opened.operator, opened.target, config)
        answers = family.answers(*asked) if rules and isinstance(family, AsksRules) else []
        checked = family.checked_passes(*asked) if check_passes and isinstance(family, AsksRules) else {}
        texts |= {"schedule": family.schedule_text(*asked)} if schedule else {}
        texts |= {"passes": family.passes_text(*asked)} if passes else {}
    expected = _expected(opened, chosen) if cost else None
    if as_json:
        more_facts = {**({"files": files} if files else {}), **({"rules": answers} if rules else {})}
        more_facts |= {"cost": expected} if expected else {}
        print_json({**_facts(opened, chosen), **texts, **more_facts, **({"check_passes": checked} if checked else {})})
        raise typer.Exit(int(bool(checked.get("wrong"))))
    if rules:
        print_rules(f"trial {chosen.id}", answers)
    if expected:
        _print_cost(f"trial {chosen.id}: predicted breakdown of its time", expected)
    texts |= {"check": _check_text(checked)} if checked else {}
    if texts:
        text = "\n".join(texts.values())
        print(printable(text) if sys.stdout.isatty() else text)
    elif not rules and not expected:
        _print_trial(_facts(opened, chosen))
    raise typer.Exit(int(bool(checked.get("wrong"))))


def _source(
    study: Study, trial: Trial, current: settings.Settings, output: Path | None, *, as_json: bool
) -> tuple[dict[str, str], str]:
    """A kernel's files, and the text to print for them."""
    from deepgen.frontends.cli.build import build_files, write_sources

    kernel = study.kernel(trial)
    more = build_files(kernel, study.target, current)
    files = {s.name: s.text for s in kernel.sources} | more
    if output is not None:
        return files, f"written to {output}: {', '.join(write_sources(output, kernel, more))}"
    if as_json:
        return files, "\n".join(s.text for s in kernel.sources)
    titled = len(files) > 1
    return files, "\n".join(f"==> {name} <==\n{text}" if titled else text for name, text in files.items())


def _check_text(checked: dict[str, Any]) -> str:
    wrong, names = checked["wrong"], checked["passes"]
    if wrong:
        return f"on {checked['sizes']}: pass {wrong['pass']} is the first that changes a result: {wrong['why']}"
    return f"on {checked['sizes']}: all {len(names)} passes agree: {', '.join(names)}"


def _show_study(opened: Study, *, as_json: bool) -> None:
    from deepgen.frontends.cli.result import print_result  # imported here: `top` does not need it

    if as_json:
        notes = [text for _, text in opened.notes()]
        print_json({**opened.summary(), "definition": dict(opened.definition), "notes": notes})
    else:
        print_result(opened)


def _show_file(file: TuningFile, *, as_json: bool) -> None:
    """Show what a file asks to tune."""
    rows = [(operator, file.counts.get(operator, 1)) for operator in file.operators]
    if as_json:
        each = [{"operator": operator.to_json(), "describe": operator.describe(), "count": n} for operator, n in rows]
        print_json({"file": str(file.file), "operators": each})
        return
    cells = [(str(count), f"{operator.flops() * count / 1e9:.3g}", operator.describe()) for operator, count in rows]
    table(None, ("count", "GFLOP", "operator"), cells, right=("count", "GFLOP"))


def _scheduled(study: Study, trial: Trial, option: str) -> tuple[Scheduled, dict[str, Any]]:
    from deepgen.generators import member_of  # imported here: `top` imports nothing that generates kernels

    family, config = member_of(study.generator, trial.config)
    if not isinstance(family, Scheduled) or (option in _OF_RULES and not isinstance(family, AsksRules)):
        by = "rules" if option in _OF_RULES else "schedules"
        what = f"{option} cannot be used: kernels of family {family.name} are not made by {by}"
        raise BadInput(what, allowed="only kernels of family rules are")
    return family, config


def _expected(study: Study, trial: Trial) -> dict[str, Any]:
    """The times that the family's cost model predicts for a trial, next to the measured one, in seconds."""
    from deepgen.generators import member_of

    family, config = member_of(study.generator, trial.config)
    cost = cost_of(family, study.operator, study.target, config)
    if cost is None:
        raise BadInput(
            f"--cost cannot be used: family {family.name} has no cost model", allowed="choose a family that has one"
        )
    phases = [{**asdict(phase), "seconds": phase.seconds} for phase in cost.phases]
    return {"family": family.name, "phases": phases, "seconds": cost.seconds, "measured": trial.seconds}


def _print_cost(title: str, cost: dict[str, Any]) -> None:
    rows = []
    for phase in cost["phases"]:
        for part in (*phase["beside"], *phase["fixed"]):
            amount = bytes_text(part["amount"]) if part["unit"] == "bytes" else f"{part['amount']:.4g} {part['unit']}"
            rows.append((phase["name"], part["name"], amount if part["unit"] else "", seconds_text(part["seconds"])))
    rows.append(("expected", "", "", seconds_text(cost["seconds"])))
    rows.append(("measured", "", "", seconds_text(cost["measured"])))
    table(title, ("phase", "part", "amount", "time"), rows, right=("amount", "time"))
    if any(len(phase["beside"]) > 1 for phase in cost["phases"]):
        paragraph("The parts of a phase overlap: the longest hides most of the others.")


def _facts(study: Study, trial: Trial) -> dict[str, Any]:
    seconds, finals = trial.seconds, study.finals()
    return {
        "study": str(study.folder),
        "trial": trial.id,
        "rank": trial.rank,
        "config": dict(trial.config),
        "kernel": trial.kernel_id,
        "seconds": seconds,
        "finals": finals.seconds().get(trial.id) if finals is not None else None,
        **(study.speed(seconds) if seconds else {"gflops": None}),
        **trial.measurement.to_json(),
        "verdict": study.about.verdict_text(trial.measurement.verdict.value),
        "build": dict(trial.build_facts),
    }


def _print_trial(facts: dict[str, Any]) -> None:
    labelled("study", shown(facts["study"]))
    labelled("trial", f"{facts['trial']}, rank {facts['rank']}")
    labelled("config", config_text(facts["config"]))
    labelled("verdict", facts["verdict"] + (f": {facts['detail']}" if facts["detail"] else ""))
    if facts["seconds"] is not None:
        low, high = min(facts["samples"]), max(facts["samples"])
        spread = f"{seconds_text(low)} to {seconds_text(high)} in {len(facts['samples'])} runs"
        labelled("time", f"{seconds_text(facts['seconds'])}, {rate_text(facts)} as one trial ({spread})")
        if facts["finals"] is not None:
            labelled("finals", f"{seconds_text(facts['finals'])}, timed alongside the other finalists")
    conditions = dict(facts["conditions"])
    missing = conditions.pop("not_counted", {})
    if facts["counters"]:
        labelled("counters", facts_text(facts["counters"]))
    for why, events in missing.items():
        labelled("missing", f"{', '.join(events)}: {why}")
    for label, values in (("measured", conditions), ("build", facts["build"])):
        if values:
            labelled(label, facts_text(values))


Count = Annotated[int, typer.Option("--count", "-k", min=1, help="Number of configs to show.")]
Save = Annotated[Path | None, typer.Option("--save", help="Also write them to this JSON file.", show_default=False)]


def top(study: options.StudyName, count: Count = 10, save: Save = None, as_json: options.AsJson = False) -> None:
    """Show the fastest configs of a study."""
    opened = studies.open_study(study, settings.load())
    rows: list[dict[str, Any]] = top_rows(opened, count)
    about = {
        "study": str(opened.folder),
        "operator": opened.definition["operator"],
        "target": opened.target.name,
        **opened.target.proxy_row(),
        "top": rows,
    }
    if save is not None:
        write_text(save, json.dumps(about, indent=2) + "\n")
    if as_json:
        print_json(about)
        return
    if not rows:
        raise DeepgenError(f"{opened.folder} has no correct kernel yet")
    first = rows[0]["config"]
    times = ("finals", "search") if any(row["finals"] for row in rows) else ("search",)
    shown = [
        {
            "trial": str(row["trial"]),
            "finals": seconds_text(row["finals"]["seconds"]) if row["finals"] else "-",
            "search": seconds_text(row["seconds"]),
            "rate": rate_text(row["finals"] or row),
            "config": config_text({k: v for k, v in row["config"].items() if row is rows[0] or v != first.get(k)}),
        }
        for row in rows
    ]
    columns = ("trial", *times, "rate", "config")
    table(
        f"{opened.describe()} on {opened.target.shown}",
        columns,
        [tuple(map(row.__getitem__, columns)) for row in shown],
        right=columns[:-1],
    )
    notes = ["A rate is that of the finals if the config took part, otherwise of the search."] if len(times) > 1 else []
    if len(rows) > 1:
        notes.append("Configs after the first list only the knobs that differ from it.")
    if notes:
        paragraph(" ".join(notes))
