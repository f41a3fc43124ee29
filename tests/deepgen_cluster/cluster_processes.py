"""The processes that belong to a cluster's nodes, found by the mark that they inherit."""

from __future__ import annotations

import json
from pathlib import Path

from deepgen_cluster.agent import MARK
from deepgen_cluster.model import Host


def marked(mark: str = "") -> set[int]:
    """Every process with a node's mark, or with this mark if given."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def of_node(host: Host, group: str) -> set[int]:
    """The processes of a group's node on a host."""
    (record,) = Path(host.folder, ".deepgen/cluster").glob(f"*.{group}.json")
    return marked(json.loads(record.read_text())["mark"])
