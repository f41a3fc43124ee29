"""A study is killed repeatedly by SIGKILL: every reported trial is kept, none is duplicated, the winner is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepgen.tuning.study.study import Study

# Like the command line, reports each finished trial only once it is in the journal.
KILLS = int(os.environ.get("DEEPGEN_KILLS", "3"))
TUNER = """
import sys, json
from pathlib import Path
import deepgen as dg
out = Path(sys.argv[1])
def watch(progress):
    print(json.dumps({"done": progress.done}), flush=True)
study = dg.tune(dg.gemm(256, 256, 256), target="sim:faults=0.2,measure_seconds=0.004,build_seconds=0.004",
    trials=100, out=out, engine=dg.LocalEngine(jobs=2, cache=out / "cache"), watch=watch)
print(json.dumps({"study": str(study.folder)}), flush=True)
"""


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", TUNER, str(out)], stdout=subprocess.PIPE, text=True)


def finish(out: Path) -> Study:
    lines = start(out).communicate()[0].splitlines()
    return Study.open(json.loads(lines[-1])["study"])


@pytest.mark.slow
def test_many_kills(tmp_path: Path) -> None:
    chance = random.Random(7)
    reported = 0
    kills = 0
    while kills < KILLS:
        child = start(tmp_path / "chaos")
        assert child.stdout is not None
        # Every third kill hits start-up; the others hit the search, at a random moment after one more trial.
        if kills % 3 != 2:
            for line in iter(child.stdout.readline, ""):
                if (done := json.loads(line).get("done", 0)) > reported:
                    reported = done
                    break
        time.sleep(chance.random() * 0.1)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines()
        child.wait()
        kills += 1
        reported = max([reported, *(json.loads(line).get("done", 0) for line in rest if line.endswith("}"))])
    study = finish(tmp_path / "chaos")
    whole = finish(tmp_path / "calm")
    trials = study.trials()
    assert reported >= 2 * KILLS // 3
    assert [t.id for t in trials] == list(range(100))
    assert len({t.rank for t in trials}) == 100
    assert [(t.rank, t.measurement.verdict) for t in trials] == [
        (t.rank, t.measurement.verdict) for t in whole.trials()
    ]
    assert study.best().trial.rank == whole.best().trial.rank
