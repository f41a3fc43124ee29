"""Bytecode that Python does not store is cached by us, in the user's folder, and never outlives its source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from importlib.machinery import SourceFileLoader
compiled, compile = [], SourceFileLoader.source_to_code
def counted(self, data, path, **options):
    compiled.append(path)
    return compile(self, data, path, **options)
SourceFileLoader.source_to_code = counted
from deepgen.vocabulary import bytecode
bytecode.keep()
compiled.clear()
import subject
print(subject.VALUE, len(compiled))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "modules" / "subject.py"
    path.parent.mkdir()
    path.write_text("VALUE = 1")
    return path


def run(source: Path, **env: str) -> str:
    """The module's value, and the number of sources compiled for it."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    cache = source.parents[1] / "cache"
    path = os.pathsep.join((str(source.parent), *filter(None, [os.environ.get("PYTHONPATH")])))
    env = {
        **usual,
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": path,
        **env,
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_second_start_compiles_nothing(source: Path) -> None:
    assert [run(source) for _ in range(2)] == ["1 1", "1 0"]
    source.write_text("VALUE = 2")
    assert [run(source) for _ in range(2)] == ["2 1", "2 0"]
    assert not list(source.parent.glob("__pycache__"))


def test_what_is_damaged_is_compiled_again(source: Path) -> None:
    run(source)
    for kept in (source.parents[1] / "cache" / "deepgen" / "bytecode").rglob("*"):
        if kept.is_file():
            kept.write_bytes(kept.read_bytes()[:-5])
    assert [run(source) for _ in range(2)] == ["1 1", "1 0"]


def test_where_python_keeps_it_nothing_changes(source: Path) -> None:
    assert [run(source, PYTHONDONTWRITEBYTECODE="") for _ in range(2)] == ["1 1", "1 0"]
    assert list(source.parent.glob("__pycache__"))
    assert not (source.parents[1] / "cache").exists()


def test_a_folder_that_others_may_write_to_is_not_used(source: Path) -> None:
    run(source)
    [folder] = (source.parents[1] / "cache" / "deepgen" / "bytecode").iterdir()
    folder.chmod(0o777)
    assert run(source) == "1 1"


def test_without_a_folder_all_works(source: Path) -> None:
    (source.parents[1] / "cache").write_text("no folder")
    assert run(source) == "1 1"
