"""Managing a cluster run: started in the background, followed, found again, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import typer

from deepgen.extend import (
    PROGRAM,
    BadInput,
    DeepgenError,
    Settings,
    Stopped,
    appending,
    live,
    note,
    shown,
    stop_on_signals,
)
from deepgen_cluster import ssh, task_file
from deepgen_cluster.drive import Means, drive
from deepgen_cluster.folder import ENDED, RunFolder, RunProgress
from deepgen_cluster.model import Cluster, Host, Secret, password_variable
from deepgen_cluster.output import print_results, print_results_json, watching
from deepgen_cluster.tasks import requests_of

_GLANCE = 0.2
_PATIENCE = 60.0  # seconds that a stop may take before the user is told how to force it


def find(word: str, settings: Settings) -> RunFolder:
    """The folder of the named run."""
    for path in (Path(word), settings.studies / word):
        folder = RunFolder(path)
        if folder.definition() is not None:
            return folder
    runs = [p.name for p in settings.studies.glob("*") if RunFolder(p).definition() is not None]
    names = ", ".join(sorted(runs)) or f"none in {shown(settings.studies)}"
    raise BadInput(f"no cluster run {word!r}", allowed=f"runs: {names}")


def start(folder: RunFolder, passwords: Mapping[Host, Secret]) -> None:
    """Start a driver in a new session. Passwords are passed only through a pipe."""
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.tell(RunProgress())
    with appending(folder.log) as sink:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "cluster", "drive", str(folder.path.absolute())],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    assert child.stdin is not None
    secrets = [[vars(host), secret.reveal()] for host, secret in passwords.items()]
    with child.stdin:
        child.stdin.write(json.dumps(secrets).encode())
    while folder.driver() is None:
        if child.poll() is not None and folder.progress().state not in ENDED:
            last = folder.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise DeepgenError(f"the driver exited immediately: {' '.join(last)} (log: {shown(folder.log)})")
        if child.poll() is not None:
            return
        time.sleep(0.05)


def driver_main(path: Path, settings: Settings) -> None:
    """The main function of the background process."""
    secrets = json.loads(sys.stdin.read() or "[]")
    passwords = {Host(**host): Secret(word) for host, word in secrets}
    folder = RunFolder(path)
    definition = folder.definition()
    options = definition.options if definition else {}
    means = Means(
        password=ssh.passwords(passwords, prompt=False),
        requests=lambda group, fetched, out: requests_of(group, fetched, out, options, settings),
        line=live.line,
        say=lambda text: print(time.strftime("%H:%M:%S"), text, flush=True),
        limits=settings.build_limits(),
    )
    with stop_on_signals() as stop:
        ended = drive(folder, means, stop.event)
    if ended.state != "done":
        raise typer.Exit(1)


def follow(folder: RunFolder, *, as_json: bool, stops: bool) -> None:
    """Show a run until it ends. Ctrl-C stops the run or, without `stops`, only the display."""
    with stop_on_signals() as asked, watching(quiet=as_json) as show:
        announced = False
        while (pid := folder.driver()) is not None:
            show(folder.progress())
            time.sleep(_GLANCE)
            if asked.event.is_set() and not stops:
                raise Stopped(
                    f"the run continues in the background. Watch it with: deepgen cluster attach {shown(folder.path)}",
                    2,
                )
            if asked.event.is_set() and not announced and pid:
                folder.end_driver()
                announced = True
        progress = folder.progress()
        show(progress)
    if progress.state not in ENDED:
        raise DeepgenError(
            f"the driver died; no recorded result is lost. Resume with: deepgen cluster attach {shown(folder.path)}"
        )
    if progress.state == "stopped":
        raise Stopped(
            f"stopped; all results are kept. Resume with: deepgen cluster attach {shown(folder.path)}",
            asked.signum or 15,
        )
    finish(progress, as_json=as_json)


def finish(progress: RunProgress, *, as_json: bool) -> None:
    """Print the results, and what went wrong."""
    (print_results_json if as_json else print_results)(progress)
    problems = [f"group {name}: {group.problem}" for name, group in progress.groups.items() if group.problem]
    if progress.state == "failed" and not problems:
        problems = [progress.note]
    if problems:
        raise DeepgenError("; ".join(problems))


def attach(folder: RunFolder, *, trust: bool, as_json: bool) -> None:
    """Watch a run, and resume it if its driver is gone."""
    progress = folder.progress()
    if folder.driver() is not None:
        follow(folder, as_json=as_json, stops=False)
        return
    if progress.state == "done":
        finish(progress, as_json=as_json)
        return
    definition = folder.definition()
    assert definition is not None
    folder.require_own(trusted=trust)
    note("no driver is running; starting one to resume")
    start(folder, ask_passwords(definition.cluster))
    follow(folder, as_json=as_json, stops=False)


def ask_passwords(cluster: Cluster) -> dict[Host, Secret]:
    """Passwords of the hosts that need one: those of the current task file, then those a user can type.

    The background process has no terminal, so the user is asked here.
    """
    secrets = dict(cluster.passwords)
    if not secrets and Path(cluster.file).is_file():
        secrets = dict(task_file.read(Path(cluster.file)).passwords)
    missing = [host for host in cluster.hosts if host not in secrets and password_variable(host) not in os.environ]
    if sys.stdin is not None and sys.stdin.isatty():
        ask = ssh.passwords(secrets)
        for host in ssh.wanting_passwords(missing):
            if (secret := ask(host)) is not None:
                secrets[host] = secret
    return secrets


def stop(folder: RunFolder) -> None:
    """Ask the driver to stop; it stops the nodes that it started."""
    pid = folder.end_driver()
    if pid is None:
        raise DeepgenError(f"{shown(folder.path)} is not running")
    deadline = time.monotonic() + _PATIENCE
    while folder.driver() == pid:
        if time.monotonic() > deadline:
            raise DeepgenError(f"process {pid} is still running; kill -9 {pid} would lose no recorded result")
        time.sleep(_GLANCE)
