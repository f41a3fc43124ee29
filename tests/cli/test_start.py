"""What commands that only answer must not wait for: libraries that take longer to import than the answer may take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

HEAVY = {"numpy", "scipy", "torch", "ray", "sklearn", "lightgbm", "ortools"}
TO_TUNE = {f"deepgen.{room}" for room in ("build", "runtime", "baselines", "engines", "search", "generators")}
LOADED = "from deepgen.cli.main import main; code = main({!r}); import sys; print(code, *sys.modules, file=sys.stderr)"


@pytest.fixture
def loaded(project: Path) -> Callable[..., set[str]]:
    """The modules that a command line imports in a fresh process."""

    def run(*argv: str) -> set[str]:
        program = [sys.executable, "-c", LOADED.format(argv)]
        done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=project)
        code, *modules = done.stderr.split()
        assert code == "0", done.stderr
        return set(modules)

    return run


@pytest.fixture
def heavy() -> set[str]:
    """pydantic too, unless this version of typer reads every command line with it."""
    needed = metadata.requires("typer") or []
    return HEAVY if any(one.startswith("pydantic") for one in needed) else {*HEAVY, "pydantic"}


@pytest.mark.parametrize("argv", [["--version"], ["--help"]], ids=" ".join)
def test_what_is_said_without_a_study(loaded: Callable[..., set[str]], heavy: set[str], argv: list[str]) -> None:
    assert not loaded(*argv) & {*heavy, *TO_TUNE, "rich", "deepgen.operators", "deepgen.tuning"}


def test_reading_studies(deepgen: Callable, loaded: Callable[..., set[str]], heavy: set[str]) -> None:
    study = deepgen("tune", "gemm", "MNK=64", "--target", "sim", "t=3", "--json").json()["study"]
    assert not loaded("status") & {*heavy, *TO_TUNE, "rich"}
    assert not loaded("status", study) & {*heavy, *TO_TUNE, "rich"}
    assert not loaded("top", study) & {*heavy, *TO_TUNE}


def test_a_look_at_this_machine(loaded: Callable[..., set[str]], heavy: set[str]) -> None:
    assert not loaded("doctor") & heavy
