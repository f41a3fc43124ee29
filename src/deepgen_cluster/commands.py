"""`deepgen cluster`: compile hosts and test hosts, from a task file to results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepgen.extend import options

if TYPE_CHECKING:
    from deepgen_cluster.model import Cluster
    from deepgen_cluster.ssh import Ask


app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Tune on several machines: some build, others measure."
)
File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A cluster task file, in TOML or legacy JSON.", show_default=False),
]
Head = Annotated[
    str | None,
    typer.Option("--head", help="This machine's address as the hosts see it. [detected]", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Also stop nodes that another task file started.")]


@app.command("check")
def check(file: File, as_json: options.AsJson = False) -> None:
    """Check every host: what it has and what is missing. Changes nothing."""
    from deepgen.extend import print_json
    from deepgen_cluster.check import check as ask_all
    from deepgen_cluster.output import print_reports

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
    """Start the Ray head here and a node on every host that has none."""
    from deepgen.extend import note, print_json, shown
    from deepgen_cluster import nodes

    cluster, password = _read(file)
    if not as_json:
        note(f"starting Ray on {len(cluster.hosts)} hosts")
    started = nodes.up(cluster, password, head=head, force=force)
    if as_json:
        print_json({"address": started.up.address, "started": [str(host) for host in started.fresh]})
        return
    count = len(started.fresh)
    print(f"up at {started.up.address}: {count} started, {len(cluster.hosts) - count} already running")
    print(f"look     deepgen cluster status {shown(file)}")
    print(f"stop     deepgen cluster down {shown(file)}")


@app.command("status")
def status(file: File, as_json: options.AsJson = False) -> None:
    """Show the state of every host's node."""
    from deepgen.extend import print_json
    from deepgen_cluster import nodes
    from deepgen_cluster.output import node_json, print_nodes

    cluster, password = _read(file)
    states = nodes.status(cluster, password)
    if as_json:
        print_json({"file": cluster.file, "nodes": [node_json(node) for node in states]})
    else:
        print_nodes(states)
    if not all(node.up for node in states):
        raise typer.Exit(1)


@app.command("down")
def down(file: File, force: Force = False, as_json: options.AsJson = False) -> None:
    """Stop everything started here and on the hosts, even after a crash."""
    from deepgen.extend import note, print_json
    from deepgen_cluster import nodes
    from deepgen_cluster.ssh import HostError

    cluster, password = _read(file)
    _no_driver(cluster)
    ended = nodes.down(cluster, password, force=force)
    failed = {host: outcome for host, outcome in ended.items() if isinstance(outcome, HostError)}
    if as_json:
        rows = [{"host": str(h or "head"), "ended": None if h in failed else n} for h, n in ended.items()]
        print_json({"hosts": rows, "problems": [str(error) for error in failed.values()]})
    else:
        for host, outcome in ended.items():
            if not isinstance(outcome, HostError):
                print(f"{host or 'head'}: {f'{outcome} processes stopped' if outcome else 'nothing was running'}")
    for error in failed.values():
        note(f"deepgen: {error}")
    if failed:
        raise typer.Exit(1)


@app.command("run")
def run(
    file: File,
    study_folder: Annotated[
        Path | None,
        typer.Option("--study-folder", help="Folder for the run. [deepgen-studies/FILE]", show_default=False),
    ] = None,
    trials: options.Trials = None,
    time_budget: options.TimeBudget = None,
    strategy: options.Strategy = None,
    seed: options.Seed = None,
    keep_up: Annotated[bool, typer.Option("--keep-up", help="Leave the nodes running at the end.")] = False,
    head: Head = None,
    detach: options.Detach = False,
    as_json: options.AsJson = False,
) -> None:
    """Tune every group's tasks. Run the same command again to resume.

    The driver works in the background: a lost connection does not end it, and `attach` finds it again.
    """
    from deepgen.extend import note, print_json, settings, shown
    from deepgen_cluster import run as cluster_run
    from deepgen_cluster.folder import Definition, RunFolder

    cluster, _ = _read(file)
    current = settings.load()
    folder = RunFolder(study_folder or current.studies / file.stem)
    options_set = {"trials": trials, "time_budget": time_budget, "strategy": strategy, "seed": seed}
    definition = Definition(cluster, {k: v for k, v in options_set.items() if v is not None}, head, keep_up)
    before = folder.definition()
    if folder.driver() is not None:
        note(f"{shown(folder.path)} is already running; its progress so far")
    elif before is not None and before == definition and folder.progress().state == "done":
        cluster_run.finish(folder.progress(), as_json=as_json)
        return
    else:
        folder.define(definition)
        cluster_run.start(folder, cluster_run.ask_passwords(cluster))
    if not detach:
        cluster_run.follow(folder, as_json=as_json, stops=True)
    elif as_json:
        print_json({"study": str(folder.path), "pid": folder.driver(), "log": str(folder.log)})
    else:
        print(f"running in the background as process {folder.driver()}")
        print(f"follow   deepgen cluster attach {shown(folder.path)}")
        print(f"stop     deepgen cluster stop {shown(folder.path)}")


RunName = Annotated[
    str, typer.Argument(metavar="STUDY", help="A cluster run's folder, or its name.", show_default=False)
]


@app.command("attach")
def attach(study: RunName, trust: options.Trust = False, as_json: options.AsJson = False) -> None:
    """Watch a run again; resume it if its driver died."""
    from deepgen.extend import settings
    from deepgen_cluster import run as cluster_run

    cluster_run.attach(cluster_run.find(study, settings.load()), trust=trust, as_json=as_json)


@app.command("stop")
def stop(study: RunName) -> None:
    """Stop a run and the nodes it started. Results are kept."""
    from deepgen.extend import settings, shown
    from deepgen_cluster import run as cluster_run

    folder = cluster_run.find(study, settings.load())
    cluster_run.stop(folder)
    print(f"{shown(folder.path)}: stopped")
    print(f"resume   deepgen cluster attach {shown(folder.path)}")


@app.command("drive", hidden=True)
def drive(folder: Path) -> None:
    """The background process of `run`; passwords come on stdin."""
    from deepgen.extend import settings
    from deepgen_cluster import run as cluster_run

    cluster_run.driver_main(folder, settings.load())


def _no_driver(cluster: Cluster) -> None:
    """Raise if a driver is running: it would only restart the nodes."""
    from deepgen.extend import DeepgenError, shown
    from deepgen_cluster.folder import RunFolder, State

    path = State(cluster).run_folder()
    if path is not None and (pid := RunFolder(path).driver()) is not None:
        raise DeepgenError(f"process {pid} is using this cluster; stop it first: deepgen cluster stop {shown(path)}")


def _read(file: Path) -> tuple[Cluster, Ask]:
    from deepgen.extend import note
    from deepgen_cluster import ssh, task_file

    cluster = task_file.read(file)
    for sentence in cluster.notes:
        note(f"note: {sentence}")
    return cluster, ssh.passwords(cluster.passwords)
