"""`deepgen cluster` without any host: help, invalid files, runs that do not exist."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepgen_cluster.check import Report
from deepgen_cluster.folder import Definition, GroupProgress, Row, RunFolder, RunProgress
from deepgen_cluster.model import Cluster, Host
from deepgen_cluster.nodes import Node
from deepgen_cluster.output import line, print_nodes, print_reports, print_results

HOST = Host("a-host-with-a-long-name.example.org", "/home/someone/with/a/long/path/deepgen", "someone", 2222)


def test_it_says_what_is_wrong_with_a_file(deepgen: Callable, project: Path) -> None:
    (project / "c.toml").write_text("[hosts]\n")
    for command in ("check", "up", "status", "down", "run"):
        said = deepgen("cluster", command, "c.toml")
        assert said.code == 2 and "c.toml: key 'groups' is missing" in said.err, said.err
        assert deepgen("cluster", command, "none.json").code == 2


def test_runs_are_found_by_name_and_the_rest_is_told(deepgen: Callable, project: Path) -> None:
    for command in ("attach", "stop"):
        said = deepgen("cluster", command, "nothing")
        assert said.code == 2 and "no cluster run 'nothing'" in said.err


@pytest.mark.parametrize("width", [40, 80, 200])
def test_everything_fits_the_terminal(width: int, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    doctor = {
        "deepgen": "0.1.0",
        "toolchains": [{"name": f"tool{i}", "version": "1.2.3", "ok": True} for i in range(9)],
        "devices": [{"name": "NVIDIA A100-SXM4-80GB", "index": i} for i in range(8)],
        "clocks": [{"device": f"nvidia:{i}", "state": "free-running"} for i in range(8)],
    }
    facts = {"python": "3.11.7", "packages": {"ray": "2.55.1"}, "free_bytes": 1 << 39, "doctor": doctor}
    good = Report(HOST, "build wg0, measure wg0 [0 1 2 3 4 5 6 7], measure wg1 [0 1]", facts, ())
    bad = Report(HOST, "build wg1", None, ("cannot be reached on port 2222: no route to host " * 4,))
    print_reports([good, bad])
    print_nodes([Node(None, "head", True, 5, 0.0), Node(HOST, "build wg0", False, problem="x " * 90)])
    row = Row("wg0", "gemm " * 20, "/studies/x", 200, {"gflops": 12345.6, "seconds": 1e-4}, ("/studies/x_card0.json",))
    print_results(RunProgress("done", results=(row,)))
    out = capsys.readouterr().out
    wide = [row for row in out.splitlines() if len(row) > width]
    assert all(max(map(len, row.split())) > width // 2 for row in wide), "only words that are long themselves"
    for word in ("1 problem", "NVIDIA A100", "free-running", "12345.6", "x_card0.json", "head"):
        assert word in out
    assert len(line("wg0", GroupProgress(2, 3, line="searching " * 20))) <= 80


def test_a_run_that_was_killed_is_not_taken_for_one_that_runs(project: Path) -> None:
    folder = RunFolder(project / "run")
    folder.path.mkdir()
    assert folder.driver() is None
    with folder.take():
        assert folder.driver() is not None
        folder.tell(RunProgress("running", groups={"a": GroupProgress(1, 2, "gemm")}))
    assert folder.driver() is None
    assert folder.progress().groups["a"].tasks == 2


DRIVER = """
import sys, time
from pathlib import Path
from deepgen_cluster.folder import RunFolder
with RunFolder(Path(sys.argv[1])).take():
    print("at work", flush=True)
    time.sleep(60)
"""


def test_stop_ends_the_driver_and_says_how_to_go_on(deepgen: Callable, project: Path) -> None:
    folder = RunFolder(project / "deepgen-studies/night")
    folder.define(Definition(Cluster("/c.toml", ())))
    assert deepgen("cluster", "stop", "night").code == 1
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(folder.path)], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None and driver.stdout.readline()
        said = deepgen("cluster", "stop", "night")
        assert driver.wait(10) == -signal.SIGTERM
    assert said.code == 0 and "deepgen cluster attach deepgen-studies/night" in said.out
