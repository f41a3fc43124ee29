"""Time: a budget covers the whole run, finals wait for a quiet machine within it, and all seconds are accounted for."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import deepgen as dg
from deepgen import settings
from deepgen.frontends.cli.result import print_result
from deepgen.run.measure import conditions
from deepgen.run.measure.base import Policy
from deepgen.run.measure.conditions import MachineReading
from deepgen.tuning import progress
from deepgen.tuning.engines.local import LocalSession
from deepgen.tuning.finals import wait_for_calm
from deepgen.tuning.progress import PARTS, Clock
from deepgen.tuning.study.finals import Waited
from deepgen.tuning.study.journal import Journal
from deepgen.vocabulary import BadInput

OPERATOR = dg.gemm(256, 256, 256)
BUSY = "other processes took 40% of the CPU time"


class Machine(LocalSession):
    """A machine that appears busy for the first few readings."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    def disturbed(self) -> str | None:
        time.sleep(0.01)
        self.busy -= 1
        return BUSY if self.busy >= 0 else None


def test_finals_wait_until_the_machine_is_calm_and_not_for_ever() -> None:
    heard: list[str] = []
    assert wait_for_calm(Machine(0), 5.0, heard.append) == Waited()
    found = wait_for_calm(Machine(20), 5.0, heard.append)
    assert found.seconds >= 0.2 and (found.by, found.disturbed) == (BUSY, None)
    assert set(heard) == {f"waiting for a quiet machine: {BUSY}"}
    assert wait_for_calm(Machine(10_000), 0.1, heard.append).disturbed == BUSY
    assert wait_for_calm(Machine(10_000), 0.0, heard.append).by is None, "0 does not even look"


def test_limits_of_finals_come_from_settings_and_are_no_part_of_a_study(tmp_path: Path) -> None:
    file = tmp_path / "deepgen.toml"
    file.write_text("[limits]\ncalm_seconds = 0\nrace_seconds = 3.5\n")
    policy = settings.read(file).limited(Policy())
    assert (policy.calm_seconds, policy.race_seconds) == (0.0, 3.5)
    assert policy.identity() == Policy().identity() and Policy(**policy.to_json()) == policy
    for text in ("-1", "true", "'long'"):
        file.write_text(f"[limits]\nrace_seconds = {text}\n")
        with pytest.raises(BadInput, match=r"limits.race_seconds is .*a number of seconds, at least 0"):
            settings.read(file)
    with pytest.raises(BadInput, match=r"calm_seconds is -1.*a number of seconds, at least 0"):
        Policy(calm_seconds=-1.0)


def test_a_neighbour_that_takes_the_processor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(conditions._cores())
    readings = [
        MachineReading(0.0),
        MachineReading(1.0, busy=0.4 * cores, ours=0.0),
        MachineReading(0.0),
        MachineReading(1.0, busy=0.01),
    ]
    monkeypatch.setattr(conditions, "read", lambda ours, builds: readings.pop(0))
    assert conditions.disturbance(0.0) == BUSY
    assert conditions.disturbance(0.0) is None


def test_a_wait_is_told_with_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([BUSY, BUSY, None])
    monkeypatch.setattr(LocalSession, "disturbed", lambda self: next(looks, BUSY))
    policy = Policy(calm_seconds=0.6)
    words: dict[str, Any] = {"target": "sim", "strategy": "random", "out": tmp_path, "policy": policy}
    study = dg.tune(OPERATOR, trials=4, **words)
    print_result(study)
    assert "waited   0 s for a quiet machine: other processes took 40%" in capsys.readouterr().out
    study = dg.tune(OPERATOR, trials=6, **words)
    assert "still busy after the finals had waited 1 s" in " ".join(map(str, study.summary()["doubts"]))  # type: ignore[arg-type]


def test_a_budget_keeps_some_of_itself_for_the_finals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Clock().search_over and Clock().left == float("inf")
    now = 5.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    ours = Clock(20.0)
    assert not ours.search_over
    now += 16.0
    assert ours.search_over and ours.left == 4.0
    now += 5.0
    assert ours.left == 0.0


def test_what_happens_at_the_same_time_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    ours = Clock()
    with ours.on("search"):
        now += 3.0
    with ours.on("building"):
        now += 1.0
    ours.measured(2.5, 10)  # one second of it while the search waited, the rest while it computed
    told: dict[str, Any] = ours.record()
    assert (told["search"], told["measuring"], told["building"], told["total"]) == (3.0, 1.0, 0.0, 4.0)


def test_finals_shrink_to_what_the_pace_of_the_trials_allows() -> None:
    ours = Clock(10.0)
    assert ours.samples_left(0.5) == float("inf"), "nothing is known yet"
    ours.measured(2.0, 20)
    assert 40 < ours.samples_left(0.5) <= 50
    assert Clock().samples_left(0.5) == float("inf")


@pytest.mark.quiet
def test_a_budget_covers_what_is_under_way_and_the_finals(tmp_path: Path) -> None:
    """One measurement takes 0.2 s, and 34 of them are always in flight: waiting for all took 7 s."""
    engine = dg.LocalEngine(jobs=16, cache=tmp_path / "cache")
    words: dict[str, Any] = {"trials": 10_000, "time_budget": 3.0, "strategy": "random", "out": tmp_path / "studies"}
    started = time.monotonic()
    study = dg.tune(OPERATOR, target="sim:measure_seconds=0.2", engine=engine, **words)
    assert time.monotonic() - started < 3.0 + 3.0
    finals = study.finals()
    assert finals is not None and finals.winner is not None and finals.trials == len(study.trials())
    with Journal(study.folder) as journal:
        assert journal.proposals(open_only=True), "what was not tried is tried when the study goes on"


def test_the_seconds_are_accounted_for_over_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = dg.LocalEngine(jobs=1, cache=tmp_path / "cache")
    words: dict[str, Any] = {"strategy": "random", "out": tmp_path / "studies", "engine": engine}
    times: list[Any] = []
    for trials in (4, 8):
        study = dg.tune(OPERATOR, target="sim:measure_seconds=0.05", trials=trials, **words)
        times.append(study.summary()["time"])
    for spent in times:
        assert set(spent) == {*PARTS, "total", "phases"}
        assert all(0 <= spent[part] <= spent["total"] for part in PARTS)
    assert 0.1 < times[0]["measuring"] < times[1]["measuring"] and times[0]["total"] < times[1]["total"]
    print_result(study)
    assert f"time     {times[1]['total']:.1f} s: " in capsys.readouterr().out


def test_a_summary_has_the_curve_of_the_best_over_all_runs(tmp_path: Path) -> None:
    words: dict[str, Any] = {"target": "sim:measure_seconds=0.02", "strategy": "random", "out": tmp_path}
    first: dict[str, Any] = dg.tune(OPERATOR, trials=3, **words).summary()
    study = dg.tune(OPERATOR, trials=30, time_budget=600.0, **words)
    summary: dict[str, Any] = study.summary()
    assert (first["time_budget"], summary["time_budget"]) == (None, 600.0)
    assert 0 < first["default_measured_after"] == summary["default_measured_after"] < first["time"]["total"]
    curve = summary["improved"]
    assert curve[: len(first["improved"])] == first["improved"] and curve == sorted(curve, key=lambda row: row[0])
    assert [row[1] for row in curve] == sorted((row[1] for row in curve), reverse=True)
    assert curve[-1][1] == min(trial.seconds or 1.0 for trial in study.trials())
    assert all(0 < after < summary["time"]["total"] for after, _ in curve)
    late = [row for row in curve if row not in first["improved"]]
    assert all(after > first["time"]["total"] for after, _ in late), "what earlier runs took counts too"


def test_phases_follow_each_other_and_finals_are_part_of_what_is_left(tmp_path: Path) -> None:
    clock = Clock()
    clock.finals_seconds = 100.0
    assert clock.until_end(4, 0) is None, "nothing tells"
    clock.enter(progress.SEARCH)
    time.sleep(0.02)
    assert (clock.until_end(4, 2) or 0.0) > 100.0 and (clock.until_end(0, 4) or 0.0) >= 100.0
    clock.enter(progress.FINALISTS)
    assert 99.0 < (clock.until_end(0, 4) or 0.0) < 100.0
    assert [*clock.phases()] == [progress.PREPARING, progress.SEARCH, progress.FINALISTS]
    assert clock.phases()[progress.SEARCH] >= 0.02
    study = dg.tune(OPERATOR, target="sim", trials=3, out=tmp_path)
    spent: Any = study.summary()["time"]
    assert [*spent["phases"]] == [*progress.PHASES]
    assert sum(spent["phases"].values()) == pytest.approx(spent["total"], abs=0.05)


def test_a_run_may_have_begun_earlier() -> None:
    program = (
        "import time; time.sleep(0.3); from deepgen.tuning.progress import process_start;"
        "print(time.monotonic() - process_start())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.3 < float(done.stdout) < 60.0
    ours = Clock(10.0, time.monotonic() - 4.0)
    assert 4.0 <= ours.elapsed < 9.0 and ours.left < 6.0
