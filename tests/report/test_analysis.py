"""Explanations of the time: planted relations are found, noise leads to no findings, missing numbers stay missing.

DEEPGEN_NOISE_SETS=50 tries that many data sets of each kind of noise.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import cache

import drawn_trials as data
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepgen.report.analysis import Report, analyze, summary
from deepgen.report.analysis.explained import ranks, relations
from deepgen.report.analysis.numbers import columns_of, design, group_of, knobs_of, log_times, pulled_in
from deepgen.vocabulary import BadInput, DeepgenError

SETS = int(os.environ.get("DEEPGEN_NOISE_SETS", "2"))


@cache
def report_of(kind: str) -> Report:
    return analyze(data.PLANTED[kind][0](np.random.default_rng(7)))


@pytest.mark.parametrize("kind", data.PLANTED)
def test_what_is_planted_is_found(kind: str) -> None:
    assert data.PLANTED[kind][1](report_of(kind))


def test_noise_leads_to_no_findings() -> None:
    reported = [data.says_something(kind, seed) for kind in data.NOISE for seed in range(SETS)]
    assert sum(reported) <= data.ALLOWED * len(reported)


def test_correlations_are_those_of_the_textbooks() -> None:
    rows = data.PLANTED["confounded"][0](np.random.default_rng(2))
    time, columns = pulled_in(log_times(rows)), columns_of(rows)[0]
    found = {one.name: one for one in relations(columns, time, knobs_of(rows))}
    for column in columns:
        assert found[column.name].pearson.r == pytest.approx(np.corrcoef(column.values, time)[0, 1])
        ordered = [mean_ranks(values.tolist()) for values in (column.values, time)]
        assert found[column.name].spearman.r == pytest.approx(np.corrcoef(ordered)[0, 1])
    fixed = np.column_stack([np.ones(len(rows)), design(knobs_of(rows), fine=True)])
    event = next(column.values for column in columns if column.name == "event.l2_miss")
    left = [v - fixed @ np.linalg.lstsq(fixed, v, rcond=None)[0] for v in (event, time)]
    partial = found["event.l2_miss"].partial
    assert partial is not None and partial.r == pytest.approx(np.corrcoef(left)[0, 1])


def mean_ranks(values: list[float]) -> list[float]:
    return [(sum(v < x for v in values) + sum(v <= x for v in values) + 1) / 2 for x in values]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_equal_values_share_their_rank(values: list[int]) -> None:
    assert ranks(np.array(values, dtype=float)).tolist() == mean_ranks([*map(float, values)])


def test_the_summary_is_in_plain_words() -> None:
    linear, masked, confounded = map(report_of, ("linear", "masked", "confounded"))
    r = linear.findings[0].pearson.r
    assert summary(linear).startswith(
        f"time follows L2 misses (r = {r:.2f}), also with the knobs held fixed (partial r"
    )
    assert "with the knobs held fixed, time follows L2 misses (partial r = 0.9" in summary(masked)
    assert ", but not with the knobs held fixed (partial r = " in summary(confounded)
    assert "; BLOCK_K explains 8" in summary(confounded)
    assert "rank r = 0.9" in summary(report_of("monotone"))
    assert "explains" in summary(report_of("interaction")) and "together with" in summary(report_of("interaction"))
    noise = analyze(data.rows(np.random.default_rng(0)))
    assert summary(noise).startswith("nothing explains the time: none of ")


def test_the_threshold_and_the_groups() -> None:
    report = report_of("linear")
    assert [one.name for one in report.findings] == ["event.l2_miss"]
    cache = next(group for group in report.groups if group.name == "cache")
    assert (cache.related, cache.strongest) == (1, "event.l2_miss")
    assert replace(report, threshold=0.99).findings == ()
    with pytest.raises(BadInput, match="threshold is 2"):
        analyze([], threshold=2)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("event.cycles", "time"), ("event.gpu__time_duration.sum", "time"), ("event.stalled-cycles-backend", "control"),
        ("event.L1-dcache-load-misses", "cache"), ("event.lts__t_sectors_op_read.sum", "cache"),
        ("event.sm__pipe_tensor_cycles_active.avg", "vector"), ("event.vector_load_inst", "vector"),
        ("fact.spill_bytes", "memory"), ("event.dram__bytes_read.sum", "memory"), ("fact.code_bytes", "control"),
        ("event.branch-misses", "control"), ("fact.registers", "other"), ("knob.BLOCK_K", "knob"),
    ],
)  # fmt: skip
def test_names_tell_the_group(name: str, group: str) -> None:
    assert group_of(name) == group


def test_cycles_follow_the_time_by_definition() -> None:
    rows = data.rows(np.random.default_rng(1))
    for row in rows:
        row["event.cycles"] = 3e9 * row["seconds"]
    report = analyze(rows)
    assert [one.name for one in report.findings] == ["event.cycles"]
    assert "cycles" not in summary(report)


def test_an_event_that_was_not_counted_is_not_0() -> None:
    rows = data.PLANTED["linear"][0](np.random.default_rng(5))
    for row in rows[::2]:
        del row["event.l2_miss"]
    for row in rows[19:]:
        del row["event.vector_inst"]
    report = analyze(rows)
    found = report.findings[0]
    assert (found.name, found.trials) == ("event.l2_miss", 75) and found.pearson.r > 0.9
    assert report.scarce == ("event.vector_inst",)


def test_a_few_disturbed_trials_do_not_hide_a_knob() -> None:
    rows = data.PLANTED["confounded"][0](np.random.default_rng(4))[:60]
    for row in rows[::15]:
        row["seconds"] *= 200
    report = analyze(rows)
    assert [one.knob for one in report.important if one.share > 0.1] == ["BLOCK_K"]


def test_too_few_trials_are_refused() -> None:
    rows = data.rows(np.random.default_rng(0), 60)
    for row in rows[19:]:
        row.update(verdict="wrong", seconds=None)
    with pytest.raises(DeepgenError, match="19 correct trials are too few to analyze"):
        analyze(rows)


def test_equal_times_and_a_single_config_say_nothing() -> None:
    rows = [{**row, "seconds": 1e-3} for row in data.rows(np.random.default_rng(0), 30)]
    report = analyze(rows)
    assert (report.findings, report.important) == ((), ()) and summary(report).startswith("nothing")
    alike = [{"verdict": "correct", "seconds": 1e-3 + i, "knob.BM": 64} for i in range(30)]
    assert analyze(alike).knobs == ()


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=3), st.just([1, 2])
)
NAMES = st.sampled_from(["event.a", "event.b", "fact.c", "knob.d", "knob.e", "derived.f"])


@pytest.mark.slow
@settings(max_examples=8)
@given(st.data())
def test_rows_of_others_cannot_break_it(drawn: st.DataObject) -> None:
    rows = [
        {"verdict": "correct", "seconds": 1e-3 * (1 + i % 7), **drawn.draw(st.dictionaries(NAMES, JUNK))}
        for i in range(22)
    ]
    report = analyze(rows)
    estimates = [e for one in report.relations for e in (one.pearson, one.spearman, one.partial) if e is not None]
    assert all(math.isfinite(e.r) and abs(e.r) <= 1 + 1e-9 and 0 < e.p <= 1 for e in estimates)
    assert all(0 <= one.share <= 1 for one in report.knobs)
