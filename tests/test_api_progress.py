"""A run started by a script can be watched and interrupted like one from the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from rich import console as rich_console

import deepgen as dg
from deepgen.report.view.block import as_html, render

SCRIPT = """
import deepgen as dg

try:
    words = {"trials": 1000, "strategy": "random", "progress": True, "out": "mine"}
    dg.tune(dg.gemm(256, 256, 256), target="sim:measure_seconds=0.05", **words)
except KeyboardInterrupt as end:
    print(end)
"""
TITLE = "gemm f32 nn 64x64x64 on sim"


def _tune(tmp_path: Path, **given: object) -> dg.Study:
    return dg.tune(dg.gemm(64, 64, 64), target="sim", trials=2, out=tmp_path, **given)


def test_ctrl_c_ends_a_script_cleanly_and_loses_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "searching" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "stopping" in err and "Traceback" not in err
    assert out.startswith("stopped after ") and "repeat the call to resume" in out
    (folder,) = (tmp_path / "mine").iterdir()
    assert f"{len(dg.Study.open(folder).trials())} trials" in out


def test_a_script_that_hears_signals_itself_is_left_alone(tmp_path: Path) -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        study = _tune(tmp_path, watch=lambda _: os.kill(os.getpid(), signal.SIGINT) if not heard else None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard and len(study.trials()) == 2


def test_it_runs_in_a_thread_too(tmp_path: Path) -> None:
    studies: list[dg.Study] = []
    thread = threading.Thread(target=lambda: studies.append(_tune(tmp_path)))
    thread.start()
    thread.join()
    assert len(studies[0].trials()) == 2


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, True)])
def test_progress_is_shown_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: bool | None, shown: bool
) -> None:
    _tune(tmp_path, progress=progress)
    out, err = capsys.readouterr()
    assert out == "" and (TITLE in err) is shown


class Shown(list[str]):
    """Replaces IPython's display: what a cell showed, in order."""

    def display(self, html: str, display_id: bool) -> Shown:
        assert display_id, "one block is updated; a new one for each moment would fill the page"
        return self

    def update(self, html: str) -> None:
        self.append(html)


def test_a_notebook_shows_progress_in_one_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown()
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=shown.display))
    monkeypatch.setattr(rich_console, "_is_jupyter", lambda: True)
    _tune(tmp_path)
    assert TITLE in shown[0] and "done" in shown[-1], "a saved notebook keeps the last moment"
    assert "2/2 trials" in shown[-1]
    assert capsys.readouterr() == ("", ""), "stderr is a red box in a notebook"


def test_a_notebook_is_safe_from_what_a_run_says() -> None:
    block = as_html(render("<script>x</script>", dg.Progress("searching", last_failure="<b>\x1b[2J")))
    assert "<script>" not in block and "<b>" not in block and "\x1b" not in block


def test_who_watches_needs_no_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seen: list[dg.Progress] = []
    watch: Callable[[dg.Progress], None] = seen.append
    _tune(tmp_path, watch=watch)
    assert seen[-1].phase == "done" and capsys.readouterr().err == ""
