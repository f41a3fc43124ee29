"""What is written in several places about the package is the same everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import deepgen
from deepgen.run.call import compiled
from deepgen.toolchains import programs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_one() -> None:
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert PROJECT["version"] == deepgen.__version__ == cited
    assert f"## {deepgen.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_every_supported_python_is_tested_by_ci() -> None:
    workflow = ROOT / ".github/workflows/ci.yml"
    if not workflow.exists():
        pytest.skip("not a checkout")
    (matrix,) = re.findall(r"python-version: (\[.+\])", workflow.read_text())
    tested = re.findall(r'"([\d.]+)"', matrix)
    claimed = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert tested == claimed and PROJECT["requires-python"] == f">={tested[0]}"


def extension(folder: Path, **changes: str) -> list[Path]:
    """What a wheel that is built in a copy of the project would have of it."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("not a checkout")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src/deepgen/run/call", folder / "src/deepgen/run/call")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "built"]
    subprocess.run(command, cwd=folder, env={**os.environ, **changes}, check=True, capture_output=True)
    return [*folder.glob("built/deepgen/run/call/*.so")]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Puts a built extension where a wheel would have it."""
    compiled.core.cache_clear()
    name = "deepgen.run.call.deepgen_calls"
    yield lambda binary: monkeypatch.setattr(
        sys.modules["deepgen.run.call"], "__path__", [str(binary.parent), *sys.modules["deepgen.run.call"].__path__]
    )
    sys.modules.pop(name, None)
    compiled.core.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or programs.python_headers() is None, reason="no C compiler")
def test_a_wheel_that_is_built_with_a_compiler_has_the_compiled_calls(
    tmp_path: Path, beside: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (binary,) = extension(tmp_path)
    beside(binary)
    monkeypatch.setattr(compiled, "_artifact", lambda kernel: pytest.fail("nothing is to be built"))
    core = compiled.core()
    assert core.__file__ == str(binary) and core.Bound and core.Caller
    compiled.core.cache_clear()
    monkeypatch.setattr(compiled, "_SOURCES", compiled._SOURCES[::-1])  # as if they had changed since
    monkeypatch.setattr(compiled, "_artifact", lambda kernel: None)
    assert compiled.core() is None


def test_a_compiler_that_fails_does_not_fail_the_install(tmp_path: Path) -> None:
    assert extension(tmp_path, CC="false") == []
