"""The output of commands, at the width of a phone, of a usual terminal and of a wide one; golden files contain all of
it.

The study and the doctor's results are recordings, so the text is the same on every machine.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deepgen.frontends.cli import doctor
from deepgen.report.view import printable
from deepgen.report.view.block import render
from deepgen.report.view.live import line
from deepgen.tuning import Progress
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.journal import Journal, Proposal
from deepgen.vocabulary import Measurement, Trial

RECORDED = Path(__file__).parent / "recorded"
WIDTHS = (40, 80, 200)
COMMANDS = {
    "show": ("show", "STUDY"),
    "trial": ("show", "STUDY", "--trial", "7"),
    "failed": ("show", "STUDY", "--trial", "8"),
    "top": ("top", "STUDY"),
    "status": ("status",),
    "why": ("space", "gemm", "MNK=4096", "--dtype", "bf16", "--target", "cuda:sm_90a", "--why"),
    "doctor": ("doctor",),
}
# Paths, and lines to be copied into a shell or into Python, stay on one line: the terminal may wrap them.
ONE_PIECE = re.compile(r" *\S+|\w+ +\S+|    (sudo|echo|cd) .*|folder = .*|kernel = .*")
ATTACK = "\x1b]0;title\x07\x1b[2J\x9b1m\u202ereversed\r\x08"


def write_study(recording: dict[str, Any], folder: Path) -> Path:
    """The recorded study as a journal."""
    trials = [Trial(**{**row, "measurement": Measurement.from_json(row["measurement"])}) for row in recording["trials"]]
    with Journal(folder / recording["name"], write=True) as journal:
        journal.define(recording["definition"])
        journal.begin_run(recording["run"])
        journal.ask(0, len(trials), [Proposal(t.id, t.rank, dict(t.config)) for t in trials])
        journal.finish(trials)
        journal.add_finals(Finals.from_json(recording["finals"]))
        journal.add_time(recording["time"])
    return journal.folder


@pytest.fixture
def study(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = json.loads((RECORDED / "doctor.json").read_text())
    monkeypatch.setattr(doctor, "examine", lambda settings: found)
    return write_study(json.loads((RECORDED / "study.json").read_text()), project / "deepgen-studies")


@pytest.mark.parametrize("command", COMMANDS)
def test_output_fits_the_terminal(
    command: str,
    study: Path,
    deepgen: Callable,
    golden: Callable[[str, str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        said = deepgen(*(study.name if word == "STUDY" else word for word in COMMANDS[command]))
        assert (said.code, said.err) == (0, "")
        lines = [row.rstrip() for row in said.out.splitlines()]
        wide = [row for row in lines if len(row) > width and not ONE_PIECE.fullmatch(row)]
        assert not wide, f"wider than {width} columns"
        assert "\x1b" not in said.out, "not a terminal"
        assert not golden(f"terminal/{command}-{width}.txt", "\n".join(lines) + "\n")


def test_a_narrow_terminal_hides_no_config(study: Path, deepgen: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        words = deepgen("top", study.name).out.split()
        texts.append(sorted(word for word in words if "=" in word))
    assert texts[0] == texts[1] == texts[2] and texts[0]


@pytest.mark.parametrize("on_terminal", [True, False])
def test_only_a_terminal_gets_styles(study: Path, on_terminal: bool) -> None:
    command = [sys.executable, "-m", "deepgen", "top", study.name]
    styled = {**os.environ, "TERM": "xterm"}
    if not on_terminal:
        assert b"\x1b" not in subprocess.run(command, env=styled, check=True, stdout=subprocess.PIPE).stdout
        return
    ours, theirs = pty.openpty()
    subprocess.run(command, env=styled, check=True, stdout=theirs)
    os.close(theirs)
    assert b"\x1b[1m" in os.read(ours, 1 << 16)
    os.close(ours)


def test_text_of_a_study_cannot_control_the_terminal(
    project: Path, deepgen: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = json.loads((RECORDED / "study.json").read_text())
    recording["name"] = "study\x1b[2J"
    recording["definition"]["facts"]["describe"] += ATTACK
    recording["finals"]["baselines"][0]["name"] += ATTACK
    recording["finals"]["waited"]["disturbed"] += ATTACK
    for row in recording["trials"]:
        row["measurement"]["detail"] += ATTACK
        row["measurement"]["conditions"]["kind"] = ATTACK
        row["build_facts"]["compiler"] = ATTACK
        row["config"]["PACK_B"] = ATTACK
    name = write_study(recording, project / "deepgen-studies").name
    for width in ("40", "200"):
        monkeypatch.setenv("COLUMNS", width)
        for words in (("status",), ("top", name), ("show", name), ("show", name, "--trial", "8"), ("stop", name)):
            said = deepgen(*words)
            assert said.code == (1 if words[0] == "stop" else 0), said.err
            assert "\\x1b" in said.out + said.err
            assert printable(said.out + said.err) == said.out + said.err


def test_progress_cannot_control_the_terminal() -> None:
    progress = Progress("searching", last_failure=ATTACK, note=ATTACK)
    sink = StringIO()
    Console(file=sink, width=80, force_terminal=False).print(render(f"gemm {ATTACK}", progress))
    for text in (sink.getvalue(), line(progress)):
        assert printable(text) == text and "\\x1b" in text


def test_what_is_written_out_and_what_stays() -> None:
    assert printable("naïve 数 x\ty\nz") == "naïve 数 x\ty\nz"
    assert printable("\x1b[31m\x7f\x85\u2066\ud800") == "\\x1b[31m\\x7f\\x85\\u2066\\ud800"
