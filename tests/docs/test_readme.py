"""What the README shows is what was measured, and what it links to is there."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ANCHOR = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import readme_results

    return readme_results


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import readme_terminal

    return readme_terminal


def test_the_table_and_the_chart_show_the_committed_results(results: Any) -> None:
    found = results.rows()
    remedy = "run `python benchmarks/readme_results.py --write`"
    page = (ROOT / "README.md").read_text()
    assert results.written(page, results.table(found)) == page, remedy
    for dark, path in results.CHARTS.items():
        assert results.chart(found, dark) == path.read_text(), remedy


@pytest.mark.parametrize(
    ("ratio", "words"), [(1.078, "8% faster"), (0.98, "2% slower"), (1.004, "equal"), (2.77, "2.8 times as fast")]
)
def test_a_ratio_reads_as_faster_or_slower(results: Any, ratio: float, words: str) -> None:
    assert results.speedup(ratio) == words


def test_the_terminal_shows_the_recorded_run(terminal: Any) -> None:
    recording = json.loads(terminal.RECORDING.read_text())
    told = text_of((ROOT / "docs/terminal.svg").read_text())
    assert told == text_of(terminal.draw(recording)), "run `python benchmarks/readme_terminal.py`"
    for line in (f"$ {recording['command']}", *recording["result"].splitlines()):
        assert "".join(line.split()) in told


def text_of(svg: str) -> str:
    """What a picture says, without spaces: how it is drawn differs from one version of rich to the next."""
    return "".join(unescape("".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))).split())


def test_the_demo_is_the_recorded_run_and_its_search_gained(terminal: Any) -> None:
    recording = json.loads(terminal.RECORDING.read_text())
    assert recording["command"] == terminal.COMMAND
    assert f"/{terminal.COMMAND}\n" in (ROOT / "Makefile").read_text()
    assert recording["over_default"]["interval"][0] > 1.02, "the demo shows a case in which the search gains"
    assert recording["seconds"] <= 60, "the README says about a minute"
    assert terminal.sentence(recording) in (ROOT / "README.md").read_text(), (
        "run `python benchmarks/readme_terminal.py`"
    )


def test_every_link_leads_to_a_file() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    missing = [f"{page.name}: {link}" for page in pages for link in LINK.findall(prose(page)) if not there(page, link)]
    assert not missing


def prose(page: Path) -> str:
    """A page without its blocks of code, where brackets and parentheses mean something else."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def there(page: Path, link: str) -> bool:
    path = page.parent / link
    # Pages that are made with the site; its strict build follows links to them (test_site.py).
    return path.exists() or any(path.is_relative_to(ROOT / "docs" / made) for made in ("reference", "results"))


def test_every_link_into_a_page_leads_to_a_heading() -> None:
    missing = []
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for file, anchor in ANCHOR.findall(prose(page)):
            text = (page.parent / file if file else page).read_text()
            if anchor not in {anchor_of(line) for line in text.splitlines() if line.startswith("#")}:
                missing.append(f"{page.name}: {file}#{anchor}")
    assert not missing


def anchor_of(heading: str) -> str:
    """As GitHub makes it: in small letters, spaces as hyphens, without punctuation."""
    return re.sub(r"[^\w -]", "", heading.lstrip("# ").lower()).replace(" ", "-")
