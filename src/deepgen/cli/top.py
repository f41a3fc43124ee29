"""`deepgen top`: the fastest right configs of a study."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from deepgen.cli import options

Count = Annotated[int, typer.Option("--count", "-k", min=1, help="How many to show.")]


def top(study: options.StudyName, count: Count = 10, as_json: options.AsJson = False) -> None:
    """Show the fastest configs of a study."""
    from deepgen import settings
    from deepgen.cli import studies
    from deepgen.cli.output import config_text, print_json, seconds_text, table
    from deepgen.vocabulary.errors import DeepgenError

    found = studies.open_study(study, settings.load())
    rows: list[dict[str, Any]] = []
    for place, trial in enumerate(found.top(count), 1):
        seconds = trial.seconds or 0.0
        rows.append(
            {
                "place": place,
                "trial": trial.id,
                "rank": trial.rank,
                "seconds": seconds,
                "gflops": found.operator.flops() / seconds / 1e9,
                "config": dict(trial.config),
            }
        )
    if as_json:
        print_json(
            {"study": str(found.folder), "operator": found.operator.to_json(), "target": found.target.name, "top": rows}
        )
        return
    if not rows:
        raise DeepgenError(f"{found.folder} has no right kernel yet")
    table(
        f"{found.operator.describe()} on {found.target.name}",
        ("trial", "time", "GFLOP/s", "config"),
        [(str(r["trial"]), seconds_text(r["seconds"]), f"{r['gflops']:.1f}", config_text(r["config"])) for r in rows],
        right=("trial", "time", "GFLOP/s"),
    )
