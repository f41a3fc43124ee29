"""`deepgen serve`: studies in the browser while they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from deepgen.report.serve.places import Mark, Runs
    from deepgen.vocabulary import JsonObject

PORT = 8765
Studies = Annotated[
    Path | None,
    typer.Argument(
        metavar="[STUDIES]",
        help="A folder of studies, a study, or a cluster run. [deepgen-studies]",
        show_default=False,
    ),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 for any that is free.")]
Address = Annotated[str, typer.Option("--host", help="Address to listen on; any other than this can be reached.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show only: nobody can stop a study.")]


def serve(studies: Studies = None, port: Port = PORT, host: Address = "127.0.0.1", read_only: ReadOnly = False) -> None:
    """Show studies in the browser while they run."""
    import os

    from deepgen import settings
    from deepgen.frontends.cli.output import shown
    from deepgen.frontends.cli.space import import_numpy
    from deepgen.report.view.text import note
    from deepgen.vocabulary.errors import BadInput

    import_numpy()
    _check_libraries()
    root = settings.load().studies if studies is None else studies
    if not root.is_dir():
        hint = "a folder of studies, a study, or a cluster run"
        raise BadInput(f"{shown(root)} is not a folder", allowed=hint)
    root = root.resolve()

    from deepgen.report.serve import server
    from deepgen.report.serve.app import Means

    listening = server.listen(host, port)
    with listening:
        rules = server.rules_for(root, listening, host, read_only=read_only)
        if not rules.loopback:
            what = "see" if read_only else "see and stop"
            note(
                f"deepgen: {host} can be reached from other machines: whoever has this address can {what} these "
                "studies, and nothing is encrypted"
            )
        means = Means(cluster_runs(), None if read_only else stop)
        url = server.address(listening, host, rules)
        os.nice(5)  # what is measured goes first
        server.serve(root, means, rules, listening, lambda: print(f"{url}\nCtrl-C ends it", flush=True))


def _check_libraries() -> None:
    from importlib.util import find_spec

    from deepgen.report import charts
    from deepgen.vocabulary.errors import Missing, install_extra

    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise Missing(name, blocks="pages are served with it", remedy=install_extra("view"))
    charts.check_libraries()


def stop(folder: Path) -> str:
    """Stop a study or a cluster run, as `deepgen stop` and `deepgen cluster stop` do."""
    from deepgen.frontends.cli.output import shown
    from deepgen.frontends.cli.status import end_study
    from deepgen_cluster.folder import DEFINITION, RunFolder

    if (folder / DEFINITION).is_file():
        from deepgen_cluster.run import stop as stop_run

        stop_run(RunFolder(folder))
        return f"stopped. Resume it with: deepgen cluster attach {shown(folder)}"
    _, ended = end_study(folder)
    how = "stopped" if ended.by_itself else "it did not end in time and was killed"
    return f"{how}. Resume it with: deepgen resume {shown(folder)}"


def cluster_runs() -> Runs:
    """What a browser shows of cluster runs: what `deepgen cluster attach` shows."""
    from deepgen.report.serve.places import Runs, file_mark
    from deepgen_cluster.folder import DEFINITION, PROGRESS

    def mark(folder: Path) -> Mark:
        from deepgen_cluster.folder import RunFolder

        return RunFolder(folder).driver(), file_mark(folder / PROGRESS), file_mark(folder / DEFINITION)

    return Runs(DEFINITION, mark, _run_row)


def _run_row(folder: Path) -> JsonObject:
    from deepgen_cluster.folder import ENDED, GroupProgress, RunFolder

    run = RunFolder(folder)
    definition, progress, pid = run.definition(), run.progress(), run.driver()
    groups = definition.cluster.groups if definition is not None else ()
    reported = {group.name: progress.groups.get(group.name, GroupProgress()) for group in groups}
    # A driver that was killed could not say so.
    state = progress.state if pid is not None or progress.state in ENDED else "stopped"
    return {
        "state": state,
        "pid": pid,
        "note": progress.note,
        "groups": [
            {
                **vars(reported[group.name]),
                "name": group.name,
                "target": group.target,
                "builder": str(group.builder),
                "tester": str(group.tester),
                "devices": list(group.devices),
            }
            for group in groups
        ],
    }
