"""`deepgen status`: which studies there are, which run, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepgen.cli import options

if TYPE_CHECKING:
    from pathlib import Path

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[STUDY]...", help="Studies to show besides none: all in the studies folder.", show_default=False
    ),
]


def status(names: Names = None, as_json: options.AsJson = False) -> None:
    """Show studies: running or not, trials, the best so far."""
    from deepgen import settings
    from deepgen.cli import studies
    from deepgen.cli.output import print_json, shown

    current = settings.load()
    folders = [studies.find(name, current) for name in names or []] or studies.studies_in(current.studies)
    rows = [_row(folder) for folder in folders]
    if as_json:
        print_json({"folder": str(current.studies), "studies": rows})
    elif rows:
        for row in rows:
            _print(row)
    else:
        print(f"no studies in {shown(current.studies)}")


def _row(folder: Path) -> dict[str, Any]:
    from deepgen.tuning import Study, journal
    from deepgen.vocabulary.errors import DeepgenError

    try:
        study = Study.open(folder)
        summary: dict[str, Any] = study.summary()
        pid, finished = study.running(), study.finals() is not None
    except DeepgenError as error:
        # One broken folder must not hide the others; one that is only being made is not broken.
        starting = journal.holder(folder) is not None
        return {"study": str(folder), "state": "starting" if starting else "unreadable", "why": str(error)}
    return {
        "study": str(folder),
        "state": "running" if pid is not None else "finished" if finished else "stopped",
        "pid": pid,
        "operator": study.describe(),
        "target": study.target.name,
        "trials": summary["trials"],
        "budget": study.budget().get("trials"),
        "best": summary["winner"],
    }


def _print(row: dict[str, Any]) -> None:
    from deepgen.cli.output import bound_text, labelled, rate_text, seconds_text, shown

    print(shown(row["study"]))
    if "why" in row:
        labelled("  state", f"{row['state']}: {row['why']}")
        return
    pid = f" as process {row['pid']}" if row["pid"] is not None else ""
    labelled("  what", f"{row['operator']} on {row['target']}")
    labelled("  state", row["state"] + pid)
    done = sum(row["trials"].values())
    counts = ", ".join(f"{n} {verdict}" for verdict, n in row["trials"].items())
    of = f" of {row['budget']}" if row["budget"] else ""
    labelled("  trials", f"{done}{of}{': ' if counts else ''}{counts}")
    if row["best"]:
        best = row["best"]
        labelled("  best", f"{rate_text(best)}, {seconds_text(best['seconds'])}{bound_text(best)}")
