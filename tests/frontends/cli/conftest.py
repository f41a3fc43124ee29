"""A project in a temporary folder, and the command line run in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deepgen.frontends.cli.main import main
from deepgen.vocabulary import folders


@dataclass(frozen=True)
class Said:
    """The exit code and output of a command line."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one object on stdout; anything else there is an error."""
        return json.loads(self.out)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: no repository, no settings."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(folders, "_places", lambda: [tmp_path])  # leftovers of other runs are not tested here
    return folder


@pytest.fixture
def deepgen(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command line in this process."""

    def run(*argv: str) -> Said:
        capfd.readouterr()
        code = main(argv)
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return run


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command line in its own session, as a terminal would; all are ended afterwards."""
    started: list[subprocess.Popen[str]] = []

    def run(*argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "deepgen", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=project,
            env=dict(os.environ),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate()
