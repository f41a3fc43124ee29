"""A study that is built here and measured by the bundle's own code: same verdicts, nothing lost or mixed up."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from faulty_family import FAULTS, FaultyGemm, fault_of

from deepgen import targets
from deepgen.operators import gemm
from deepgen.run.measure.base import Policy
from deepgen.tuning import Request, Study, tune
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles import pack as bundle_pack
from deepgen.tuning.bundles import results as bundle_results
from deepgen.tuning.bundles.exchange import merge, pack
from deepgen.tuning.engines import LocalEngine
from deepgen.vocabulary import BadInput, Verdict

OPERATOR = gemm(128, 128, 128)


def sim(out: Path, options: str = "faults=0.3", **other: Any) -> Request:
    given = {"trials": 24, "keep_top": 4, **other}
    # A strategy that learns would choose other configs if it only gets its trials at the end. A race limited by the
    # clock has fewer rounds on a busy machine.
    given = {"strategy": "random", "policy": Policy(race_seconds=60.0), **given}
    return Request(operator=OPERATOR, target=targets.resolve(f"sim:{options}"), out=out, **given)


def alone(tmp_path: Path, python: str = sys.executable) -> tuple[list[str], dict[str, str]]:
    """A Python with numpy and nothing else of this environment."""
    packages = tmp_path / "only_numpy"
    packages.mkdir(exist_ok=True)
    here = Path(numpy.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (here / name).exists() and not (packages / name).exists():
            (packages / name).symlink_to(here / name)
    return [python, "-S", "-B"], {**os.environ, "PYTHONPATH": str(packages)}


def run(archive: Path, results: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "there"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    unpacked = bundle_archive.unpack(archive, folder)
    python, env = alone(tmp_path)
    command = [*python, str(unpacked / "run.py"), "-o", str(results)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def dump(study: Study) -> list[str]:
    with contextlib.closing(sqlite3.connect(study.folder / "journal.sqlite")) as db:
        return list(db.iterdump())


@pytest.fixture(scope="module")
def brought_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study, the results of its bundle, and the user's key. Shared by all tests, read-only."""
    folder = tmp_path_factory.mktemp("brought_back")
    archive, results = folder / "b.tar.gz", folder / "b.results.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        pack(sim(folder / "studies"), archive, engine=LocalEngine(jobs=1, cache=folder / "cache"))
        done = run(archive, results, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def travelled(brought_back: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Study, Path]:
    """A private copy of the study, and results to merge into it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(brought_back / "config"))
    shutil.copytree(brought_back / "studies", tmp_path / "studies")
    results = Path(shutil.copy(brought_back / "b.results.jsonl", tmp_path))
    return Study.open(next(path.parent for path in tmp_path.glob("studies/**/journal.sqlite"))), results


def test_without_a_compiler_nothing_is_packed_and_no_study_is_left(tmp_path: Path) -> None:
    request = Request(operator=OPERATOR, target=targets.resolve("cpu"), out=tmp_path / "studies")
    with pytest.raises(BadInput, match="/nowhere/gcc"):
        pack(request, tmp_path / "b.tar.gz", engine=LocalEngine(toolchains={"gcc": "/nowhere/gcc"}))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_bundle_gives_what_the_local_engine_gives(travelled: tuple[Study, Path], tmp_path: Path) -> None:
    study, results = travelled
    merged = merge(study, results)
    local = tune(sim(tmp_path / "local"), engine=LocalEngine(jobs=1, cache=tmp_path / "cache"))
    assert merged.finals and merged.before == 0
    assert [(t.id, t.rank, t.kernel_id, t.measurement.verdict, t.seconds, dict(t.build_facts).keys())
            for t in study.trials()] == [
        (t.id, t.rank, t.kernel_id, t.measurement.verdict, t.seconds, dict(t.build_facts).keys())
        for t in local.trials()
    ]  # fmt: skip
    assert {t.measurement.verdict for t in study.trials()} > {Verdict.CORRECT, Verdict.BUILD_FAILED}
    assert study.best().trial.id == local.best().trial.id
    assert study.summary()["winner"] == local.summary()["winner"]
    # The same command finds the study complete, with the winner's files in place.
    assert (study.folder / "winner" / "kernel.json").exists()
    again = tune(sim(tmp_path / "studies"), engine=LocalEngine(jobs=1, cache=tmp_path / "cache"))
    assert again.folder == study.folder and len(again.trials()) == 24


def test_merging_twice_changes_nothing(travelled: tuple[Study, Path]) -> None:
    study, results = travelled
    first = merge(study, results)
    before = dump(study)
    second = merge(study, results)
    assert (second.new, second.before, second.finals) == (0, first.new + first.before, False)
    assert dump(study) == before


def test_results_of_another_study_are_refused(travelled: tuple[Study, Path], tmp_path: Path) -> None:
    _, results = travelled
    other = pack(sim(tmp_path / "studies", seed=5), tmp_path / "o.tar.gz")
    with pytest.raises(BadInput, match="another study"):
        merge(Study.open(other.study), results)
    assert len(Study.open(other.study).trials()) == other.failed


def edited(results: Path, change: Any) -> Path:
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    change(lines)
    path = results.with_name("edited.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def winner(lines: list[dict[str, Any]]) -> int:
    return int(lines[-1]["finals"]["winner"])


def forge(rows: list[dict[str, Any]], chosen: Callable[[dict[str, Any]], bool]) -> None:
    """Set times that no device could have."""
    for row in rows:
        if "trial" in row and chosen(row):
            row.get("measurement", row).update(samples=[1e-12] * 5, **({"seconds": 1e-12} if "seconds" in row else {}))


def test_results_of_changed_kernels_and_strange_ones_are_refused(travelled: tuple[Study, Path]) -> None:
    study, results = travelled
    before = dump(study)
    for says, change in (
        ("generator .* has changed since", lambda lines: lines[3].update(kernel_id="0" * 64)),
        ("never requested", lambda lines: lines[3].update(trial=999)),
        ("line 4 is not a result", lambda lines: lines[3].update(measurement={"verdict": "splendid"})),
        ("line 4 is not a result", lambda lines: lines[3]["measurement"].update(verdict="correct", samples=["fast"])),
        ("line 1 is not a result", lambda lines: lines.pop(0)),
        ("the winner is not a finalist", lambda lines: lines[-1]["finals"].update(winner=999)),
        (r"finalists\[0\]: lacks 'seconds'", lambda lines: lines[-1]["finals"]["finalists"][0].pop("seconds")),
        ("does not match its samples", lambda lines: lines[-1]["finals"]["finalists"][0].update(seconds=1e-3)),
        ("a different config", lambda lines: lines[-1]["finals"]["finalists"][0].update(rank=1)),
        ("cannot do it in less", lambda lines: forge(lines, lambda row: row["trial"] == winner(lines))),
        ("cannot do it in less", lambda lines: forge(lines[-1]["finals"]["finalists"], lambda row: True)),
        (r"dropped\[0\]: is 1", lambda lines: lines[-1]["finals"].update(dropped=[1])),
        ("line 1 is not a result", lambda lines: lines[0].update(bundle=7)),
        ("peak_gflops: is 'fast'", lambda lines: lines[-1]["finals"].update(peak_gflops="fast")),
    ):
        with pytest.raises(BadInput, match=says):
            merge(study, edited(results, change))
        assert dump(study) == before


def test_times_of_two_devices_do_not_mix(travelled: tuple[Study, Path]) -> None:
    study, results = travelled
    merge(study, results)

    def elsewhere(lines: list[dict[str, Any]]) -> None:
        lines[0]["device"] = "another one"

    with pytest.raises(BadInput, match="measured on another one"):
        merge(study, edited(results, elsewhere))


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    archive, results = tmp_path / "b.tar.gz", tmp_path / "b.results.jsonl"
    packed = pack(sim(tmp_path / "studies", "measure_seconds=0.1", trials=12), archive)
    unpacked = bundle_archive.unpack(archive, tmp_path)
    python, env = alone(tmp_path)
    process = subprocess.Popen([*python, str(unpacked / "run.py"), "-o", str(results)], env=env, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while time.monotonic() < until and (not results.exists() or results.read_bytes().count(b"\n") < 4):
        time.sleep(0.02)
    process.kill()
    process.communicate()
    whole = results.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    with results.open("ab") as file:
        file.write(b'{"trial": 11, "kern')  # as left by a power cut
    study = Study.open(packed.study)
    assert merge(study, results).new == whole.count(b"\n") - 1, "half a run can be merged too"
    done = run(archive, results, tmp_path)
    assert done.returncode == 0 and "measured before" in done.stderr
    assert results.read_bytes().startswith(whole)
    assert sorted(bundle_results.read(results).trials) == list(range(12))
    merged = merge(study, results)
    assert merged.new + merged.before == 12 and merged.finals
    assert merge(study, results).new == 0
    # Nothing is left to do, and a third run reports so without measuring.
    assert "12 measured before" in run(archive, results, tmp_path).stderr


def test_a_study_goes_on_in_a_second_bundle_and_its_best_race_again(
    travelled: tuple[Study, Path], tmp_path: Path
) -> None:
    study, results = travelled
    merge(study, results)
    request = sim(tmp_path / "studies")
    with pytest.raises(BadInput, match=r"nothing to pack.*--trials 48"):
        pack(request, tmp_path / "c.tar.gz")
    pack(replace(request, trials=40), tmp_path / "c.tar.gz")
    second = tmp_path / "c.results.jsonl"
    assert run(tmp_path / "c.tar.gz", second, tmp_path).returncode == 0
    merged = merge(study, second)
    assert merged.new <= 16 and merged.finals
    assert len(study.trials()) == 40
    best = min((t for t in study.trials() if t.ok), key=lambda t: t.seconds or 0.0)
    finals = study.finals()
    assert finals is not None and best.id in [row.trial for row in finals.finalists]


@pytest.mark.slow
def test_the_default_races_in_every_bundle_as_it_does_at_home(tmp_path: Path) -> None:
    # With so much noise the default's own trial is far from the best, and with so few kept only its name helps it.
    engine, finals = LocalEngine(jobs=1, cache=tmp_path / "cache"), []
    for number, trials in enumerate((12, 24)):
        request = sim(tmp_path / "studies", "noise=0.5", trials=trials, keep_top=1)
        archive, results = tmp_path / f"{number}.tar.gz", tmp_path / f"{number}.jsonl"
        study = Study.open(pack(request, archive, engine=engine).study)
        assert run(archive, results, tmp_path).returncode == 0
        assert merge(study, results, engine=engine).finals
        local = tune(replace(request, out=tmp_path / "local"), engine=engine)
        finals.append((study.finals(), local.finals()))
    for there, here in finals:
        assert there is not None and here is not None
        assert {row.trial: row.default for row in there.finalists} == {row.trial: row.default for row in here.finalists}
        assert [row.trial for row in there.finalists if row.default] == [0]
        assert (there.winner, there.ties) == (here.winner, here.ties)
        assert there.tie_broken_by == here.tie_broken_by


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_real_kernels_run_in_a_worker_there_too_and_faults_are_verdicts(tmp_path: Path) -> None:
    wanted = ("SEGFAULT", "INFINITE_LOOP", "WRITE_AFTER", "EXIT", "HUGE_ALLOCATION")
    places = [list(FAULTS).index(name) for name in wanted]
    request = Request(
        operator=gemm(65, 61, 59),
        target=targets.resolve("cpu"),
        trials=30,
        keep_top=2,
        generator=FaultyGemm(),
        domains={"PLACE": places},
        policy=Policy(max_samples=10, max_seconds=0.05, timeout_seconds=1.5),
        baselines=False,
        counters="task-clock,no-such-event",
        out=tmp_path / "studies",
    )
    packed = pack(request, tmp_path / "b.tar.gz")
    done = run(tmp_path / "b.tar.gz", tmp_path / "r.jsonl", tmp_path)
    assert done.returncode == 0, done.stderr
    study = Study.open(packed.study, generator=FaultyGemm())
    merge(study, tmp_path / "r.jsonl")
    seen = {fault_of(t.config): t.measurement for t in study.trials() if fault_of(t.config)}
    assert set(seen) == set(wanted)
    for name, measured in seen.items():
        assert measured.verdict is FAULTS[str(name)].verdict, measured.detail
        assert FAULTS[str(name)].says in measured.detail
    best = study.best().trial
    assert fault_of(best.config) is None
    assert best.measurement.counters.keys() | {"no-such-event"} == {"task-clock", "no-such-event"}
    assert len([text for _, text in study.notes() if "no-such-event" in text]) == 1, "told once"
    assert study.trials()[0].measurement.conditions["device"] == request.target.model  # type: ignore[attr-defined]


def test_kernels_for_another_device_are_not_run(tmp_path: Path) -> None:
    request = sim(tmp_path / "studies", trials=2, keep_top=1)
    pack(request, tmp_path / "b.tar.gz")
    folder = bundle_archive.unpack(tmp_path / "b.tar.gz", tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["task"]["target"] = targets.resolve("cuda:sm_90a").to_json()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    python, env = alone(tmp_path)
    command = [*python, str(folder / "run.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    if "on NVIDIA" in done.stderr:
        pytest.skip("there is such a GPU here")
    assert done.returncode == 1 and "a device that runs sm_90a is missing" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("*.results.jsonl"))


def test_what_travels_is_small_and_needs_only_the_standard_library_and_numpy() -> None:
    files = bundle_pack.travelling(targets.resolve("sim"))
    assert sum(map(len, files.values())) < 5 << 18  # 0.3 MB compressed
    staying = ("deepgen/tuning/search", "deepgen/kernels/gemm", "deepgen/frontends", "deepgen_")
    assert not [name for name in files if name.startswith(staying)]
    assert not [name for name in files if not name.endswith(".py") or name.startswith("deepgen/run/riscv")]
    files = bundle_pack.travelling(targets.resolve("riscv:rv64gcv_zvl128b"))
    built = {f"deepgen/run/riscv/{name}" for name in ("count.c", "trace.c", "instructions.h")}
    assert built == {name for name in files if not name.endswith(".py")}
    assert {"deepgen/run/riscv/runner.py", "deepgen/run/riscv/board.py"} <= files.keys()
    for name, text in files.items():
        if not name.endswith(".py"):
            continue
        tree = ast.parse(text, name, feature_version=(3, 8))
        for node in tree.body:  # inside functions optional baselines import their frameworks
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [module] if module else []
            for word in names:
                first = word.split(".")[0]
                if first == "triton" and name == "deepgen/baselines/triton_kernel.py":
                    continue  # a kernel in Triton, imported once Triton is available
                assert first in ("deepgen", "numpy") or first in sys.stdlib_module_names, f"{name} imports {word}"


def test_what_measures_on_a_plug_ins_target_travels_with_its_studies(tmp_path: Path) -> None:
    operator = gemm(2, 32, 32, dtype="i8", c="i32", layout="nt")
    request = Request(operator, targets.resolve("vta"), out=tmp_path / "studies", trials=4, strategy="random")
    packed = pack(request, tmp_path / "b.tar.gz", engine=LocalEngine(jobs=1, cache=tmp_path / "cache"))
    done = run(tmp_path / "b.tar.gz", tmp_path / "b.results.jsonl", tmp_path)
    assert done.returncode == 0, done.stderr
    study = Study.open(packed.study)
    assert merge(study, tmp_path / "b.results.jsonl").finals
    assert all(trial.measurement.ok for trial in study.trials())


def python_38() -> str | None:
    """An old Python with numpy, if there is one."""
    for name in ("python3.8", "python3.9"):
        found = shutil.which(name)
        works = (
            found and subprocess.run([found, "-c", "import numpy"], capture_output=True, check=False).returncode == 0
        )
        if works:
            return found
    return None


def test_the_oldest_python_that_is_promised_runs_a_bundle(tmp_path: Path) -> None:
    python = python_38()
    if python is None:
        pytest.skip("there is no Python 3.8 or 3.9 with numpy here")
    pack(sim(tmp_path / "studies", trials=6), tmp_path / "b.tar.gz")
    folder = bundle_archive.unpack(tmp_path / "b.tar.gz", tmp_path)
    command = [python, str(folder / "run.py"), "-o", str(tmp_path / "r.jsonl")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bundle_results.read(tmp_path / "r.jsonl").finals is not None


def test_comments_stay_behind_and_what_looks_like_one_does_not() -> None:
    text = '''"""What it is."""
import os  # a module

# A line of its own.
MARK = "a  # b"  # kept as it is
LINES = """
# no comment
x  # nor this
"""  # one that ends a text is left alone


def some(x: int) -> str:
    """What it does."""
    return f"{x}  # {MARK}"  # by chance
'''
    stripped = bundle_pack._without_words(text.encode(), ast.parse(text)).decode()
    assert "a module" not in stripped and "of its own" not in stripped and "What it" not in stripped
    assert stripped.count("\n") == text.count("\n")
    names: dict[str, Any] = {}
    exec(stripped, names)
    assert names["MARK"] == "a  # b" and "# no comment\nx  # nor this\n" in names["LINES"]
    assert names["some"](3) == "3  # a  # b"
