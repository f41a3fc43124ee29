"""SIGKILL of the worker and of compilers in the middle of a real study: it continues, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_family import FaultyGemm

import deepgen as dg
from deepgen import targets
from deepgen.frontends.cli.processes import descendants
from deepgen.run.measure.base import Policy, RunnerOptions, Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.toolchains import Cache, build_once
from deepgen.tuning.study.glance import glance
from deepgen.vocabulary import Source, Verdict

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

TRIALS = 20
# Two builds at a time, otherwise many cores have built everything before there is a compiler to kill; it also waits for
# the killer, which may be slow on a busy machine.
TUNER = f"""
import time
from pathlib import Path
import deepgen as dg
def pace(progress):
    while progress.done > int(Path("seen").read_text() or 0) + 1:
        time.sleep(0.01)
engine = dg.LocalEngine(jobs=2, cache="cache")
given = dict(target="cpu", trials={TRIALS}, keep_top=3, baselines=False, watch=pace)
print(dg.tune(dg.gemm(64, 64, 64), engine=engine, **given).folder)
"""
COMPILERS = ("gcc", "cc1", "as", "collect2", "ld")


def name_of(pid: int) -> str:
    """The role of a process: worker, the name of a compiler's program, or empty."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    # A worker is a fork of its keeper, with an empty command line: whichever of the two is found is killed.
    blank = len(words) > 3 and not any(words[1:])
    if blank or any(word.endswith(b"run/measure/keeper.py") for word in words):
        return "worker"
    name = Path(os.fsdecode(words[0])).name
    return "compiler" if any(name.startswith(c) for c in COMPILERS) else ""


def kill_one(tuner: int, kind: str) -> bool:
    for pid in descendants(tuner):
        if name_of(pid) == kind:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return True
    return False


def trials_ended(studies: Path) -> int:
    """Read while the tuner writes, like `deepgen status`: this happens often, so only the few
    necessary rows are read.
    """
    return sum(sum(glance(folder).get("trials", {}).values()) for folder in studies.glob("*"))


@pytest.mark.slow
def test_a_study_goes_on_when_workers_and_compilers_are_killed(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("0")
    tuner = subprocess.Popen(
        [sys.executable, "-c", TUNER], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    kills = {"worker": 0, "compiler": 0}
    before = 0
    while tuner.poll() is None:
        time.sleep(0.1)
        # A kernel is retried once and a build twice: none may be hit more often, or it is blamed.
        ended = trials_ended(tmp_path / "deepgen-studies")
        kind = min(kills, key=lambda k: kills[k])
        if ended >= before + 2 and kills[kind] < 3 and kill_one(tuner.pid, kind):
            kills[kind] += 1
            before = ended + 1
        (tmp_path / "seen").write_text(str(ended))
    out, err = tuner.communicate()
    assert tuner.returncode == 0, err
    assert min(kills.values()) >= 2, kills
    study = dg.Study.open(tmp_path / out.strip())
    trials = study.trials()
    assert [t.id for t in trials] == list(range(TRIALS))
    assert len({t.rank for t in trials}) == TRIALS
    assert {t.measurement.verdict.value for t in trials} <= {"correct", "unstable"}, [
        t.measurement.detail for t in trials if not t.ok
    ]
    assert study.best().load() is not None


@pytest.mark.parametrize("condition", ['open("flag", O_CREAT | O_EXCL, 0600) >= 0', "1"], ids=["once", "always"])
def test_a_kernel_whose_worker_is_killed_is_tried_once_more(tmp_path: Path, condition: str) -> None:
    operator, target = dg.gemm(33, 31, 29), targets.resolve("cpu")
    good = FaultyGemm().emit(operator, target, {"PLACE": 0, "LANE": 0})
    [source] = good.sources
    killing = source.text.replace("calls++;", f"if ({condition}) kill(getpid(), SIGKILL);")
    text = f"#include <fcntl.h>\n#include <signal.h>\n#include <unistd.h>\n{killing}"
    kernel = replace(good, sources=(Source(source.name, text),))
    artifact = build_once(kernel, target, cache=Cache(tmp_path / "cache"))
    runner = Supervisor(Task(operator, target, policy=Policy(max_samples=5)), RunnerOptions(cache=tmp_path / "cache"))
    measured = runner.measure(kernel, artifact)
    starts = runner.starts
    runner.close()
    assert starts == 2
    if condition == "1":
        assert (measured.verdict, "killed by the system" in measured.detail) == (Verdict.OUT_OF_MEMORY, True)
    else:
        assert measured.ok, measured.detail


def test_what_a_killed_run_leaves_in_the_temporary_folder_goes_with_the_next(tmp_path: Path) -> None:
    program = """
import sys, deepgen as dg
from deepgen import targets
from deepgen.run.measure.base import RunnerOptions, Task
from deepgen.run.measure.supervisor import Supervisor
runner = Supervisor(Task(dg.gemm(33, 31, 29), targets.resolve("cpu")), RunnerOptions(cache="cache"))
print("ready", flush=True)
sys.stdin.read()
runner.close()
"""
    folders = []
    for end in (subprocess.Popen.kill, lambda child: child.stdin.close()):
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        folders.append(set(tmp_path.glob("deepgen-measure-*")))
        end(child)
        child.wait()
    assert [len(found) for found in folders] == [1, 1] and folders[0] != folders[1]
    assert not list(tmp_path.glob("deepgen-measure-*"))
