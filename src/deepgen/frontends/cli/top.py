"""`deepgen top`: the fastest right configs of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen.frontends.cli import options

Count = Annotated[int, typer.Option("--count", "-k", min=1, help="How many to show.")]
Save = Annotated[Path | None, typer.Option("--save", help="Write them to this JSON file too.", show_default=False)]


def top(study: options.StudyName, count: Count = 10, save: Save = None, as_json: options.AsJson = False) -> None:
    """Show the fastest configs of a study."""
    from deepgen import settings
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import config_text, print_json, table, write_text
    from deepgen.tuning.reuse import top_rows
    from deepgen.tuning.study.text import rate_text, seconds_text
    from deepgen.vocabulary.errors import DeepgenError

    found = studies.open_study(study, settings.load())
    rows: list[dict[str, Any]] = top_rows(found, count)
    about = {
        "study": str(found.folder),
        "operator": found.definition["operator"],
        "target": found.target.name,
        **found.target.proxy_row(),
        "top": rows,
    }
    if save is not None:
        write_text(save, json.dumps(about, indent=2) + "\n")
    if as_json:
        print_json(about)
        return
    if not rows:
        raise DeepgenError(f"{found.folder} has no correct kernel yet")
    table(
        f"{found.describe()} on {found.target.shown}",
        ("trial", "in search", "in finals", "rate", "config"),
        [
            (
                str(row["trial"]),
                seconds_text(row["seconds"]),
                seconds_text((row["finals"] or {}).get("seconds")),
                rate_text(row["finals"] or row),
                config_text(row["config"]),
            )
            for row in rows
        ],
        right=("trial", "in search", "in finals", "rate"),
    )
