"""The live pages in a real browser, with a real study and a real server."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hostile_text import HOSTILE
from served import PATIENCE, Writer, serving, started

from deepgen.frontends.cli.main import main
from deepgen.tuning import Study
from deepgen.vocabulary import Verdict

MS = 1000 * PATIENCE
# The lowest contrast between any visible text and its background, by the rules of WCAG.
CONTRAST = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts(text).map((x) => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (parts(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  let least = 21;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode()); ) {
    const one = node.parentElement;
    if (!node.textContent.trim() || !one.checkVisibility() || one.closest("svg, script, style")) continue;
    const [a, b] = [light(getComputedStyle(one).color), light(ground(one))].sort((x, y) => y - x);
    least = Math.min(least, (a + 0.05) / (b + 0.05));
  }
  return least;
}"""


class Watch:
    """Errors that a page must not cause."""

    def __init__(self, page: Any) -> None:
        self.errors: list[str] = []
        self.asked: set[str] = set()
        page.set_default_timeout(MS)
        page.on("console", lambda said: self.errors.append(said.text) if self._counts(said) else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.asked.add(re.sub(r"^(\w+://[^/]+).*", r"\1", request.url)))

    @staticmethod
    def _counts(said: Any) -> bool:
        """Browsers report every request that a stopped server does not answer."""
        return said.type == "error" and not re.search(
            "ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|status of 503", said.text
        )


def until(page: Any, what: str, arg: object = None) -> None:
    """Wait until an expression holds. (Playwright's own method evaluates code from a string, which
    the page forbids.)
    """
    deadline = time.monotonic() + PATIENCE
    while not page.evaluate(f"(arg) => {what}", arg):
        assert time.monotonic() < deadline, f"{what} of {arg}: {page.inner_text('body')[:2000]}"
        page.wait_for_timeout(50)


def done(page: Any, more_than: int) -> int:
    """The number of ended trials on the page, once it exceeds this."""
    until(page, "Number(document.querySelector('[data-live=ended]')?.textContent) > arg", more_than)
    return int(page.text_content("[data-live=ended]"))


def charted(page: Any, count: int) -> None:
    """Wait until the charts have exactly this many trials."""
    until(page, "window.deepgenReport?.columns().trial?.length === arg", count)


@pytest.mark.slow
def test_a_page_follows_its_study_through_a_restart_and_stops_it(browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    slow = ("--target", "sim:measure_seconds=0.5", "--strategy", "random", "--trials", "9000")
    with started("tune", "gemm", "MNK=64", *slow, "--out", str(out)) as tuning:
        _follow(browser.new_page(), out, tuning)


def _follow(page: Any, out: Path, tuning: subprocess.Popen[str]) -> None:
    watch = Watch(page)
    with serving(out) as served:
        page.goto(f"http://{served.host}/?token={served.rules.token}")
        page.wait_for_selector("#studies a", timeout=MS)
        assert "token" not in page.url
        page.focus("#studies a")
        changes = page.text_content("#studies tbody")
        until(page, "document.querySelector('#studies tbody').textContent !== arg", changes)
        page.keyboard.press("Enter")  # the focused element keeps the focus while the list changes
        page.wait_for_selector("html[data-ready]", timeout=MS)
        seen = done(page, 1)
        drawn = page.evaluate("deepgenReport.columns().trial?.length || 0")
        until(page, "deepgenReport.columns().trial?.length > arg", drawn)
        page.evaluate("window.kept = true")  # lost on the next load, if there is one
    until(page, "document.getElementById('connection').textContent.includes('again')")
    seen = done(page, 0)
    with serving(out, port=served.port):
        seen = done(page, seen)
        page.on("dialog", lambda dialog: dialog.accept())
        page.focus("[data-stop]")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('message').textContent.includes('stopped. Resume')")
        tuning.communicate(timeout=PATIENCE)
        (folder,) = out.iterdir()
        study = Study.open(folder)
        ended = len(study.trials())
        page.wait_for_selector("header .state.stopped", timeout=MS)
        charted(page, ended)
        assert done(page, ended - 1) == ended >= seen
        assert page.is_hidden("[data-stop]")

        assert main(["resume", str(folder), "--trials", str(ended + 2), "--json"]) == 0
        page.wait_for_selector("header .state.finished", timeout=MS)
        now = len(study.trials())
        charted(page, now)
        assert done(page, ended) == now >= ended + 2
        assert page.evaluate("window.kept") is True
        assert not watch.errors and watch.asked == {f"http://{served.host}"}
        page.close()


def test_pages_are_readable_and_hostile_texts_harmless(browser: Any, hostile: Study, tmp_path: Path) -> None:
    folder = tmp_path / "s" / "study <img src=x onerror=alert(3)>"
    shutil.copytree(hostile.folder, folder)
    with Writer(folder) as writer, serving(tmp_path / "s") as served:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        watch = Watch(page)
        page.on("dialog", lambda dialog: watch.errors.append("a script of a study ran"))
        page.goto(f"http://{served.host}/?token={served.rules.token}")
        page.wait_for_selector("#studies a", timeout=MS)
        _readable(page)
        page.click("#studies a")
        page.wait_for_selector("html[data-ready]", timeout=MS)
        writer.end(1, Verdict.BUILD_FAILED, HOSTILE, host=HOSTILE)
        page.wait_for_selector("#latest:not([hidden])", timeout=MS)
        page.click("#latest summary")
        page.click("#devices summary")
        _readable(page)
        assert "alert(1)" in page.text_content("#latest")
        assert not watch.errors and watch.asked == {f"http://{served.host}"}
        page.close()


def _readable(page: Any) -> None:
    """In light and dark, on a phone and on a screen: every text is readable, and nothing exceeds the width."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            # A busy browser may not have updated the layout yet.
            page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width, timeout=MS)
            assert page.evaluate(CONTRAST) >= 4.5
