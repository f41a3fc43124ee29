"""The live view of a run fits the terminal, whatever happens in the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from deepgen.report.view.block import Spark, render, spark
from deepgen.report.view.live import clock, line, watching
from deepgen.tuning import Progress

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
    improved=((1, 3.1e-2), (4, 2.2e-2), (11, 1.8e-2), (23, 1.1e-2), (41, 1.021e-2)),
    spent={"building": 30.0, "measuring": 35.0, "verifying": 0.0, "waiting": 0.0, "search": 5.0},
    note="builds paused while the finals are timed " * 3,
)


def _text(progress: Progress, width: int = 80) -> str:
    sink = StringIO()
    Console(file=sink, width=width, force_terminal=False).print(
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


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_view_fits_the_terminal(width: int, golden: Callable[[str, str], str]) -> None:
    for name, progress in (("busy", BUSY), ("first", Progress("preparing")), ("last", Progress("finals", budget=3))):
        rows = [row.rstrip() for row in _text(progress, width).splitlines()]
        assert max(map(len, rows)) <= width
        assert len(rows) <= (9 if width >= 80 else 15)
        assert len(line(progress)) <= 80
        assert not golden(f"terminal/live-{name}-{width}.txt", "\n".join(rows) + "\n")


def test_a_narrow_view_keeps_all_counts() -> None:
    told = " ".join(_text(BUSY, 40).split())
    assert "out_of_memory 1, timed_out 4, unstable 5, from an earlier run 20" in told
    assert "building 2, queued or running 11; time: building 43%, measuring 50%, search 7%" in told


def test_the_line_of_blocks_rises_with_the_best_so_far() -> None:
    assert spark([(1, 4.0), (3, 2.0), (4, 1.0)], 6, 10) == "▁▁▃███"
    assert spark([(1, 4.0), (3, 2.0), (4, 1.0)], 6, 3) == "▁▃█"
    assert spark([(2, 4.0)], 5, 10) == "████"
    assert spark([], 5, 10) == ""


def test_the_line_of_blocks_is_plain_where_the_terminal_is() -> None:
    sink = StringIO()
    drawn = Console(file=sink, width=40, force_terminal=False)
    drawn.print(Spark("so far", BUSY.improved, BUSY.done), end="")
    assert "█" in sink.getvalue()
    options = drawn.options.copy()
    options.encoding = "ascii"
    text = "".join(segment.text for segment in drawn.render(Spark("so far", BUSY.improved, BUSY.done), options))
    assert text.isascii() and "@" in text


def test_one_line_tells_the_same() -> None:
    assert line(BUSY).startswith("searching: builds paused while")
    assert line(replace(BUSY, note=None)) == (
        "searching: 57/200 trials, 16 failed, best trial 210.3 GFLOP/s, 1:02:03 left"
    )
    assert line(replace(BUSY, phase="done", budget=1)).startswith("done: 57/57 trials")  # of an earlier, larger budget


PHASES = {"preparing": 1.2, "search": 40.0, "verifying finalists": 3.4, "timing finalists and baselines": 12.0}


def test_the_phases_are_told_with_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    finals = replace(BUSY, phase="finals", note="timing 4 finalists side by side", time_left=26.0, phases=PHASES)
    assert line(finals) == "finals, 0:26 left: timing 4 finalists side by side"
    told = " ".join(_text(finals).split())
    assert "time: preparing 0:01, search 0:40 (75% waiting for builds), verifying finalists 0:03, timing" in told
    with watching("a study", quiet=False) as watch:
        watch(replace(finals, phase="done", elapsed=56.6))
    written = capsys.readouterr().err
    assert max(map(len, written.splitlines())) <= 80
    assert "time: 56.6 s: preparing 1.2, search 40.0, verifying finalists 3.4, timing\n" in written


def test_a_log_is_told_of_a_note_once_whatever_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with watching("a study", quiet=False) as watch:
        for share in (97, 98, 100):
            watch(replace(BUSY, phase="finals", note=f"waiting for a quiet machine: others took {share}%"))
            watch(replace(BUSY, phase="finals", note=f"waiting for a quiet machine: the hypervisor took {share}%"))
        watch(replace(BUSY, phase="finals", note="timing 8 finalists"))
    assert capsys.readouterr().err.count("waiting for a quiet machine") == 1


@pytest.mark.parametrize(("seconds", "text"), [(-1.0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
