"""An operator and a family from outside the package can do everything that deepgen's own can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_operator.py"
ENTRY_POINTS = """
[deepgen.operators]
vadd = own_operator:VectorAdd
row_softmax = own_operator:RowSoftmax
lost = broken_plugin:Lost

[deepgen.generators]
c_vadd = own_operator:VectorAddFamily
c_row_softmax = own_operator:RowSoftmaxFamily
"""
CALL = """
import sys
import numpy as np
import deepgen as dg

kernel = dg.Study.open(sys.argv[1]).best().load()
a, b = np.ones(777, np.float32), np.arange(777, dtype=np.float32)
assert (kernel(a, b) == a + b).all()
print("right")
"""


def run(*argv: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *argv], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def deepgen(*words: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    if env:  # other packages, which a process finds at startup
        return run("-m", "deepgen", *words, cwd=cwd, env=env)
    done = preloaded.deepgen(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, settings_text: str) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "config" / "deepgen").mkdir(mode=0o700, parents=True)
    (folder / "config" / "deepgen" / "deepgen.toml").write_text(settings_text)
    assert run(str(EXAMPLE), cwd=folder, env={"XDG_CONFIG_HOME": str(folder / "config")})
    return folder


def study(folder: Path, name: str) -> Path:
    [found] = folder.glob(f"deepgen-studies/{name}-*")
    return found


@pytest.fixture
def at_home(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of the user who tuned."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tuned / "config"))
    return tuned


@pytest.mark.slow
def test_it_is_reopened_and_called_in_a_new_process(at_home: Path, tmp_path: Path) -> None:
    assert run("-c", CALL, str(study(at_home, "vadd")), cwd=tmp_path) == "right\n"


def test_the_command_line_goes_on_with_it(at_home: Path) -> None:
    for name in ("vadd", "row_softmax"):
        folder = study(at_home, name)
        before = json.loads(deepgen("show", str(folder), "--json", cwd=at_home))["trials"]["correct"]
        after = json.loads(deepgen("resume", str(folder), "--trials", "10", "--json", cwd=at_home))
        assert after["trials"]["correct"] > before and after["winner"]
    assert "void row_softmax" in deepgen("show", str(study(at_home, "row_softmax")), "--source", cwd=at_home)


@pytest.mark.slow
def test_it_travels_in_a_bundle_without_its_code(at_home: Path, tmp_path: Path) -> None:
    folder = tmp_path / study(at_home, "vadd").name
    shutil.copytree(study(at_home, "vadd"), folder)
    deepgen("bundle", "pack", str(folder), "--trials", "12", "-o", "vadd.tar.gz", cwd=tmp_path)
    (tmp_path / "far").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "vadd.tar.gz", "-C", tmp_path / "far"], check=True)
    assert not list((tmp_path / "far").rglob("own_operator.py"))
    run(str(tmp_path / "far" / "vadd" / "run.py"), "-o", str(tmp_path / "vadd.results.jsonl"), cwd=tmp_path / "far")
    merged = json.loads(deepgen("bundle", "merge", str(folder), "vadd.results.jsonl", "--json", cwd=tmp_path))
    assert merged["merged"] > 0 and merged["trials"]["correct"] == 12 and merged["winner"]


def test_a_stranger_is_asked_for_trust(tuned: Path, tmp_path: Path) -> None:
    folder = tmp_path / study(tuned, "vadd").name
    shutil.copytree(study(tuned, "vadd"), folder)
    words = ("resume", str(folder), "--trials", "12", "--json")
    refused = preloaded.deepgen(*words, cwd=tmp_path)
    assert refused.returncode == 1 and "own_operator.py:VectorAdd" in refused.stderr and "--trust" in refused.stderr
    assert json.loads(deepgen(*words, "--trust", cwd=tmp_path))["trials"]["correct"] == 12


def installed(site: Path) -> Path:
    """The files that an installer leaves of a package: its modules and its metadata."""
    metadata = site / "own_operator-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-operator\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(EXAMPLE, site / "own_operator.py")
    (site / "broken_plugin.py").write_text("import no_such_module\n")
    return site


@pytest.mark.slow
def test_an_installed_package_brings_it_by_entry_points(tmp_path: Path) -> None:
    site = installed(tmp_path / "site")
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))}
    words = ("tune", "vadd", "n=5000", "--target", "cpu", "--trials", "4", "--json")
    done = json.loads(deepgen(*words, cwd=tmp_path, env=env))
    assert done["trials"] == {"correct": 4} and done["operator"] == {"name": "vadd", "n": 5000}
    assert run("-c", CALL, done["study"], cwd=tmp_path, env=env) == "right\n"
    plugins = {row["name"]: row for row in json.loads(deepgen("doctor", "--json", cwd=tmp_path, env=env))["plugins"]}
    assert plugins["vadd"]["problem"] is None and plugins["c_vadd"]["kind"] == "kernel family"
    assert "no_such_module" in plugins["lost"]["problem"]
    conformance = EXAMPLE.parents[1] / "tests" / "conformance"
    suites = [str(conformance / name) for name in ("test_operators.py", "test_generators.py")]
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "vadd or row_softmax", *suites, cwd=tmp_path, env=env)
    # If the package is gone, a message says so; the measurements can still be read.
    assert "vadd f32 n=5000" in deepgen("show", done["study"], cwd=tmp_path)
    gone = preloaded.deepgen("resume", done["study"], "--trials", "6", cwd=tmp_path)
    assert gone.returncode == 2 and "whose code is not available" in gone.stderr
