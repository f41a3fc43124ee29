"""`deepgen allow`: let the programs run that a project's settings file names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepgen import settings
from deepgen.frontends.cli import options
from deepgen.frontends.cli.output import print_json, shown
from deepgen.report.view.text import printable
from deepgen.vocabulary.errors import BadInput

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The project. [the current folder]")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Take it back.")]


def allow(folder: Folder = Path(), revoke: Revoke = False, as_json: options.AsJson = False) -> None:
    """Let the programs run that a project's deepgen.toml names, until the file changes."""
    path = settings.project_file(folder)
    if path is None:
        raise BadInput(f"{shown(folder)} has no {settings.FILE_NAME}", allowed="the folder of a project that has one")
    keys = settings.allow(path, allowed=not revoke)
    values = {key: str(value) for key, value in settings.read(path).values().items() if key in keys}
    if as_json:
        print_json({"file": str(path), "allowed": not revoke, "values": values})
        return
    print(f"{shown(path)}: {'not allowed any more' if revoke else 'allowed until it changes'}")
    for key, value in values.items():
        print(printable(f"  {key} = {value}"))
