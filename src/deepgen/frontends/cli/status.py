"""`deepgen status`, `stop` and `clean`: list studies and their state, stop them, and free the disk space they take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import settings
from deepgen.frontends.cli import options, processes, studies
from deepgen.frontends.cli.output import labelled, print_json, shown
from deepgen.frontends.cli.processes import TreeEnd
from deepgen.report.view import text_width
from deepgen.settings import Settings
from deepgen.toolchains import Cache
from deepgen.tuning.study import lock
from deepgen.tuning.study.glance import glance
from deepgen.tuning.study.journal import LOCK, writer
from deepgen.tuning.study.text import bound_text, bytes_text, rate_text, seconds_text
from deepgen.vocabulary import bytecode
from deepgen.vocabulary.errors import DeepgenError
from deepgen.vocabulary.folders import left_behind, remove, remove_tree

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[STUDY]...", help="Studies to show. [all in the studies folder]", show_default=False),
]


def status(names: Names = None, as_json: options.AsJson = False) -> None:
    """Show the state of studies: running or not, trials, best so far."""
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
    print(shown(row["study"]))
    if "why" in row:
        labelled("  state", f"{row['state']}: {row['why']}", width=width)
        return
    pid = f" as process {row['pid']} {row.get('elsewhere', '')}".rstrip() if row["pid"] is not None else ""
    proxy = f" ({row['proxy']})" if "proxy" in row else ""
    labelled("  what", f"{row['operator']} on {row['target']}{proxy}", width=width)
    labelled("  state", row["state"] + pid, width=width)
    done = sum(row["trials"].values())
    counts = ", ".join(f"{n} {verdict}" for verdict, n in row["trials"].items())
    # A finished study used as many as its space and its time allowed.
    of = f" of {row['budget']}" if row["budget"] and row["state"] != "finished" else ""
    labelled("  trials", f"{done}{of}{': ' if counts else ''}{counts}", width=width)
    if "damage" in row:
        labelled("  damage", row["damage"], width=width)
    if row["best"]:
        best = row["best"]
        labelled("  best", f"{rate_text(best)}, {seconds_text(best['seconds'])}{bound_text(best)}", width=width)


GRACE = 15.0  # seconds
Grace = Annotated[
    float, typer.Option("--grace", min=0.0, help="Seconds to wait for a clean stop before killing the study.")
]


def stop(study: options.StudyName, grace: Grace = GRACE, as_json: options.AsJson = False) -> None:
    """Stop a running study and every process it started."""
    folder = studies.find(study, settings.load())
    pid, ended = end_study(folder, grace)
    if as_json:
        print_json({"study": str(folder), "pid": pid, "clean": ended.by_itself, "killed": ended.killed})
        return
    how = "stopped" if ended.by_itself else f"did not stop within {grace:g} s and was killed"
    print(f"{shown(folder)}: {how}")
    print(f"resume   deepgen resume {shown(folder)}")


def end_study(folder: Path, grace: float = GRACE) -> tuple[int, TreeEnd]:
    """End the process that writes a study, and everything it started; returns its pid, and how it ended."""
    held = lock.proven(folder / LOCK)
    if held is None:
        raise DeepgenError(f"{shown(folder)} is not running")
    try:
        ended = processes.end(held.pid, grace, held.started)
    except PermissionError as error:
        raise DeepgenError(f"{held} belongs to another user; only that user can stop it") from error
    if ended.left:
        raise DeepgenError(
            f"{ended.left} processes of {shown(folder)} could not be killed; they are blocked in the kernel"
        )
    return held.pid, ended


Doomed = Annotated[
    list[str] | None, typer.Argument(metavar="[STUDY]...", help="Studies to delete.", show_default=False)
]
OfCache = Annotated[bool, typer.Option("--cache", help="Delete the build cache.")]
OfStudies = Annotated[bool, typer.Option("--studies", help="Delete all studies in the studies folder.")]
Yes = Annotated[bool, typer.Option("--yes", help="Delete. Without this option, only show what would be freed.")]


def clean(
    names: Doomed = None,
    cache: OfCache = False,
    studies: OfStudies = False,
    yes: Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Free disk space: build cache, leftovers of killed runs, studies."""
    current = settings.load()
    items = _items(names or [], cache, studies, current)
    if yes:
        for item in items:
            _delete(item)
    total = sum(item["bytes"] for item in items)
    if as_json:
        print_json({"items": items, "bytes": total, "deleted": yes})
        return
    for item in items:
        print(f"{bytes_text(item['bytes']):>10}  {item['kind']}  {shown(item['path'])}")
    if not items:
        print("there is nothing to delete")
    elif yes:
        print(f"{bytes_text(total)} freed")
    else:
        print(f"{bytes_text(total)} would be freed; nothing was deleted (--yes deletes)")


def _items(names: list[str], cache: bool, all_studies: bool, current: Settings) -> list[dict[str, Any]]:
    folders = [studies.find(name, current) for name in names]
    if all_studies:
        folders += [folder for folder in studies.studies_in(current.studies) if folder not in folders]
    for folder in folders:
        if (held := writer(folder)) is not None:
            hint = f"stop it first with: deepgen stop {shown(folder)}"
            raise DeepgenError(f"{shown(folder)} is being tuned by {held}; {hint}")
    items = [{"kind": "study", "path": str(folder), "bytes": _size(folder)} for folder in folders]
    anything = not (names or cache or all_studies)
    if (cache or anything) and (size := Cache(current.cache).size()):
        items.append({"kind": "cache", "path": str(current.cache), "bytes": size})
    if (cache or anything) and (kept := bytecode.place()) and (size := _size(kept)):
        items.append({"kind": "bytecode", "path": str(kept), "bytes": size})
    if anything:
        items += [{"kind": "leftover", "path": str(f), "bytes": _size(f)} for f in left_behind()]
    return items


def _delete(item: dict[str, Any]) -> None:
    if item["kind"] == "leftover":
        remove(Path(item["path"]))
    elif item["kind"] == "cache":
        # One entry at a time: other files in the folder that the user named are kept.
        Cache(item["path"]).clear()
    else:
        remove_tree(Path(item["path"]))


def _size(folder: Path) -> int:
    if folder.is_symlink():
        return folder.lstat().st_size  # only the link is deleted
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
