"""What `deepgen.torch.record` wrote, as a file to tune from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deepgen.frontends.cli.library import DEFAULT
from deepgen.report.view.text import note
from deepgen.tuning import Request, Study
from deepgen.tuning.work import Work

_AGAIN = 0.02  # of what a first study gains: what another one may


def gain_of(recorded: Work, folder: Path | None) -> Callable[[Request], float]:
    """What a study may gain of the model's time: little where the library that is filled has a kernel already."""
    from deepgen.libraries import library

    folder = folder or DEFAULT
    known = [(entry.operator, entry.target) for entry in library(folder).list()] if folder.exists() else []

    def gain(request: Request) -> float:
        tuned = any(operator == request.operator and on.runs_on(request.target) for operator, on in known)
        return recorded.gain(request.operator, request.target) * (_AGAIN if tuned else 1.0)

    return gain


def filling(folder: Path | None, recorded: Work | None) -> list[Callable[[Study], None]]:
    """What puts winners into a library: the one that is named, or the usual one for a model's."""
    if folder is None and recorded is None:
        return []
    from deepgen.libraries import library

    filled = library(folder or DEFAULT)

    def add(study: Study) -> None:
        became = filled.add(study)
        note(f"{became} in {filled.folder}: {study.describe()}")

    return [add]
