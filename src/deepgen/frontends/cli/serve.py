"""`deepgen serve`: studies in the browser while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PORT = 8765
Studies = Annotated[
    Path | None,
    typer.Argument(
        metavar="[STUDIES]",
        help="A folder of studies, a study, or a cluster run. [deepgen-studies]",
        show_default=False,
    ),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
Address = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on; others than the default may be reachable from other machines.",
    ),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Read-only: studies cannot be stopped from the page.")]


def serve(studies: Studies = None, port: Port = PORT, host: Address = "127.0.0.1", read_only: ReadOnly = False) -> None:
    """Watch studies in the browser while they run."""
    import os

    from deepgen import settings
    from deepgen.frontends.cli.output import shown
    from deepgen.frontends.cli.space import import_numpy
    from deepgen.report.view import note
    from deepgen.vocabulary.errors import BadInput

    import_numpy()
    _check_libraries()
    root = settings.load().studies if studies is None else studies
    if not root.is_dir():
        hint = "a folder of studies, a study, or a cluster run"
        raise BadInput(f"{shown(root)} is not a folder", allowed=hint)
    root = root.resolve()

    from deepgen.report.serve import server

    listening = server.listen(host, port)
    with listening:
        rules = server.rules_for(root, listening, host, read_only=read_only)
        if not rules.loopback:
            what = "see" if read_only else "see and stop"
            note(
                f"deepgen: {host} is reachable from other machines: anyone with this URL can {what} these studies, "
                "and traffic is not encrypted"
            )
        stops = None if read_only else stop
        url = server.address(listening, host, rules)
        os.nice(5)  # measurements have priority
        server.serve(root, stops, rules, listening, lambda: print(f"{url}\nPress Ctrl-C to stop", flush=True))


def _check_libraries() -> None:
    from importlib.util import find_spec

    from deepgen.report import charts
    from deepgen.vocabulary.errors import Missing, install_extra

    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise Missing(name, blocks="the live view", remedy=install_extra("view"))
    charts.check_libraries()


def stop(folder: Path) -> str:
    """Stop a study or a cluster run, as `deepgen stop` and `deepgen cluster stop` do."""
    from deepgen.frontends.cli.output import shown
    from deepgen.frontends.cli.status import end_study
    from deepgen.report.serve.places import runs_at

    runs = runs_at(folder)
    if runs is not None:
        return runs.stop(folder)
    _, ended = end_study(folder)
    how = "stopped" if ended.by_itself else "it did not stop in time and was killed"
    return f"{how}. Resume it with: deepgen resume {shown(folder)}"
