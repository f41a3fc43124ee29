"""The page of messages shows what a user is told today: each message of it is provoked and compared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen.frontends.cli.main import main
from deepgen.run.call import arrays
from deepgen.run.call.arguments import Arguments
from deepgen.space import Space, parse
from deepgen.vocabulary import BadInput, DeepgenError
from deepgen.vocabulary.errors import DISTRIBUTION

PAGE = Path(__file__).parents[2] / "docs/messages.md"
ROW = re.compile(r"^\| `` ?(.+?) ?`` \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text())


def _bytes_apart() -> None:
    pairs = np.zeros(4, np.dtype([("x", np.float32), ("y", np.uint8)]))
    arrays.view(pairs["x"], "A")


def _unknown_name() -> None:
    space = Space("tiles")
    space.knob("BM", [16, 32])
    space.require(parse("BN > 1"), "width")


def _truth() -> None:
    space = Space("tiles")
    knob = space.knob("BM", [16, 32])
    bool(knob > 16)


def _gemm() -> Arguments:
    return Arguments(dg.gemm(8, 8, 8))


# What is written in the first column, for rows in which it is not a command line.
IN_PYTHON: dict[str, Callable[[], object]] = {
    "kernel([1, 2], b)": lambda: arrays.view([1, 2], "A"),
    "kernel(a.astype('>f4'), b)": lambda: arrays.view(np.zeros(4, ">f4"), "A"),
    "kernel(records['x'], b)": _bytes_apart,
    "kernel(a)": lambda: _gemm().sort([1], None, {}),
    "kernel(a, b, c)": lambda: _gemm().sort([1, 2, 3], None, {}),
    "kernel(a, b, gamma=g)": lambda: _gemm().sort([1, 2], None, {"gamma": 3}),
    "dg.tune('gemm')": lambda: dg.tune("gemm"),  # type: ignore[arg-type]
    "dg.gemm(0, 8, 8)": lambda: dg.gemm(0, 8, 8),
    "space.require(parse('BN > 1'), 'width')": _unknown_name,
    "if knob > 16:": _truth,
}


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """What the user is told after a command, or after a line of Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "two/a").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("no bundle")

    def told(what: str) -> str:
        if what in IN_PYTHON:
            with pytest.raises(DeepgenError) as raised:
                IN_PYTHON[what]()
            return str(raised.value)
        main(shlex.split(what)[1:])
        return " ".join(capfd.readouterr().err.removeprefix("deepgen: ").split())

    return told


def test_twenty_messages_are_shown() -> None:
    assert len(ROWS) >= 20
    assert set(IN_PYTHON) <= {what for what, _ in ROWS}


@pytest.mark.parametrize(("what", "message"), ROWS, ids=[row[0] for row in ROWS])
def test_a_message_is_what_the_page_shows(what: str, message: str, say: Callable[[str], str]) -> None:
    told = say(what)
    # A page leaves out what is long, such as a list of all families.
    parts = message.replace("`", "").split(" ...")
    assert told.startswith(parts[0]) and all(part.strip() in told for part in parts), told


def test_an_error_has_one_form() -> None:
    assert str(BadInput("what", where="where", allowed="allowed")) == "where: what (allowed)"
    assert DISTRIBUTION in PAGE.read_text()
