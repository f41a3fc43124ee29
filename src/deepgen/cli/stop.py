"""`deepgen stop`: end a running study and everything that it started."""

from __future__ import annotations

from typing import Annotated

import typer

from deepgen.cli import options

Grace = Annotated[float, typer.Option("--grace", min=0.0, help="Seconds to wait for a clean stop before killing it.")]


def stop(study: options.StudyName, grace: Grace = 15.0, as_json: options.AsJson = False) -> None:
    """Stop a running study and every process it started."""
    from deepgen import settings
    from deepgen.cli import processes, studies
    from deepgen.cli.output import print_json, shown
    from deepgen.tuning.journal import holder
    from deepgen.vocabulary.errors import DeepgenError

    folder = studies.find(study, settings.load())
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
    if as_json:
        print_json({"study": str(folder), "pid": pid, "clean": ended.by_itself, "killed": ended.killed})
        return
    how = "stopped" if ended.by_itself else f"did not end within {grace:g} s and was killed"
    print(f"{shown(folder)}: {how}")
    print(f"resume   deepgen resume {shown(folder)}")
