"""`deepgen stop`: end a running study and everything that it started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepgen.frontends.cli import options

if TYPE_CHECKING:
    from deepgen.frontends.cli.processes import End

GRACE = 15.0  # seconds
Grace = Annotated[float, typer.Option("--grace", min=0.0, help="Seconds to wait for a clean stop before killing it.")]


def stop(study: options.StudyName, grace: Grace = GRACE, as_json: options.AsJson = False) -> None:
    """Stop a running study and every process it started."""
    from deepgen import settings
    from deepgen.frontends.cli import studies
    from deepgen.frontends.cli.output import print_json, shown

    folder = studies.find(study, settings.load())
    pid, ended = end_study(folder, grace)
    if as_json:
        print_json({"study": str(folder), "pid": pid, "clean": ended.by_itself, "killed": ended.killed})
        return
    how = "stopped" if ended.by_itself else f"did not end within {grace:g} s and was killed"
    print(f"{shown(folder)}: {how}")
    print(f"resume   deepgen resume {shown(folder)}")


def end_study(folder: Path, grace: float = GRACE) -> tuple[int, End]:
    """End the process that writes a study, and all that it started; gives its number, and how it ended."""
    from deepgen.frontends.cli import processes
    from deepgen.frontends.cli.output import shown
    from deepgen.tuning.study.journal import holder
    from deepgen.vocabulary.errors import DeepgenError

    pid = holder(folder)
    if pid is None:
        raise DeepgenError(f"{shown(folder)} is not running")
    try:
        ended = processes.end(pid, grace)
    except PermissionError as error:
        raise DeepgenError(f"process {pid} belongs to another user; only that user can stop it") from error
    if ended.left:
        raise DeepgenError(
            f"{ended.left} processes of {shown(folder)} could not be killed; they are blocked in the kernel"
        )
    return pid, ended
