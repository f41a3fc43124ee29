"""Shapes that were never tuned: what a library measures when it is asked to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen.cli.main import main
from deepgen.libraries import Library
from deepgen.libraries.entry import Rival
from deepgen.libraries.times import Times
from deepgen.vocabulary import BadInput

UNSEEN = dg.gemm(52, 70, 33)


def ours_is_behind(library: Library) -> None:
    """As if numpy were ten times as fast at every tuned shape."""
    for entry in library.list():
        fast = {name: Rival(entry.seconds / 10, 0.1, (0.09, 0.11)) for name in entry.timed[0].baselines}
        behind = replace(entry, timed=(replace(entry.timed[0], baselines=fast),))
        (library.path_of(entry) / "about.json").write_text(json.dumps(behind.to_json()))
    library.reload()


def test_the_first_use_of_a_shape_is_measured_and_kept(library: Library) -> None:
    ours_is_behind(library)
    assert library.choose(UNSEEN, "cpu").how == "vendor", "as predicted"
    measuring = dg.library(library.folder, dispatch="measure")
    choice = measuring.choose(UNSEEN, "cpu")
    [times] = dg.library(library.folder).content().times
    assert times.operator == UNSEEN and len(times.kernels) == 2 and "numpy" in times.baselines
    best = min({**times.kernels, **times.baselines}.items(), key=lambda row: row[1])
    assert choice.seconds == best[1] and "measured at this shape" in choice.reason
    assert (choice.how == "exact") == (best[0] in times.kernels)
    assert library.choose(UNSEEN, "cpu").how == "vendor", "a library that is open reads its folder once"
    assert dg.library(library.folder).choose(UNSEEN, "cpu").seconds == best[1], "and another process measures nothing"


def test_times_are_known_where_the_folder_cannot_be_written(library: Library) -> None:
    measuring = dg.library(library.folder, dispatch="measure")
    with library.store.changing():
        assert "measured at this shape" in measuring.choose(UNSEEN, "cpu").reason
    assert not dg.library(library.folder).content().times
    measuring.reload()
    assert len(measuring.content().times) == 1


def test_kernels_that_fail_at_a_shape_do_not_serve_it(library: Library) -> None:
    entry = next(e for e in library.list() if e.operator.name == "gemm")
    with library.store.changing():
        library.store.write_times(Times(UNSEEN, *entry.conditions, {}, {"numpy": 1e-6}))
    library.reload()
    choice = library.choose(UNSEEN, "cpu")
    assert (choice.how, choice.vendor) == ("vendor", "numpy")
    assert "it failed when it was timed at this shape" in choice.reason


def test_nothing_is_measured_where_nothing_serves(library: Library) -> None:
    measuring = dg.library(library.folder, dispatch="measure")
    assert measuring.choose(dg.gemm(64, 64, 64, dtype="f8e4m3"), "cpu").how == "none"
    assert not measuring.content().times


def test_another_word_for_dispatch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="dispatch is 'guess'"):
        dg.library(tmp_path / "library", dispatch="guess")


def test_why_can_measure_first(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["library", "why", "gemm", "M=52", "N=70", "K=33", "--target", "cpu", "--library", str(library.folder)]
    assert main([*words, "--measure"]) == 0
    assert "measured at this shape" in capsys.readouterr().out
    a, b = np.ones((52, 33), np.float32), np.ones((33, 70), np.float32)
    choice = dg.library(library.folder).choose(UNSEEN, "cpu")
    assert choice.entry is None or (choice.load()(a, b) == 33).all()
