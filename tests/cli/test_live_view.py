"""What a run shows while it runs fits in 80 columns, whatever happens in it."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from deepgen.tuning import Progress
from deepgen.view.live import clock, line, render

BUSY = Progress(
    phase="searching",
    asked=70,
    done=57,
    budget=200,
    resumed=20,
    built=60,
    verdicts={
        "correct": 50,
        "wrong": 3,
        "build_failed": 2,
        "crashed": 1,
        "out_of_memory": 1,
        "timed_out": 4,
        "unstable": 5,
    },
    last_failure="build_failed: kernel.c:3:\n error: " + "something long " * 20,
    best_seconds=1.021e-2,
    best_gflops=210.34,
    share_of_peak=0.782,
    elapsed=75.0,
    time_left=3723.0,
    builds_running=2,
    note="builds paused while the finals are timed " * 3,
)


def _text(progress: Progress) -> str:
    sink = StringIO()
    Console(file=sink, width=80, force_terminal=False).print(
        render("gemm f32 nn 1024x1024x1024 on x86:native", progress)
    )
    return sink.getvalue()


def test_the_view_tells_trials_failures_best_share_and_time_left() -> None:
    text = _text(BUSY)
    for part in (
        "57/200 trials",
        "built 60",
        "wrong 3",
        "build_failed 2",
        "last failure: build_failed: kernel.c:3: error",
    ):
        assert part in text
    for part in ("210.3 GFLOP/s", "78.2% of peak", "10.21 ms", "1:02:03 left", "searching 1:15", "builds paused"):
        assert part in text


@pytest.mark.parametrize("progress", [BUSY, Progress("preparing"), Progress("finals", budget=3, done=3)])
def test_nothing_is_wider_than_80_columns(progress: Progress) -> None:
    assert max(len(row) for row in _text(progress).splitlines()) <= 80
    assert len(_text(progress).splitlines()) <= 6
    assert len(line(progress)) <= 80


def test_one_line_tells_the_same() -> None:
    assert line(BUSY).startswith("searching: builds paused while")
    assert line(replace(BUSY, note=None)) == (
        "searching: 57/200 trials, 16 failed, best trial 210.3 GFLOP/s, 1:02:03 left"
    )


@pytest.mark.parametrize(("seconds", "text"), [(-1.0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
