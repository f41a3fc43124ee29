"""`deepgen analyze` and `count`: what explains the time of a study's kernels, and events counted afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from deepgen import settings
from deepgen.frontends.cli import options, studies
from deepgen.frontends.cli.output import labelled, print_json, shown, table
from deepgen.report import analysis
from deepgen.report.analysis import Estimate, Report, rows_of, summary
from deepgen.report.charts import check_libraries
from deepgen.report.facts import facts_from
from deepgen.report.plots import write_analysis
from deepgen.report.view import note
from deepgen.tuning import counting
from deepgen.tuning.engines import local_engine
from deepgen.vocabulary import Trial

Threshold = Annotated[
    float, typer.Option("--threshold", metavar="R", min=0.0, max=1.0, help="Show correlations of at least this size.")
]
Plots = Annotated[
    Path | None, typer.Option("--plots", metavar="DIR", help="Also write plots to this folder.", show_default=False)
]


def analyze(
    study: options.StudyName, threshold: Threshold = 0.5, plots: Plots = None, as_json: options.AsJson = False
) -> None:
    """Find what explains the time: knobs, counters, build statistics."""
    if plots is not None:
        check_libraries()
    opened = studies.open_study(study, settings.load())
    reading = opened.read()
    rows = rows_of(reading)
    report = analysis.analyze(rows, threshold)
    files = write_analysis(report, facts_from(reading, rows, report), plots) if plots is not None else []
    if as_json:
        about = {"study": str(opened.folder), "summary": summary(report), **report.to_json()}
        print_json({**about, "plots": [str(path) for path in files]})
        return
    labelled("study", shown(opened.folder))
    labelled("trials", f"{report.used} correct ones of {report.trials}")
    if opened.target.proxy:
        labelled("time", opened.target.proxy)
    labelled("summary", summary(report))
    _print(report)
    if not any(one.name.startswith("event.") for one in report.relations):
        labelled("events", "none was counted in enough trials")
    if report.scarce:
        labelled("left out", f"counted in too few trials: {', '.join(report.scarce)}")
    if plots is not None:
        labelled("plots", ", ".join(map(shown, files)) or "none")


def _print(report: Report) -> None:
    if report.findings:
        table(
            f"Metrics correlated with log time, |r| at least {report.threshold:g}",
            ("r", "rank r", "fixed knobs", "p", "group", "number"),
            [
                (
                    f"{one.pearson.r:.2f}",
                    f"{one.spearman.r:.2f}",
                    "-" if one.partial is None else f"{one.partial.r:.2f}",
                    f"{_smallest(one.pearson, one.spearman, one.partial):.3f}",
                    one.group,
                    one.name,
                )
                for one in report.findings
            ],
            right=("r", "rank r", "fixed knobs", "p"),
        )
        table(
            "Groups of correlated metrics",
            ("group", "numbers", "shown", "strongest"),
            [(one.name, str(one.numbers), str(one.related), one.strongest or "-") for one in report.groups],
            right=("numbers", "shown"),
        )
    if report.important:
        table(
            f"Knobs that predict the time; all knobs together explain {report.explained:.0%}",
            ("explains", "alone", "p", "with", "knob"),
            [
                (f"{one.share:.0%}", f"{one.alone:.0%}", f"{one.p:.3f}", one.partner or "-", one.knob)
                for one in report.important
            ],
            right=("explains", "alone", "p"),
        )


def _smallest(*estimates: Estimate | None) -> float:
    return min(estimate.p for estimate in estimates if estimate is not None)


CountOfBest = Annotated[int, typer.Option("--top", min=1, help="Number of best kernels to count events for.")]
Events = Annotated[
    str,
    typer.Option(
        "--counters", metavar="default|EVENT,...", help="Events to count, by the names that the device's profiler uses."
    ),
]


def count(
    study: options.StudyName,
    counters: Events = "default",
    top: CountOfBest = 50,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Count hardware events of a study's best kernels."""
    current = settings.load()
    opened = studies.open_study(study, current, trust=trust)
    studies.check_machine(opened)
    counted = counting.count(
        opened, counters, top, engine=local_engine(current), say=(lambda text: None) if as_json else note
    )
    if as_json:
        rows = [
            {"trial": t.id, "rank": t.rank, "seconds": t.seconds, "counters": dict(t.measurement.counters)}
            for t in counted.trials
        ]
        print_json({"study": str(opened.folder), "trials": rows, "missing": dict(counted.missing)})
    else:
        table(
            f"{shown(opened.folder)}: {len(counted.trials)} kernels",
            ("event", "best", "least", "median", "most"),
            _rows(counted.trials),
            right=("best", "least", "median", "most"),
        )
        for sentence in counting.sentences(counted.missing):
            labelled("missing", sentence.partition(": ")[2])
    if not any(trial.measurement.counters for trial in counted.trials):
        raise typer.Exit(1)


def _rows(trials: Sequence[Trial]) -> list[list[str]]:
    """One row per event: the fastest kernel, and statistics over all of them."""
    counters = [trial.measurement.counters for trial in trials]
    rows = []
    for event in dict.fromkeys(name for one in counters for name in one):
        values = [one[event] for one in counters if event in one]
        first = counters[0].get(event)
        numbers = ("-" if first is None else f"{first:.6g}", *(f"{f(values):.6g}" for f in (min, median, max)))
        rows.append([event, *numbers])
    return rows
