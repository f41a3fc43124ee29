"""docs/clusters.md from start to end, on two hosts that are real SSH servers at loopback addresses.

A block `sh hosts` is run, one marked `hosts=NAME` is written as that file. The page's example hosts are replaced by
this machine: its addresses and folders, and the simulated device for the card.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_processes import marked, of_node

from deepgen_cluster import nodes, ssh, task_file
from deepgen_cluster.folder import State
from deepgen_cluster.model import Host
from deepgen_cluster.ssh import HostError

PAGE = Path(__file__).parents[2] / "docs/clusters.md"
FENCE = re.compile(r"^```\w+ +hosts(?:=(?P<file>\S+))? *\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def hosts(servers) -> Iterator[list[Host]]:
    yield [servers.host(f"127.0.0.{n}", name) for n, name in ((2, "deepgen"), (3, "deepgen-test"))]


def translated(text: str, hosts: list[Host]) -> str:
    for number, host in enumerate(hosts):
        written = f'address = "192.0.2.1{number}"\nuser = "me"\nfolder = "/home/me/{Path(host.folder).name}"\n'
        assert written in text, "the page and this test tell of other hosts"
        text = text.replace(written, f'address = "{host.address}"\nport = {host.port}\nfolder = "{host.folder}"\n')
    return text.replace("cuda:sm_80", "sim").replace("jobs = 16", "jobs = 2")


@pytest.mark.slow
def test_the_page_from_two_hosts_to_results(hosts: list[Host], tmp_path: Path) -> None:
    before = marked()
    try:
        walk(hosts, tmp_path, before)
    finally:
        if (tmp_path / "cluster.toml").exists():
            run("deepgen cluster down cluster.toml", tmp_path)
    assert marked() <= before
    for place in (Path(host.folder) for host in hosts):
        assert list(place.glob(".deepgen/cluster/*.json")) == []


def walk(hosts: list[Host], tmp_path: Path, before: set[int]) -> None:
    ran = []
    for block in FENCE.finditer(PAGE.read_text()):
        text = block["text"]
        if block["file"]:
            (tmp_path / block["file"]).write_text(translated(text, hosts) if "[hosts." in text else text)
            continue
        for line in text.splitlines():
            first_run = line.startswith("deepgen cluster run") and "--trials" not in line
            if first_run:
                run("deepgen cluster up cluster.toml", tmp_path)  # once for all: the page would start Ray twice
            ran.append(run(line, tmp_path))
            if line.startswith("deepgen cluster up"):
                look_at_nodes(tmp_path / "cluster.toml", hosts, before)
            if first_run:
                look_at_results(tmp_path / "deepgen-studies/cluster/a100", hosts[0])
    assert [words.split()[0] for words in ran] == ["check", "run", "attach", "up", "status", "run", "down"]


def run(line: str, folder: Path) -> str:
    program, *words = line.split()
    assert program == "deepgen" and words.pop(0) == "cluster"
    command = [sys.executable, "-m", "deepgen", "cluster", *words]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert all(len(shown) <= 80 for shown in done.stdout.splitlines() if "/" not in shown), done.stdout
    return f"{words[0]} {done.stdout}"


def look_at_nodes(file: Path, hosts: list[Host], before: set[int]) -> None:
    """Idempotent: a second time starts nothing. The token is in no command line, and the code is the driver's."""
    cluster, ask = task_file.read(file), ssh.passwords({}, prompt=False)
    assert nodes.up(cluster, ask).fresh == ()
    assert all(node.up for node in nodes.status(cluster, ask))
    token = State(cluster).token().encode()
    for pid in marked() - before:
        assert token not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for host in hosts:
        assert of_node(host, "a100")
        assert [path.name for path in Path(host.folder, ".deepgen/code").iterdir()]
        for path in Path(host.folder).rglob("*"):
            assert path.is_symlink() or ".venv" in path.parts or not path.is_file() or token not in path.read_bytes()
    (copy := file.with_name("copy.toml")).write_text(file.read_text())
    with pytest.raises(HostError, match="use another folder, or --force"):
        nodes.up(task_file.read(copy), ask)
    refused = nodes.down(task_file.read(copy), ask)
    assert all("--force stops it too" in str(refused[host]) for host in hosts)
    assert State(cluster).token_file.stat().st_mode & 0o077 == 0


def look_at_results(group: Path, builder: Host) -> None:
    for card in (0, 1):
        text = (group / f"square_card{card}.json").read_text()
        assert json.loads(text)["results"]
        assert (Path(builder.folder) / f"_cluster_run/square_card{card}.json").read_text() == text
