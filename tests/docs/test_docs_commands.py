"""Every command that the documentation shows for running does run.

A block whose fence says `sh run` or `python run` is run, in the order of the page, in one temporary folder a page. A
block that says `file=NAME` is written there as that file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import preloaded
import pytest

import needs
from deepgen.frontends.cli.main import app_for

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^```(?P<language>\w+) +(?P<what>run|file=(?P<file>\S+)) *\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """Something of a page that is run or written."""

    language: str
    file: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(m["language"], m["file"], m["text"]) for m in FENCE.finditer(page.read_text())]


PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))) if blocks(page)]


def command(block: Block) -> list[str]:
    return {"sh": ["bash", "-euo", "pipefail", "-c", block.text], "python": ["at-once", block.text]}[block.language]


@pytest.fixture(scope="module")
def preloaded_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with preloaded.command(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page(
    page: Path, tmp_path: Path, preloaded_command: Path, request: pytest.FixtureRequest
) -> None:
    if not any("torch" in block.text for block in blocks(page)):
        request.getfixturevalue("without_torch")
    if page.name == "riscv.md":
        needs.qemu()
        pytest.importorskip("triton")
    if page.name == "torch.md":
        pytest.importorskip("torch")
    if page.name == "triton-cpu.md":
        pytest.importorskip("triton")
    # The commands of this very environment come first.
    path = os.pathsep.join(map(str, (preloaded_command, Path(sys.executable).parent, os.environ["PATH"])))
    for block in blocks(page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
            continue
        done = subprocess.run(
            command(block), cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{page.name}:\n{block.text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr


def test_the_guide_shows_every_command() -> None:
    shown = {
        word for page in PAGES for b in blocks(page) for word in re.findall(r"^deepgen (\w+)", b.text, re.MULTILINE)
    }
    assert shown >= {command.name for command in app_for([]).registered_commands} | {"space"}
