"""Nodes are started and stopped over real SSH, and nothing of them is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cluster_processes import marked

from deepgen.cluster import files, nodes, ssh
from deepgen.cluster.state import State

GROUP = """
[[groups]]
name = "one"
target = "sim"
build_host = "both"
measure_host = "both"
jobs = 2
tasks = [{ config = "a.toml", results = "log" }]
"""


def test_up_status_down(servers, own_file: Callable[..., Path]) -> None:
    both = servers.host("127.0.0.3", "both")
    cluster = files.read(own_file({"both": both}, GROUP))
    ask = ssh.passwords({}, prompt=False)
    before = marked()
    try:
        first = nodes.up(cluster, ask)
        assert first.fresh == (both,)
        assert nodes.up(cluster, ask).fresh == ()
        assert [node.up for node in nodes.status(cluster, ask)] == [True, True]
        token = State(cluster).token()
        assert all(token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked() - before)
    finally:
        ended = nodes.down(cluster, ask)
    assert all(isinstance(n, int) and n > 0 for n in ended.values())
    assert marked() == before
    assert nodes.down(cluster, ask) == {both: 0, None: 0}
