"""Hosts and nodes of a cluster as tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.frontends.cli.output import bytes_text, labelled, table
from deepgen.report.view.live import clock
from deepgen.tuning.study.text import counted
from deepgen_cluster.check import Report
from deepgen_cluster.model import Host
from deepgen_cluster.nodes import Node


def print_reports(reports: Sequence[Report]) -> None:
    """One line per host, then what each has, then what is wrong."""
    rows = []
    for report in reports:
        facts = report.facts or {}
        packages = facts.get("packages", {})
        free = bytes_text(facts["free_bytes"]) if facts else "-"
        verdict = "ok" if report.ok else counted(len(report.problems), "problem")
        rows.append(
            [_name(report.host), facts.get("python", "-"), packages.get("ray") or "-", free, verdict, report.roles]
        )
    table(None, ["host", "python", "ray", "free", "state", "role"], rows)
    for report in reports:
        print(report.host)
        labelled("  folder", report.host.folder, indent=12)
        if report.facts and report.facts["doctor"]:
            _print_doctor(report.facts["doctor"])
        for problem in report.problems:
            labelled("  wrong", problem, indent=12)


def print_nodes(nodes: Sequence[Node]) -> None:
    rows = []
    for node in nodes:
        state = "up" if node.up else "unreachable" if node.problem and not node.since else "down"
        age = clock(time.time() - node.since) if node.up and node.since else "-"
        rows.append(
            [
                _name(node.host) if node.host else "head, here",
                state,
                age,
                str(node.processes),
                node.problem or node.roles,
            ]
        )
    table(None, ["host", "node", "for", "processes", "role"], rows, right=["for", "processes"])


def node_json(node: Node) -> dict[str, Any]:
    host = str(node.host) if node.host else None
    return {
        "host": host,
        "roles": node.roles,
        "up": node.up,
        "processes": node.processes,
        "since": node.since,
        "problem": node.problem,
    }


def _name(host: Host) -> str:
    return str(host) if len(str(host)) <= 24 else host.address[:24]


def _print_doctor(doctor: Mapping[str, Any]) -> None:
    tools = [f"{tool['name']} {tool['version']}" for tool in doctor["toolchains"] if tool["ok"]]
    devices = [_device(device) for device in doctor["devices"]]
    labelled("  deepgen", f"{doctor['deepgen']}, sent along: the same as here", indent=12)
    labelled("  tools", ", ".join(tools) or "none", indent=12)
    labelled("  devices", ", ".join(devices), indent=12)
    labelled("  clocks", ", ".join(f"{c['device']} {c['state']}" for c in doctor["clocks"]), indent=12)


def _device(device: Mapping[str, Any]) -> str:
    return f"{device['index']}: {device['name']}" if "index" in device else str(device["name"])
