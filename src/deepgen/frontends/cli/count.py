"""`deepgen count`: events of a study's best kernels, counted afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from deepgen.frontends.cli import options

if TYPE_CHECKING:
    from deepgen.vocabulary import Trial

CountOfBest = Annotated[int, typer.Option("--top", min=1, help="How many of the best kernels.")]
Events = Annotated[
    str,
    typer.Option("--counters", metavar="default|EVENT,...", help="The events, named as the device's tool has them."),
]


def count(
    study: options.StudyName,
    counters: Events = "default",
    top: CountOfBest = 50,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """CountOfBest hardware events of a study's best kernels."""
    from deepgen import settings
    from deepgen.frontends.api import local_engine
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import labelled, print_json, shown, table
    from deepgen.report.view.text import note
    from deepgen.tuning import counting

    current = settings.load()
    found = studies.open_study(study, current, trust=trust)
    studies.check_machine(found)
    told = counting.count(
        found, counters, top, engine=local_engine(current), say=(lambda text: None) if as_json else note
    )
    if as_json:
        rows = [
            {"trial": t.id, "rank": t.rank, "seconds": t.seconds, "counters": dict(t.measurement.counters)}
            for t in told.trials
        ]
        print_json({"study": str(found.folder), "trials": rows, "missing": dict(told.missing)})
    else:
        table(
            f"{shown(found.folder)}: {len(told.trials)} kernels",
            ("event", "best", "least", "median", "most"),
            _rows(told.trials),
            right=("best", "least", "median", "most"),
        )
        for sentence in counting.sentences(told.missing):
            labelled("missing", sentence.partition(": ")[2])
    if not any(trial.measurement.counters for trial in told.trials):
        raise typer.Exit(1)


def _rows(trials: Sequence[Trial]) -> list[list[str]]:
    """Each event: of the fastest kernel, and over all of them."""
    counters = [trial.measurement.counters for trial in trials]
    rows = []
    for event in dict.fromkeys(name for one in counters for name in one):
        values = [one[event] for one in counters if event in one]
        first = counters[0].get(event)
        numbers = ("-" if first is None else f"{first:.6g}", *(f"{f(values):.6g}" for f in (min, median, max)))
        rows.append([event, *numbers])
    return rows
