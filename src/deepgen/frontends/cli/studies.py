"""Finds the study that a word on the command line refers to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from deepgen.frontends.cli.output import shown
from deepgen.report.view import note
from deepgen.settings import Settings
from deepgen.tuning.study.journal import FILE as JOURNAL
from deepgen.vocabulary.errors import BadInput, DeepgenError

if TYPE_CHECKING:
    from deepgen.tuning import Study


LAST = "last"  # the most recently written study


def is_study(folder: Path) -> bool:
    return os.path.isfile(f"{folder}/{JOURNAL}")  # noqa: PTH113  a thousand studies are looked at


def studies_in(folder: Path) -> list[Path]:
    """The studies directly in a folder."""
    folders = (p for p in folder.iterdir() if is_study(p)) if folder.is_dir() else ()
    return sorted(folders, key=lambda p: p.name)


def find(word: str, settings: Settings) -> Path:
    """The folder of the named study; otherwise the error lists the existing ones."""
    for folder in (Path(word), settings.studies / word):
        if is_study(folder):
            return folder
    inside = studies_in(Path(word))
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise BadInput(f"{word} contains {len(inside)} studies", allowed="name one: " + _listed(inside))
    here = studies_in(settings.studies)
    if word == LAST and here:
        return max(here, key=lambda folder: (folder / JOURNAL).stat().st_mtime)
    begun = [folder for folder in here if word and folder.name.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        what = f"{len(begun)} studies in {shown(settings.studies)} begin with {word!r}"
        raise BadInput(what, allowed="name one: " + _listed(begun))
    where = (
        f"studies in {shown(settings.studies)}: {_listed(here)}" if here else f"no studies in {shown(settings.studies)}"
    )
    raise BadInput(f"no study {word!r}", allowed=where)


def open_study(word: str, settings: Settings, *, trust: bool = False) -> Study:
    """The named study; any damage in it is reported on stderr."""
    from deepgen.tuning import Study

    study = Study.open(find(word, settings), trust=trust)
    if damage := study.damage():
        note(f"deepgen: {damage}")
    return study


def check_machine(study: Study) -> None:
    """Refuse to mix measurements of two machines in one study."""
    from deepgen import targets

    if study.target.runner != "cpu":
        return
    here = targets.resolve(study.target.name)
    if here.fingerprint() != study.target.fingerprint():
        raise DeepgenError(
            f"{shown(study.folder)} was measured on {study.target.describe()}; this machine is {here.describe()}. "
            "Tune again here to create a new study"
        )


def _listed(folders: list[Path], most: int = 8) -> str:
    more = f" and {len(folders) - most} more" if len(folders) > most else ""
    return ", ".join(p.name for p in folders[:most]) + more
