"""Studies of every kind that reports support, and a browser to open the reports in."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_text import HOSTILE

import deepgen as dg
from deepgen.run.measure.base import Policy
from deepgen.targets import resolve
from deepgen.tuning import Study
from deepgen.tuning.request import Request, plan
from deepgen.tuning.study.journal import Journal, Proposal
from deepgen.tuning.study.recorded_study import import_study
from deepgen.vocabulary import DeepgenError, Measurement, Trial, Verdict
from deepgen_cluster.folder import Definition, GroupProgress, RunFolder, RunProgress
from deepgen_cluster.model import Cluster, GroupTask, Host, WorkGroup

RECORDING = Path(__file__).parents[2] / "benchmarks/h200/recorded/sm90_gemm_bf16_2048x2048x2048.json.gz"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a session's studies, with a separate key that signs winners."""
    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        yield folder


@pytest.fixture(scope="session")
def cpu(home: Path) -> Study:
    """Tuned on this machine's CPU."""
    policy = Policy(max_samples=5, max_seconds=0.02)
    given: dict[str, Any] = {"trials": 6, "keep_top": 1, "baselines": ["numpy"], "policy": policy, "out": home / "cpu"}
    return dg.tune(dg.gemm(32, 32, 32), target="cpu", **given)


@pytest.fixture(scope="session")
def sim(home: Path) -> Study:
    """Enough trials for an analysis, some of which fail."""
    given: dict[str, Any] = {"strategy": "random", "trials": 60, "keep_top": 2, "out": home / "sim"}
    return dg.tune(dg.gemm(64, 64, 64), target="sim:faults=0.2", **given)


@pytest.fixture(scope="session")
def failed(home: Path) -> Study:
    """A study in which every trial fails."""
    with pytest.raises(DeepgenError, match="none of 8 kernels"):
        dg.tune(dg.gemm(64, 64, 64), target="sim:faults=1.0", trials=8, out=home / "failed")
    return Study.open(next((home / "failed").iterdir()))


@pytest.fixture(scope="session")
def h200(home: Path) -> Study:
    """A recording from an H200, or the first part of it."""
    data = json.loads(gzip.decompress(RECORDING.read_bytes()))
    data["cache"] = dict(list(data["cache"].items())[:60])
    file = home / "h200.json"
    file.write_text(json.dumps(data))
    return import_study(file, resolve("cuda:h200"), home / "h200")


@pytest.fixture(scope="session")
def empty(home: Path) -> Study:
    """A study without any trial."""
    planned = plan(Request(dg.gemm(16, 16, 16), resolve("sim"), out=home / "empty"))
    with Journal(planned.folder, write=True) as journal:
        journal.define(planned.definition)
        journal.keep_space(planned.space)
    return Study.open(planned.folder)


@pytest.fixture(scope="session")
def hostile(home: Path) -> Study:
    """A journal with malicious content."""
    planned = plan(Request(dg.gemm(24, 24, 24), resolve("sim"), out=home / "hostile"))
    definition: dict[str, Any] = {**planned.definition}
    definition["facts"] = {**definition["facts"], "describe": f"gemm {HOSTILE}"}
    with Journal(planned.folder, write=True) as journal:
        journal.define(definition)
        journal.note(HOSTILE)
        trials = []
        for i in range(24):
            config = {HOSTILE: HOSTILE if i % 2 else "b", "datum['x']": i % 3, "a.b[0]\\": f"{HOSTILE}{i % 4}"}
            right = Measurement(Verdict.CORRECT, samples=(1e-5 * (1 + i % 5),), conditions={HOSTILE: HOSTILE})
            measured = right if i % 3 else Measurement(Verdict.BUILD_FAILED, HOSTILE)
            trials.append(Trial(i, i, config, HOSTILE, measured))
        journal.ask(0, len(trials), [Proposal(t.id, t.rank, dict(t.config)) for t in trials])
        journal.finish(trials)
    return Study.open(planned.folder)


@pytest.fixture(scope="session")
def cluster_run(home: Path, sim: Study, failed: Study) -> Path:
    """The folder of a cluster run of two groups, one of which found nothing."""
    folder = RunFolder(home / "a-run")
    host = Host("127.0.0.1", "/tmp/deepgen", "user")
    groups = [WorkGroup(n, "sim", host, host, (GroupTask("a.toml", "a"),)) for n in ("fine", "broken")]
    folder.define(Definition(Cluster(str(home / "cluster.toml"), tuple(groups))))
    told = {
        "fine": GroupProgress(1, 1, "gemm on sim", "done", True),
        "broken": GroupProgress(1, 1, "gemm on sim", "", True, "none of 8 kernels computed a correct result"),
    }
    folder.tell(RunProgress("failed", "", told))
    for name, study in (("fine", sim), ("broken", failed)):
        shutil.copytree(study.folder, folder.path / name / study.folder.name)
    return folder.path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium here to open reports in")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()
