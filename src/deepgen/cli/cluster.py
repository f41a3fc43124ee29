"""`deepgen cluster`: compile hosts and test hosts, from a task file to results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepgen.cli import options

if TYPE_CHECKING:
    from deepgen.cluster.model import Cluster
    from deepgen.cluster.ssh import Ask

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Tune on hosts that build and hosts that measure.")

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A cluster task file: our TOML, or the older tool's JSON.", show_default=False),
]
Head = Annotated[
    str | None,
    typer.Option("--head", help="This machine's address as the hosts see it. [found out]", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Also a node that someone else's task file started.")]


@app.command("check")
def check(file: File, as_json: options.AsJson = False) -> None:
    """Reach every host and show what it can do and what it lacks; changes nothing."""
    from deepgen.cli.cluster_output import print_reports
    from deepgen.cli.output import print_json
    from deepgen.cluster.check import check as ask_all

    cluster, password = _read(file)
    reports = ask_all(cluster, password)
    if as_json:
        print_json({"file": cluster.file, "notes": list(cluster.notes), "hosts": [r.to_json() for r in reports]})
    else:
        print_reports(reports)
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


@app.command("up")
def up(file: File, head: Head = None, force: Force = False, as_json: options.AsJson = False) -> None:
    """Start a Ray node on every host where none is up, and the head here."""
    from deepgen.cli.output import note, print_json, shown
    from deepgen.cluster import nodes

    cluster, password = _read(file)
    if not as_json:
        note(f"starting Ray on {len(cluster.hosts)} hosts")
    started = nodes.up(cluster, password, head=head, force=force)
    if as_json:
        print_json({"address": started.up.address, "started": [str(host) for host in started.fresh]})
        return
    count = len(started.fresh)
    print(f"up at {started.up.address}: {count} started, {len(cluster.hosts) - count} were up before")
    print(f"look     deepgen cluster status {shown(file)}")
    print(f"stop     deepgen cluster down {shown(file)}")


@app.command("status")
def status(file: File, as_json: options.AsJson = False) -> None:
    """Show the node of every host."""
    from deepgen.cli.cluster_output import node_json, print_nodes
    from deepgen.cli.output import print_json
    from deepgen.cluster import nodes

    cluster, password = _read(file)
    found = nodes.status(cluster, password)
    if as_json:
        print_json({"file": cluster.file, "nodes": [node_json(node) for node in found]})
    else:
        print_nodes(found)
    if not all(node.up for node in found):
        raise typer.Exit(1)


@app.command("down")
def down(file: File, force: Force = False, as_json: options.AsJson = False) -> None:
    """Stop everything that was started on the hosts and here, also after a crash."""
    from deepgen.cli.output import note, print_json
    from deepgen.cluster import nodes
    from deepgen.cluster.ssh import HostError

    cluster, password = _read(file)
    ended = nodes.down(cluster, password, force=force)
    failed = {host: outcome for host, outcome in ended.items() if isinstance(outcome, HostError)}
    if as_json:
        rows = [{"host": str(h or "head"), "ended": None if h in failed else n} for h, n in ended.items()]
        print_json({"hosts": rows, "problems": [str(error) for error in failed.values()]})
    else:
        for host, outcome in ended.items():
            if not isinstance(outcome, HostError):
                print(f"{host or 'head'}: {f'{outcome} processes ended' if outcome else 'nothing was up'}")
    for error in failed.values():
        note(f"deepgen: {error}")
    if failed:
        raise typer.Exit(1)


def _read(file: Path) -> tuple[Cluster, Ask]:
    from deepgen.cli.output import note
    from deepgen.cluster import files, ssh

    cluster = files.read(file)
    for sentence in cluster.notes:
        note(f"note: {sentence}")
    return cluster, ssh.passwords(cluster.passwords)
