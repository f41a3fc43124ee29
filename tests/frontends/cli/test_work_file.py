"""`deepgen tune work.json`: a model's operators are tuned by expected gain, and the winners fill a library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from deepgen import targets
from deepgen.frontends.cli import session
from deepgen.operators import gemm
from deepgen.operators.named import operator as named
from deepgen.tuning import Request, work
from deepgen.tuning.work import SHORT_SECONDS, RecordedPart, divided, ordered
from deepgen.vocabulary import BadInput, DeepgenError

LARGE, SMALL = gemm(64, 64, 64), gemm(8, 8, 8)
WORK = ordered("sim", [RecordedPart("aten::add", 4, 0.2), RecordedPart(SMALL, 2, 0.1), RecordedPart(LARGE, 1, 0.7)])


@given(
    gains=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12),
    seconds=st.floats(0.1, 1e4),
    least=st.floats(0.0, 100.0),
)
def test_a_budget_is_used_up_and_goes_where_most_is_gained(gains: list[float], seconds: float, least: float) -> None:
    parts = divided(gains, seconds, least)
    assert sum(parts) == pytest.approx(seconds)
    served = [part for part in parts if part > 0]
    assert served
    assert all(part >= least * 0.999 for part in served) or len(served) == 1
    for gain, part in zip(gains, parts, strict=True):
        assert all(part <= other * 1.001 for more, other in zip(gains, parts, strict=True) if more > gain)


def test_what_may_gain_little_is_tuned_too_where_time_suffices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of ten operators of a model's block, five once shared eight minutes, as torch was near the bound at the others:
    large products, which take most of the time.
    """
    gains = [0.037, 0.033, 0.025, 0.025, 0.011, 0.002, 0.002, 0.002, 0.002, 0.001]
    parts = divided(gains, 480.0)
    assert min(parts) > 20.0 and max(parts) > 2 * min(parts)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    request = Request(LARGE, targets.resolve("sim"), time_budget=480.0)
    for longer, tuned in ((1.0, 10), (1.2, 8)):  # studies that keep to their time, and some that exceed it
        now[0] = 0.0
        got = []
        for job in session.divided_among([session.TuningJob(request, tmp_path, gain) for gain in gains], 20.0):
            got.append(job.request.time_budget or 0.0)
            now[0] += longer * got[-1]
        assert len(got) == tuned and min(got) >= 20.0


def test_where_no_time_is_left_the_last_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It once got a millisecond, and the command ended with an error although all others were tuned."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    request = Request(LARGE, targets.resolve("sim"), time_budget=60.0)
    got = []
    for job in session.divided_among([session.TuningJob(request, tmp_path, 0.5)] * 2, 20.0):
        got.append(job)
        now[0] += 70.0
    assert len(got) == 1
    assert f"skipped (too little time left): {LARGE.describe()}" in capsys.readouterr().err


def test_time_that_a_study_leaves_over_goes_to_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    target = targets.resolve("sim")
    jobs = [
        session.TuningJob(Request(gemm(8 * i, 8, 8), target, time_budget=100.0), tmp_path, gain)
        for i, gain in ((1, 0.6), (2, 0.3), (3, 0.1))
    ]
    got: list[float | None] = []
    for job in session.divided_among(jobs, 0.0):
        got.append(job.request.time_budget)
        now[0] += 20.0  # less than the first gets, more than the last
    first, second, third = (50.0 / 3 + 50.0 * gain for gain in (0.6, 0.3, 0.1))
    assert got == [pytest.approx(first), pytest.approx(80.0 * second / (second + third)), pytest.approx(60.0)]
    now[0] = 0.0
    few = []
    for job in session.divided_among(jobs, 30.0):
        few.append((job.request.operator, job.request.time_budget))
        now[0] += 40.0
    assert [operator for operator, _ in few] == [job.request.operator for job in jobs[:2]], "two take 80 of 100 s"


def test_what_waits_is_tuned_where_others_end_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a model's three long studies one had all its configs after 5 of 40 seconds; the largest products, left out
    beforehand, would have had the time."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    target = targets.resolve("sim")
    jobs = [
        session.TuningJob(Request(gemm(8 * i, 8, 8), target, time_budget=60.0), tmp_path, gain)
        for i, gain in ((1, 0.6), (2, 0.3), (3, 0.02), (4, 0.01))
    ]
    got = []
    for job in session.divided_among(jobs, 20.0):
        got.append((job.request.operator, job.request.time_budget))
        now[0] += 15.0
    assert [operator for operator, _ in got] == [job.request.operator for job in jobs[:3]]
    assert got[2][1] == pytest.approx(30.0)


def test_what_a_library_has_already_comes_after_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second run once tuned the same products again, and the others again had no time left."""
    target = targets.resolve("sim")
    entries = [SimpleNamespace(operator=LARGE, target=target)]
    monkeypatch.setattr("deepgen.libraries.library", lambda folder: SimpleNamespace(list=lambda: entries))
    gain = session.gain_of(WORK, tmp_path)
    assert gain(Request(LARGE, target)) < gain(Request(SMALL, target)), "though it takes seven times as long"
    nowhere = session.gain_of(WORK, tmp_path / "none")
    assert nowhere(Request(LARGE, target)) > nowhere(Request(SMALL, target))


def test_what_only_works_on_elements_gets_a_short_study_before_products(tmp_path: Path) -> None:
    target = targets.resolve("sim")
    product, sums = LARGE, named("elementwise", rows=64, cols=64)
    little = named("elementwise", rows=8, cols=8)
    jobs = [
        session.TuningJob(Request(operator, target, time_budget=100.0), tmp_path, gain)
        for operator, gain in ((product, 0.3), (sums, 0.01), (little, 1e-6))
    ]
    got = [(job.request.operator, job.request.time_budget) for job in session.divided_among(jobs, 20.0)]
    assert [operator for operator, _ in got] == [sums, product], "one may not gain enough"
    assert got[0][1] == SHORT_SECONDS and (got[1][1] or 0.0) > 90.0, "a study that takes no time leaves all to the next"


def test_what_may_be_gained_is_less_where_the_device_is_used_well() -> None:
    """At the same share of the time, an operator near its bound has a smaller expected gain than one far from it."""
    h200 = targets.resolve("cuda:sm_90a")
    near, far = gemm(4096, 4096, 4096, dtype="bf16"), gemm(2048, 4096, 4096, dtype="bf16")
    seconds = near.work().flops / (h200.peak("bf16") or 1.0) / 1e9 / 0.8
    recorded = ordered("cuda:native", [RecordedPart(near, 1, seconds), RecordedPart(far, 1, seconds)])
    assert recorded.gain(near, h200) < 0.1 * recorded.gain(far, h200)


def test_what_is_as_short_as_a_launch_may_gain_little() -> None:
    """Small sums of a model were once tuned before large ones: 2 us, compared with 0.1 us for their bytes."""
    h200, sums = targets.resolve("cuda:sm_90a"), named("elementwise", rows=16, cols=4096, dtype="bf16")
    short, long = (
        ordered("cuda:native", [RecordedPart(sums, 1, us * 1e-6), RecordedPart("aten::mm", 1, 1e-3)])
        for us in (2.4, 8.0)
    )
    assert short.gain(sums, h200) < 0.0001 and long.gain(sums, h200) > 0.004


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    WORK.save(tmp_path / "work.json")
    assert work.from_json(json.loads((tmp_path / "work.json").read_text()), "work.json") == WORK
    assert [f"{WORK.share(part):.1f}" for part in WORK.parts] == ["0.7", "0.2", "0.1"]
    assert "gemm f32 nn 64x64x64" in str(WORK) and "70.0%" in str(WORK)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("format", "deepgen work 2", "deepgen work 1"),
        ("operators", 5, "deepgen.torch.record"),
        ("operators", [{"operator": {"name": "gemm"}}], "deepgen.torch.record"),
        ("operators", [{"name": "aten::add", "count": -1, "seconds": 1.0}], "count is -1"),
        ("operators", [{"name": "aten::add", "count": 1, "seconds": "long"}], "seconds is"),
    ],
)
def test_a_damaged_file_is_refused_in_words(key: str, value: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        work.from_json({**WORK.to_json(), key: value}, "work.json")


def test_operators_that_no_family_serves_are_named_and_the_others_tuned(
    deepgen: Callable[..., Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a small expected gain waits for the other's study, which ends long before its time."""
    monkeypatch.setattr(work, "LEAST_SECONDS", 400.0)  # the machine may be busy
    integers = gemm(8, 8, 8, dtype="i8")
    ordered("cpu", [*WORK.parts, RecordedPart(integers, 1, 0.3)]).save(project / "work.json")
    words = ("--trials", "2", "--baseline", "numpy", "--time-budget", "600", "--family", "c_gemm")
    said = deepgen("tune", "work.json", *words, "--json")
    assert said.code == 0, said.err
    assert f"not tuned: {integers.describe()}" in said.err
    added = [line for line in said.err.splitlines() if line.startswith("added in deepgen-library")]
    assert [line.rpartition(" ")[2] for line in added] == ["64x64x64", "8x8x8"]
    summary = said.json()["studies"][0]
    # On a loaded machine the budget may end before numpy has been timed; the summary then reports it.
    assert [row["name"] for row in summary["baselines"]] == ["numpy"] or "numpy" in str(summary["left_out"])
    listed = deepgen("library", "list", "--json").out
    assert "64x64x64" in listed and "8x8x8" in listed


def test_what_cannot_be_tuned_leaves_the_others_their_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of a model's operators once ended the command, as it was not built within its time."""

    def tuned(job: session.TuningJob, *_: Any, **__: Any) -> Any:
        if job.request.operator == LARGE:
            raise DeepgenError("the time budget ended before a kernel was measured")
        return SimpleNamespace(summary=lambda: {"winner": 1})

    monkeypatch.setattr(session, "_tune", tuned)
    target = targets.resolve("sim")
    jobs = [session.TuningJob(Request(one, target, time_budget=60.0), tmp_path) for one in (LARGE, SMALL)]
    now = partial(session.carry_out, on=None, go_on="", as_json=True, least=20.0, started=time.monotonic())  # type: ignore[arg-type]
    now(jobs)
    printed = capsys.readouterr()
    assert f"{LARGE.describe()}: the time budget ended" in printed.err and '"winner": 1' in printed.out
    with pytest.raises(typer.Exit):
        now(jobs[:1])


def test_a_file_without_anything_to_tune_is_refused(deepgen: Callable[..., Any], project: Path) -> None:
    ordered("cpu", [RecordedPart("aten::add", 1, 0.1)]).save(project / "work.json")
    said = deepgen("tune", "work.json")
    assert said.code == 2 and "none of its operators can be tuned" in said.err
