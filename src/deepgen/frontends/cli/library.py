"""`deepgen library`: the winners of many studies in one folder, for programs in Python, C and C++."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deepgen import settings
from deepgen.frontends.cli import options
from deepgen.frontends.cli import words as operator_words
from deepgen.frontends.cli.completion import OperatorCommand
from deepgen.frontends.cli.output import labelled, paragraph, print_json, say, shown, table
from deepgen.frontends.cli.studies import find, open_study, studies_in
from deepgen.libraries import Choice, Library, library
from deepgen.libraries.c import export as write_c
from deepgen.libraries.c import write_wheel
from deepgen.libraries.racing import check as run_check
from deepgen.libraries.racing import time_across
from deepgen.report.view import note
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary.errors import BadInput, DeepgenError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Keep winners in a library, and ship them.")

DEFAULT = settings.LIBRARY
Folder = Annotated[
    Path, typer.Option("--library", metavar="DIR", help="The library's folder. [deepgen-library]", show_default=False)
]


@app.command("add")
def add(
    studies: Annotated[
        list[str], typer.Argument(metavar="STUDY...", help="Studies, or folders that contain some.", show_default=False)
    ],
    library: Folder = DEFAULT,
    only_winners: Annotated[
        bool,
        typer.Option(
            "--only-winners", help="Do not add a second kernel for other shapes when a winner supports only its own."
        ),
    ] = False,
    noisy: Annotated[bool, typer.Option("--noisy", help="Also add winners that were timed on a busy machine.")] = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Add the winners of studies. Creates the library if there is none."""
    current = settings.load()
    opened = _open(library, trust)
    folders = [inside for word in studies for inside in studies_in(Path(word)) or [find(word, current)]]
    became, refused = {}, {}
    for folder in folders:
        try:
            study = open_study(str(folder), current, trust=trust)
            became[folder.name] = opened.add(study, general=not only_winners, noisy=noisy)
        except DeepgenError as error:  # the other studies are still added
            refused[folder.name] = str(error)
    if as_json:
        print_json({"library": str(library), "studies": became, "refused": refused})
    else:
        for name, what in became.items():
            say(f"{what:<9} {name}")
        for name, why in refused.items():
            note(f"deepgen: {name} was not added: {why}")
    if refused:
        raise typer.Exit(1)


@app.command("merge")
def merge(
    others: Annotated[list[Path], typer.Argument(metavar="LIBRARY...", help="Other libraries.", show_default=False)],
    library: Folder = DEFAULT,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Add the entries of other libraries. Of two for the same work under similar conditions, the faster is kept."""
    opened = _open(library, trust)
    became = {str(other): opened.merge(_there(other, trust)) for other in others}
    if as_json:
        print_json({"library": str(library), "merged": became})
        return
    for other, rows in became.items():
        for name, what in rows.items():
            say(f"{what:<9} {name} of {other}")


@app.command("list")
def list_(library: Folder = DEFAULT, as_json: options.AsJson = False) -> None:
    """List the entries, with their times and baselines."""
    opened = _there(library)
    if as_json:
        entries = {entry.name: entry.to_json() for entry in opened.list()}
        print_json({"library": str(library), "entries": entries, "damaged": dict(opened.damaged())})
        return
    rows = []
    for entry in opened.list():
        for timed in entry.timed:
            rivals = ", ".join(f"{name} {seconds_text(r.seconds)}" for name, r in timed.baselines.items())
            conditions = f"{entry.target.name}, {'cold' if entry.cold else 'warm'}"
            rows.append([timed.operator.describe(), conditions, seconds_text(timed.seconds), rivals, entry.name])
    table(str(library), ("operator", "target", "time", "baselines", "entry"), rows, right=("time",))
    _tell_damaged(opened)


@app.command("prune")
def prune(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ENTRY...]", help="Entries to remove from the library.", show_default=False),
    ] = None,
    library: Folder = DEFAULT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Remove entries. Without names: those that are damaged, and those that another entry serves as fast."""
    pruned = _there(library).prune(tuple(names or ()), dry_run=dry_run)
    if as_json:
        print_json({"library": str(library), "removed": {one.name: one.why for one in pruned}, "dry_run": dry_run})
        return
    for one in pruned:
        say(f"{'would remove' if dry_run else 'removed'} {one.name}: {one.why}")
    if not pruned:
        print("nothing to remove")


@app.command("check")
def check(
    library: Folder = DEFAULT,
    across: Annotated[
        bool,
        typer.Option(
            "--across", help="Also time each kernel at the other entries' shapes, for better choices at untuned shapes."
        ),
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", min=0.0, help="How much slower an entry may have become, as a fraction of its time."
        ),
    ] = 0.1,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Verify and time all entries again. Use it after an upgrade. Exit code 1 if one is wrong, slower or damaged."""
    opened = _there(library, trust)
    rows = run_check(opened, tolerance=tolerance, say=note)
    shapes = time_across(opened, say=note) if across else 0
    failed = any(row.failed for row in rows)
    if as_json:
        entries = [{**vars(row), "failed": row.failed} for row in rows]
        print_json({"library": str(library), "ok": not failed, "entries": entries, "shapes_across": shapes})
    else:
        cells = [[r.name, r.verdict, seconds_text(r.before), seconds_text(r.now), r.detail] for r in rows]
        table(str(library), ("entry", "verdict", "before", "now", "detail"), cells, right=("before", "now"))
    if failed:
        raise typer.Exit(1)


@app.command("why", cls=OperatorCommand)
@options.taking(*options.OF_OPERATOR, "target", after="library")
def why(
    words: options.Words,
    library: Folder = DEFAULT,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="First time the most promising kernels at this shape, and store the times."),
    ] = False,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Say which kernel serves a shape, and why. A vendor's library may serve it, too."""
    operator, _ = operator_words.parse(words, **options.of_operator(values))
    opened = _there(library, trust)
    where = values["target"] or settings.load().target
    if measure:
        opened.measure(operator, where)
    choice = opened.choose(operator, where)
    if as_json:
        print_json({"library": str(library), **_choice_told(choice)})
        return
    paragraph(f"{operator.describe()} on {choice.target.name}")
    labelled("served", f"{_chosen(choice)} ({choice.how})")
    labelled("because", choice.reason)
    rows = [[seconds_text(one.seconds), one.name, one.why_not or ""] for one in choice.considered]
    if rows:
        table("considered", ("time", "name", "why not"), rows, right=("time",))


@app.command("export")
def export(
    c: Annotated[
        Path | None,
        typer.Option(
            "--c", metavar="DIR", help="Write a C library with CMake and pkg-config files.", show_default=False
        ),
    ] = None,
    wheel: Annotated[
        Path | None, typer.Option("--wheel", metavar="DIR", help="Write a Python wheel.", show_default=False)
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the library or package.")] = "deepgen_kernels",
    library: Folder = DEFAULT,
    trust: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Ship a library for C and C++ (--c), or as a wheel (--wheel)."""
    if (c is None) == (wheel is None):
        raise BadInput("export needs an output format", allowed="--c DIR or --wheel DIR")
    opened = _there(library, trust)
    if wheel is not None:
        path, exported = write_wheel(opened, wheel, name)
    else:
        assert c is not None
        path, exported = c, write_c(opened, c, name)
    for entry, reason in exported.skipped.items():
        note(f"note: {entry} is left out: {reason}")
    functions = [function.name for function in exported.functions]
    if as_json:
        print_json({"library": str(library), "written": str(path), "functions": functions, "skipped": exported.skipped})
        return
    say(f"{shown(path)}: {', '.join(functions)}")


def _choice_told(choice: Choice) -> dict[str, Any]:
    return {
        "operator": choice.operator.to_json(),
        "target": choice.target.name,
        "how": choice.how,
        "entry": None if choice.entry is None else choice.entry.name,
        "vendor": choice.vendor,
        "seconds": choice.seconds,
        "reason": choice.reason,
        "considered": [vars(one) for one in choice.considered],
    }


def _chosen(choice: Choice) -> str:
    return choice.entry.name if choice.entry is not None else choice.vendor or "nothing"


def _open(folder: Path, trust: bool = False) -> Library:
    return library(folder, create=True, trust=trust)


def _there(folder: Path, trust: bool = False) -> Library:
    """A library that must exist: a wrong name must not look like an empty library."""
    if not folder.is_dir():
        raise BadInput(
            f"there is no library {str(folder)!r}", allowed="--library DIR, or make one: deepgen library add"
        )
    return _open(folder, trust)


def _tell_damaged(library: Library) -> None:
    for name, why in library.damaged().items():
        note(f"deepgen: {name} is damaged: {why}")
    if library.damaged():
        raise typer.Exit(1)
