"""`deepgen tune` and `deepgen resume`: the result as text and as JSON, continuing, config files, and Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepgen.tuning import Study

SMALL = ("tune", "gemm", "MNK=64", "--target", "sim", "--trials", "12")
SLOW = ("tune", "gemm", "MNK=64", "--target", "sim:measure_seconds=0.1", "--strategy", "random", "--trials", "500")


def _only_study(project: Path) -> Study:
    (folder,) = (project / "deepgen-studies").iterdir()
    return Study.open(folder)


def _wait_for_trials(project: Path, count: int) -> Study:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if list(project.glob("deepgen-studies/*/journal.sqlite")):
            try:
                study = _only_study(project)
                if len(study.trials()) >= count:
                    return study
            except Exception:  # the journal is still being created
                pass
        time.sleep(0.05)
    raise AssertionError("the study did not start")


def test_the_result_tells_winner_speed_and_folder(deepgen: Callable, project: Path) -> None:
    said = deepgen(*SMALL)
    assert said.code == 0
    study = _only_study(project)
    for part in ("winner", "GFLOP/s", "trials   12", f"deepgen-studies/{study.folder.name}"):
        assert part in said.out
    assert "import deepgen" not in said.out, "a simulated kernel cannot be loaded: nothing says how"
    assert max(map(len, (*said.err.splitlines(), *said.out.splitlines()))) <= 80


def test_the_result_tells_how_to_use_the_kernel(deepgen: Callable, project: Path) -> None:
    said = deepgen("tune", "gemm", "MNK=32", "--trials", "1")
    assert said.code == 0
    lines = said.out.splitlines()
    at = lines.index("use it   from Python:")
    named: dict[str, Any] = {}
    exec("\n".join(lines[at + 1 :]), named)  # as a user would paste it
    assert callable(named["kernel"])


def test_json_is_exactly_one_object(deepgen: Callable, project: Path) -> None:
    said = deepgen(*SMALL, "--json")
    assert (said.code, said.err) == (0, "")
    found = said.json()
    assert {"study", "operator", "target", "trials", "winner", "baselines"} <= set(found)
    assert {"rank", "config", "seconds", "gflops", "share_of_peak", "verdict"} <= set(found["winner"])
    assert sum(found["trials"].values()) == 12
    assert found["target"] == "sim"
    assert Study.open(found["study"]).best().trial.rank == found["winner"]["rank"]


def test_the_same_command_again_repeats_nothing(deepgen: Callable, project: Path) -> None:
    first = deepgen(*SMALL, "--json").json()
    before = _only_study(project).trials()
    assert deepgen(*SMALL, "--json").json() == first
    assert _only_study(project).trials() == before


def test_more_trials_go_on_with_the_same_study(deepgen: Callable, project: Path) -> None:
    deepgen(*SMALL)
    before = _only_study(project).trials()
    assert deepgen("resume", "deepgen-studies", "--trials", "15").code == 0
    after = _only_study(project).trials()
    assert after[:12] == before
    assert len(after) == 15


def test_resume_says_when_there_is_nothing_to_add(deepgen: Callable) -> None:
    assert deepgen(*SMALL, "--trials", "7").code == 0
    said = deepgen("resume", "deepgen-studies", "--trials", "4")
    assert said.code == 0 and "7 trials are already done, so --trials 4 adds none" in said.err
    assert "done: 7/7 trials" in said.err
    assert "are already done" not in deepgen("resume", "deepgen-studies", "--trials", "8").err


def test_resume_keeps_to_the_budget_that_was_given(deepgen: Callable, project: Path) -> None:
    first = deepgen(*SMALL, "--json").json()
    assert deepgen("resume", first["study"], "--json").json() == first


def test_options_reach_the_study(deepgen: Callable, project: Path) -> None:
    said = deepgen(
        *SMALL, "--dtype", "f64", "--layout", "nt", "--seed", "9", "--strategy", "exhaustive", "--keep-top", "2",
        "--out", "elsewhere", "--jobs", "1", "--time-budget", "600", "--warm", "--json",
    )  # fmt: skip
    study = Study.open(said.json()["study"])
    assert study.folder.parent == Path("elsewhere")
    assert (study.operator.to_json()["a"], study.operator.to_json()["layout"]) == ("f64", "nt")
    assert (study.definition["seed"], study.definition["strategy"]) == (9, "exhaustive")
    assert study.definition["policy"]["cold"] is False
    assert [trial.rank for trial in study.trials()][1:4] == sorted(trial.rank for trial in study.trials()[1:4])


def test_settings_give_target_and_studies_folder(deepgen: Callable, project: Path) -> None:
    (project / "deepgen.toml").write_text('target = "sim:seed=4"\nstudies = "kept"\n')
    found = deepgen("tune", "gemm", "MNK=64", "t=3", "--json").json()
    assert found["target"] == "sim:seed=4"
    assert Path(found["study"]).parent == project / "kept"


CONFIG = """
operator = "gemm"
shapes = [{ MNK = 32 }, { MN = 32, K = 64 }]
target = "sim"
[knobs]
BLOCK_M = [32, 64]
[budget]
trials = 5
"""


def test_a_config_file_gives_a_study_for_each_shape(deepgen: Callable, project: Path) -> None:
    (project / "my.toml").write_text(CONFIG)
    found = deepgen("tune", "my.toml", "--json").json()["studies"]
    assert [study["operator"]["k"] for study in found] == [32, 64]
    for study in found:
        trials = Study.open(study["study"]).trials()
        assert len(trials) == 5
        assert {trial.config["BLOCK_M"] for trial in trials} <= {32, 64}


def test_options_come_before_the_config_file(deepgen: Callable, project: Path) -> None:
    (project / "my.toml").write_text(CONFIG)
    found = deepgen("tune", "my.toml", "--trials", "2", "--target", "sim:seed=8", "--json").json()["studies"]
    assert [(sum(s["trials"].values()), s["target"]) for s in found] == [(2, "sim:seed=8")] * 2


@pytest.mark.parametrize(
    ("old", "new", "named", "allowed"),
    [
        ("BLOCK_M = [32, 64]", "BLOCK_Q = [32]", "BLOCK_Q", "BLOCK_M"),
        ("BLOCK_M = [32, 64]", "BLOCK_M = [33]", "33", "32"),
        ("trials = 5", "trials = 0", "budget.trials", "at least 1"),
    ],
)
def test_a_config_file_that_cannot_be_is_refused_before_any_study_starts(
    deepgen: Callable, project: Path, old: str, new: str, named: str, allowed: str
) -> None:
    (project / "my.toml").write_text(CONFIG.replace(old, new))
    said = deepgen("tune", "my.toml")
    assert said.code == 2
    assert "my.toml" in said.err
    assert named in said.err
    assert allowed in said.err
    assert not (project / "deepgen-studies").exists()


@pytest.mark.parametrize("extra", [["MNK=8"], ["--dtype", "f64"], ["--layout", "nt"]])
def test_a_config_file_is_not_mixed_with_words(deepgen: Callable, project: Path, extra: list[str]) -> None:
    (project / "my.toml").write_text(CONFIG)
    assert deepgen("tune", "my.toml", *extra).code == 2


def test_no_right_kernel_is_an_error_that_says_why(deepgen: Callable) -> None:
    said = deepgen("tune", "gemm", "MNK=64", "--target", "sim:faults=1.0", "t=4")
    assert said.code == 1
    assert "4 trials" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_cleanly_and_resume_goes_on(
    start: Callable, deepgen: Callable, project: Path, signum: int, code: int
) -> None:
    process = start(*SLOW)
    _wait_for_trials(project, 3)
    # To the whole process group, as a terminal sends Ctrl-C.
    os.killpg(process.pid, signum)
    out, err = process.communicate()
    assert process.returncode == code
    assert out == ""
    study = _only_study(project)
    assert f"deepgen resume deepgen-studies/{study.folder.name}" in err
    kept = study.trials()
    assert 3 <= len(kept) < 500
    assert {str(trial.measurement.verdict) for trial in kept} <= {"correct", "not_run"}
    assert study.running() is None
    assert deepgen("resume", study.folder.name, "--trials", str(len(kept) + 2)).code == 0
    after = {trial.id: trial for trial in study.trials()}
    assert [after[trial.id] for trial in kept] == kept


def test_where_there_is_no_terminal_progress_is_lines_on_stderr(start: Callable) -> None:
    out, err = start(*SMALL).communicate()
    assert "winner" in out
    assert "12/12 trials" in err
    assert "\x1b" not in out + err


def test_on_a_terminal_there_is_a_live_view(project: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "deepgen", *SLOW[:-1], "8"],
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    out, _ = process.communicate()
    os.close(master)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "gemm f32 nn 64x64x64 on sim" in text
    assert "/8 trials" in text
    assert "GFLOP/s" in text
    assert max(len(line) for line in re.split(r"[\r\n]+", text)) <= 80
    assert b"\x1b" not in out


def test_json_stays_pure_on_a_terminal(project: Path) -> None:
    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "deepgen", *SMALL, "--json"],
        stdout=subprocess.PIPE,
        stderr=slave,
        check=True,
    )
    os.close(slave)
    os.close(master)
    assert json.loads(done.stdout)["target"] == "sim"


def test_a_family_and_a_number_of_threads_are_part_of_the_study(deepgen: Callable, project: Path) -> None:
    words = ("tune", "gemm", "MNK=64", "--target", "cpu", "--family", "c_gemm", "--threads", "1", "--trials", "2",
             "--baseline", "numpy")  # fmt: skip
    said = deepgen(*words, "--json")
    assert said.code == 0, said.err
    study = _only_study(project)
    assert study.definition["generator"] == "c_gemm" and study.definition["policy"]["threads"] == 1
    assert {trial.config["THREADS"] for trial in study.trials()} == {1}


def test_a_family_that_is_unknown_or_has_no_threads_is_named(deepgen: Callable) -> None:
    unknown = deepgen(*SMALL, "--family", "nobody")
    assert unknown.code == 2 and "nobody" in unknown.err and "x86_gemm" in unknown.err
    other = deepgen(*SMALL, "--family", "x86_gemm")
    assert other.code == 2 and "x86_gemm" in other.err
    both = deepgen(*SMALL, "--family", "x86_gemm", "--threads", "2")
    assert both.code == 2 and "x86_gemm does not support" in both.err
    threads = deepgen(*SMALL, "--threads", "2")
    assert threads.code == 2 and "threads" in threads.err
