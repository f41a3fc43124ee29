"""The site is built without a warning, and is read without a network: nothing of it is fetched from a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import deepgen
from deepgen.frontends.cli.main import app_for

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\s(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    if not (ROOT / "mkdocs.yml").exists():
        pytest.skip("not a checkout")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.mark.slow
def test_nothing_is_fetched_from_a_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    fetched = {address for page in pages for address in FETCHED.findall(page.read_text())}
    assert len(pages) > 100 and not fetched


def test_every_command_and_every_name_of_the_api_has_a_place(site: Path) -> None:
    commands = {path.stem for path in (site / "reference/commands").glob("*.html")}
    assert commands >= {command.name for command in app_for([]).registered_commands}
    tune = (site / "reference/commands/tune.html").read_text()
    assert '<td><code class="word">--time-budget</code> <code>TIME</code></td>' in tune
    assert not [name for name in deepgen.__all__ if not (getattr(deepgen, name).__doc__ or "").strip()]
    api = "".join(page.read_text() for page in (site / "reference/api").glob("*.html"))
    assert not [name for name in deepgen.__all__ if f'id="{name}"' not in api]


def test_results_are_those_of_the_committed_files(site: Path) -> None:
    rows = json.loads((ROOT / "benchmarks/h200/gemm_bf16_nt.json").read_text())["rows"]
    assert f"<td>{rows[0]['us']['ours']:.1f}</td>" in (site / "results/h200.html").read_text()


def test_marks_for_the_tests_are_not_shown(site: Path) -> None:
    shown = (site / "own-kernels.html").read_text()
    assert "file=scale.c" not in shown and ">scale.c</span>" in shown
    assert not [page.name for page in site.glob("*.html") if "```" in page.read_text()], "fences that are not blocks"


def test_the_gallery_has_eight_examples_with_a_picture_each(site: Path) -> None:
    pictures = re.findall(r'<img alt="[^"]+" src="(pictures/gallery/[^"]+)"', (site / "gallery.html").read_text())
    assert len(pictures) == 8 and all((site / picture).stat().st_size < 50_000 for picture in pictures)


def test_the_gallery_shows_the_demo_as_it_was_recorded() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/readme_terminal.json").read_text())
    picture = (ROOT / "docs/pictures/gallery/against.svg").read_text()
    for ratio in (recorded["over_default"]["ratio"], *recorded["baselines"].values()):
        assert f">{ratio:.2f}</text>" in picture, "run `python website/pictures.py against`"


def test_search_knows_the_pages(site: Path) -> None:
    index = (site / "search/search_index.js").read_text()  # as a script: files cannot be fetched from file://
    assert index.startswith("var __index = ") and "Ten minutes on a CPU" in index
