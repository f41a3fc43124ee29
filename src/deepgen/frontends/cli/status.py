"""`deepgen status`: which studies there are, which run, and how far they are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from deepgen.frontends.cli import options

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[STUDY]...", help="Studies to show. [all in the studies folder]", show_default=False),
]


def status(names: Names = None, as_json: options.AsJson = False) -> None:
    """Show the state of studies: running or not, trials, best so far."""
    from deepgen import settings
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import print_json, shown
    from deepgen.report.view.text import text_width
    from deepgen.tuning.study.glance import glance

    current = settings.load()
    folders = [studies.find(name, current) for name in names or []] or studies.studies_in(current.studies)
    rows: list[dict[str, Any]] = [glance(folder, whole=bool(names)) for folder in folders]
    if as_json:
        print_json({"folder": str(current.studies), "studies": rows})
    elif rows:
        width = text_width()
        for row in rows:
            _print_status(row, width)
    else:
        print(f"no studies in {shown(current.studies)}")


def _print_status(row: dict[str, Any], width: int) -> None:
    from deepgen.frontends.cli.output import labelled, shown
    from deepgen.tuning.study.text import bound_text, rate_text, seconds_text

    print(shown(row["study"]))
    if "why" in row:
        labelled("  state", f"{row['state']}: {row['why']}", width=width)
        return
    pid = f" as process {row['pid']}" if row["pid"] is not None else ""
    proxy = f" ({row['proxy']})" if "proxy" in row else ""
    labelled("  what", f"{row['operator']} on {row['target']}{proxy}", width=width)
    labelled("  state", row["state"] + pid, width=width)
    done = sum(row["trials"].values())
    counts = ", ".join(f"{n} {verdict}" for verdict, n in row["trials"].items())
    of = f" of {row['budget']}" if row["budget"] else ""
    labelled("  trials", f"{done}{of}{': ' if counts else ''}{counts}", width=width)
    if "damage" in row:
        labelled("  damage", row["damage"], width=width)
    if row["best"]:
        best = row["best"]
        labelled("  best", f"{rate_text(best)}, {seconds_text(best['seconds'])}{bound_text(best)}", width=width)
