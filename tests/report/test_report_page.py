"""Reports in a real browser: no errors, no requests, everything is there at every width."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hostile_text import HOSTILE

from deepgen.frontends.cli.main import main
from deepgen.report.charts import check_libraries
from deepgen.tuning import Study
from deepgen.vocabulary import Missing

try:
    check_libraries()
except Missing as missing:
    pytest.skip(str(missing), allow_module_level=True)

WIDTHS = (2500, 1280, 400)  # pixels
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
ALL_DRAWN = "[...document.querySelectorAll('[data-chart]')].every((one) => one.dataset.drawn)"


@dataclass
class Opened:
    """A page, and the messages of the browser."""

    page: Any
    problems: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return [str(text) for text in self.page.locator(selector).all_inner_texts()]

    def text(self, selector: str = "body") -> str:
        return " ".join(self.texts(selector))

    def charts(self) -> set[str]:
        found = self.page.locator("[data-chart]").evaluate_all("all => all.map((one) => one.dataset.chart)")
        return set(found)


CHARTS_OUTSIDE = """[...document.querySelectorAll("figure svg")].filter(
    (one) => one.getBoundingClientRect().right > one.closest("figure").getBoundingClientRect().right + 1).length"""

WIDEST_CHART = """Math.max(...[...document.querySelectorAll("figure svg")].map((one) => one.clientWidth))"""


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    """Open a page, draw all of its charts, and check it at every width."""
    pages = []

    def open_page(html: str, *, printed: bool = False, **look: Any) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(html, encoding="utf-8")
        assert file.stat().st_size < 2.5e6
        page = browser.new_page(viewport={"width": WIDTHS[0], "height": 900}, **look)
        page.set_default_timeout(180_000)  # a busy machine is not a failure
        pages.append(page)
        seen = Opened(page)
        page.on("console", lambda said: seen.problems.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("dialog", lambda dialog: (seen.problems.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda asked: seen.problems.append(asked.url) if asked.url != file.as_uri() else None)
        page.goto(file.as_uri())
        if printed:
            assert not page.evaluate(ALL_DRAWN)  # only those in view
            page.pdf()
            assert page.evaluate(ALL_DRAWN)
            page.emulate_media(media="print")  # on paper that is narrower than the window was
            page.set_viewport_size({"width": 500, "height": 900})
            assert page.evaluate(CHARTS_OUTSIDE) == 0
            page.emulate_media(media="screen")
            page.set_viewport_size({"width": WIDTHS[0], "height": 900})
            page.reload()
        for event in ("beforeprint", "afterprint"):
            page.evaluate(f"dispatchEvent(new Event('{event}'))")
            page.wait_for_function(ALL_DRAWN)
            if seen.charts():
                assert (page.evaluate(WIDEST_CHART) < 710) == (event == "beforeprint"), "paper is narrower"
            assert event == "afterprint" or not page.locator("[data-tone=dark]").count(), "paper is white"
        assert page.locator("[data-drawn=failed]").count() == 0
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(SIDEWAYS) <= 0, f"it scrolls sideways at {width} pixels"
        assert seen.problems == []
        return seen

    yield open_page
    for page in pages:
        page.close()


def report(*names: str | Path, folder: Path) -> str:
    file = folder / "made.html"
    assert main(["report", *map(str, names), "-o", str(file)]) == 0
    return file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_study_on_this_processor(opened: Any, cpu: Study, tmp_path: Path) -> None:
    seen = opened(report(cpu.folder, folder=tmp_path))
    assert seen.charts() >= {"ratios", "roofline", "history", "over-time", "heatmap", "parallel", "verdicts", "time"}
    result = seen.text("#result")
    assert "99% interval" in result and "numpy" in result and "the default" in result
    assert "6 correct trials are too few" in seen.text("#knobs")
    assert "load average" in seen.text("#conditions")
    assert "deepgen tune gemm M=32 N=32 K=32" in seen.text("#reproduce")
    code = seen.text("#code summary")
    assert all(source.name in code for source in cpu.best().kernel.sources) and "Assembly" in code
    # The text alternative of charts.
    names = seen.page.locator("[data-chart]").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert all(len(name) > 30 for name in names)
    headings = seen.page.locator("h1, h2").all_inner_texts()
    assert len(headings) == len(set(headings)) >= 9


def test_failures_knobs_keys_and_print(opened: Any, sim: Study, tmp_path: Path) -> None:
    seen = opened(report(sim.folder, folder=tmp_path), printed=True, color_scheme="dark")
    assert {"importance", "heatmap", "parallel", "knob-k0", "knob-k6"} <= seen.charts()
    assert "explains" in seen.text("#knobs")
    assert "build_failed" in seen.text("#verdicts-part")
    assert seen.page.locator("#history svg path[aria-roledescription=point]").count() >= 60
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"
    # Everything that can be opened or scrolled can be reached without a mouse.
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        if seen.page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    seen.page.keyboard.press("Enter")
    assert seen.page.locator("details[open] > summary:focus").count() == 1


def test_a_recorded_study_of_an_h200(opened: Any, h200: Study, tmp_path: Path) -> None:
    seen = opened(report(h200.folder, folder=tmp_path))
    assert "recorded elsewhere" in seen.text("header") and "NVIDIA H200" in seen.text("header")
    assert "No finals were held" in seen.text("#result")
    assert "29" in seen.text("#conditions") and "1980 MHz" in seen.text("#conditions")
    assert "does not name the kernel" in seen.text("#code")
    assert "peak 989.4 TFLOP/s" in seen.text("#roofline")


def test_a_cluster_run(opened: Any, cluster_run: Path, tmp_path: Path) -> None:
    seen = opened(report(cluster_run, folder=tmp_path))
    assert "a-run" in seen.text("h1") and seen.charts() == {"ratios"}
    assert "none of 8 kernels computed a correct result" in seen.text("#groups")
    assert len(seen.texts("#overview tbody tr")) == 2
    assert "No winner" in seen.text("main")


def test_a_failed_study_and_one_that_is_empty(opened: Any, failed: Study, empty: Study, tmp_path: Path) -> None:
    seen = opened(report(failed.folder, folder=tmp_path))
    assert "No winner" in seen.text("#result") and "failed: no correct kernel" in seen.text("header")
    assert len(seen.texts("#verdicts-part pre")) >= 3
    seen = opened(report(empty.folder, folder=tmp_path))
    assert "No trials yet" in seen.text("#result") and seen.charts() == set()


def test_hostile_texts_are_only_texts(opened: Any, hostile: Study, tmp_path: Path) -> None:
    html = report(hostile.folder, folder=tmp_path)
    assert html.count("<script") == 3 and "<img src=x" not in html
    seen = opened(html)
    assert HOSTILE.partition("\x1b")[0] in seen.text("#verdicts-part")
    assert len(seen.charts()) >= 9
