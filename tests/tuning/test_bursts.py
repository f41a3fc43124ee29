"""A ratio is reported only if bursts and interleaved rounds agree and no thread waits for a core; libraries take no
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_finals import Arena, kernel, trial

import deepgen as dg
from deepgen import targets
from deepgen.frontends.cli.result import print_result
from deepgen.report.words import compared
from deepgen.run.measure import conditions
from deepgen.run.measure.base import BURST, CALL, SINGLE, Contender, Task
from deepgen.tuning.finals import run_finals
from deepgen.tuning.study.finals import Finals, RacedBaseline
from deepgen.tuning.study.journal import Journal
from deepgen.vocabulary import DeepgenError, Measurement, Verdict

pytestmark = pytest.mark.usefixtures("noticing")
TASK = Task(dg.gemm(200, 200, 200), targets.resolve("cpu"))
QUIET = {"waited_share": 0.001, "stolen_share": 0.0, "others_share": 0.0}
BUSY = {"contaminated": "other processes took 85% of the CPU time"}
Seconds = Mapping[str, float]


class Machine(Arena):
    """Our kernel and numpy take the given times for each way of timing."""

    def __init__(self, ours: Seconds, numpy: Seconds, around: Mapping[str, Any] = QUIET, noise: float = 0.005) -> None:
        super().__init__({}, noise)
        self._times, self._around = {"ours": ours, "numpy": numpy}, around
        self.ways: set[str] = set()

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        out = []
        for one in contenders:
            self.ways.add(one.timed)
            self._seconds = {0: self._times["ours" if one.kernel else "numpy"].get(one.timed, 0.0)}
            [measured] = super().compare([Contender("", kernel(trial(0)))], rounds, seed + len(out))
            around = self._around if one.timed != SINGLE else {**BUSY, "stolen_share": 0.0}
            wrong = Measurement(Verdict.WRONG, "off by one")
            out.append(replace(measured, conditions=around) if self._seconds[0] else wrong)
        return out

    def baselines(self) -> list[str]:
        return ["numpy"]


def raced(machine: Machine) -> RacedBaseline:
    task, best = TASK, trial(0)
    result = run_finals(machine, task, [best], kernel, default=best, keep=1, baselines=["numpy"])
    [row] = Finals.from_json(result.to_json()).baselines
    return row


def times(single: float, burst: float, call: float = 0.0) -> Seconds:
    return {SINGLE: single, BURST: burst, CALL: call}


def test_a_quiet_machine_tells_the_ratio_as_users_call_both() -> None:
    machine = Machine(times(14e-6, 10e-6, 12e-6), times(26e-6, 15e-6))
    row = raced(machine)
    assert machine.ways == {SINGLE, BURST, CALL} and row.noisy is None and row.bursts is not None
    assert row.bursts.kernel.ratio == pytest.approx(1.5, rel=0.02)
    assert row.bursts.call is not None and row.bursts.call.ratio == pytest.approx(1.25, rel=0.02)
    words = compared(row.shown())
    assert words.startswith("ours is 1.5") and "called from Python 1.2" in words and "interleaved 1.8" in words


def test_ours_is_timed_beside_each_baseline_on_arrays_like_those_of_its_users() -> None:
    """A real case: 128x256x96 takes 43 us on arrays at cache lines, and 55 us where numpy's begin."""
    kinds: dict[str, bool] = {}

    class Placed(Machine):
        def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
            kinds.update({one.name: one.behind for one in contenders if one.timed != SINGLE})
            out = super().compare(contenders, rounds, seed)
            slower = [1.25 if one.behind and one.kernel else 1.0 for one in contenders]
            return [
                replace(measured, samples=tuple(factor * seconds for seconds in measured.samples))
                for factor, measured in zip(slower, out, strict=True)
            ]

        def baselines(self) -> list[str]:
            return ["numpy", "torch"]

    machine, best = Placed(times(50e-6, 40e-6, 41e-6), times(70e-6, 60e-6)), trial(0)
    result = run_finals(machine, TASK, [best], kernel, default=best, keep=1, baselines=["numpy", "torch"])
    ratios = {row.name: row.bursts.kernel.ratio for row in result.baselines if row.bursts is not None}
    assert ratios == {"numpy": pytest.approx(1.2, rel=0.02), "torch": pytest.approx(1.5, rel=0.02)}
    assert kinds["numpy"] and not kinds["torch"] and sorted(kinds.values()) == [False] * 3 + [True] * 3


def test_threads_that_others_starve_in_turns_make_no_ratio() -> None:
    """A real case: `gemm MNK=200` appeared 39 times as fast as numpy, and was in truth three times slower."""
    row = raced(Machine(times(900e-6, 750e-6, 760e-6), times(36e-3, 250e-6)))
    assert row.noisy is not None and "numpy took 3" in row.noisy and "in bursts of its own" in row.noisy
    assert compared(row.shown()).startswith("too noisy to tell: ")


@pytest.mark.parametrize(
    ("around", "words"),
    [
        ({**QUIET, "waited_share": 0.3}, "waited for a core for 30%"),
        ({**QUIET, "waited_share": 0.1}, None),  # a slightly busy machine
        ({**QUIET, **BUSY, "others_share": 0.85}, None),  # they run on otherwise idle cores
        ({**QUIET, **BUSY, "stolen_share": 0.3}, "other processes"),
        ({**QUIET, **BUSY, "throttled_share": 0.3}, "other processes"),
        ({**BUSY, "others_share": 0.85}, "other processes"),  # the waiting time of threads is unknown
        ({**BUSY, "others_share": 0.2}, None),
    ],
)
def test_what_the_system_says_of_the_machine_counts(around: Mapping[str, Any], words: str | None) -> None:
    noisy = raced(Machine(times(14e-6, 10e-6, 12e-6), times(26e-6, 15e-6), around)).noisy
    assert noisy is None if words is None else noisy is not None and words in noisy


def test_a_wide_interval_or_a_wrong_result_in_a_burst_tells_nothing() -> None:
    wide = raced(Machine(times(14e-6, 10e-6, 12e-6), times(26e-6, 15e-6), noise=0.6)).noisy
    assert wide is not None and "anywhere from" in wide
    wrong = raced(Machine(times(14e-6, 0.0, 12e-6), times(26e-6, 15e-6)))
    assert wrong.noisy == "the winner on arrays like numpy's was wrong in bursts: off by one"
    assert wrong.bursts is None
    alone = raced(Machine(times(14e-6, 10e-6), times(26e-6, 15e-6)))
    assert alone.noisy is None and alone.bursts is not None and alone.bursts.call is None


def test_nothing_noisy_enters_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conditions, "noise", lambda rows: "threads waited")
    words: dict[str, Any] = {"target": "cpu", "trials": 1, "keep_top": 1, "out": tmp_path / "studies"}
    study = dg.tune(dg.gemm(24, 16, 8), baselines=["numpy"], **words)
    print_result(study)
    out = capsys.readouterr().out
    assert "numpy: too noisy to tell: threads waited\n" in out and "deepgen retest" in out
    [row] = study.summary()["baselines"]  # type: ignore[misc]
    assert row["noisy"] == "threads waited" and row["bursts"]["kernel"]["ratio"] > 0  # type: ignore[index, call-overload, operator]
    library = dg.library(tmp_path / "library", create=True)
    with pytest.raises(DeepgenError, match=r"too noisy to tell \(numpy: threads waited\).*retest"):
        library.add(study)
    assert library.add(study, noisy=True) == "added"
    with Journal(study.folder) as journal:
        assert (journal.finals() or Finals(None)).noisy == "numpy: threads waited"
