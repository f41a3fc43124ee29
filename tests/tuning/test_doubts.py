"""Doubts: anything that disturbed a result or leaves it uncertain is reported beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen.frontends.cli.result import print_result
from deepgen.frontends.cli.show import top
from deepgen.tuning import reuse
from deepgen.tuning.engines import local
from deepgen.tuning.study.finals import Finals, RacedBaseline
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.reading import all_doubts, over_default
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary import Measurement, Trial, Verdict, codec

OPERATOR = dg.gemm(256, 256, 256)
RETEST = "run `deepgen retest` on a quiet machine"
WINNER = {"share_of_peak": 0.7, "bound": "arithmetic", "share_of_bound": 0.7, "over_default": None}


def finals(**said: Any) -> Finals:
    return codec.from_json(Finals, {"winner": 1, **said})


def baseline(ratio: float, low: float, high: float) -> dict[str, Any]:
    return {"name": "numpy", "seconds": ratio, "ratio": ratio, "interval": [low, high]}


def raced(trial: int, samples: list[float]) -> dict[str, Any]:
    slower = {"estimate": 1.0, "low": 1.0, "high": 1.0}
    row = {"trial": trial, "rank": trial, "config": {}, "default": trial == 0, "kernel_id": "", "seconds": 1.0}
    return {**row, "samples": samples, "slower_than_leader": slower}


def busy(share: int) -> str:
    return f"other processes took {share}% of the CPU time"


def trial(number: int, disturbed: str | None = None) -> Trial:
    conditions: dict[str, Any] = {"contaminated": disturbed} if disturbed else {}
    return Trial(number, number, {}, str(number), Measurement(Verdict.CORRECT, samples=(1.0,), conditions=conditions))


def doubts(found: Finals | None, trials: list[Trial] | None = None, cold: bool = True, **said: Any) -> list[str]:
    return all_doubts(found, trials or [], {**WINNER, **said}, cold=cold)


def test_a_clear_result_on_a_calm_machine_leaves_no_doubts() -> None:
    calm = finals(baselines=[baseline(1.32, 1.29, 1.35), baseline(1.0, 0.99, 1.01)], serves={"only": None})
    assert doubts(calm, [trial(i) for i in range(20)] + [trial(20, busy(50))]) == []


def test_trials_on_a_busy_machine_are_told_together() -> None:
    [said] = doubts(finals(), [trial(0), *(trial(i, busy(50 + i)) for i in range(3, 32))])
    assert said == ("29 of 30 trials were timed on a busy machine: other processes took 53% to 81% of the CPU time")


def test_finals_on_a_busy_machine_ask_for_others() -> None:
    [said] = doubts(finals(conditions=[{"name": "trial 1"}, {"name": "numpy", "contaminated": busy(40)}]))
    assert said == f"the finals were timed on a busy machine: {busy(40)}; {RETEST}"
    [said] = doubts(finals(waited={"seconds": 30.2, "disturbed": busy(40)}))
    assert said == f"the machine was still busy after the finals had waited 30 s: {busy(40)}; {RETEST}"


def test_a_host_that_was_too_slow_for_its_gpu_is_told_of() -> None:
    told = [{"name": "trial 1", "late_samples": 0}, {"name": "torch-gpu", "late_samples": 3}]
    [said] = doubts(finals(conditions=told))
    assert "the host was too slow to keep the GPU busy" in said and "torch-gpu" in said and "trial 1" not in said


def test_an_interval_that_tells_little_is_said_in_words() -> None:
    [said] = doubts(finals(baselines=[baseline(132.4, 6.78, 994.0)]))
    assert (
        said == f"the winner is anywhere from 6.78 to 994 times as fast as numpy, a wide confidence interval; {RETEST}"
    )
    [said] = doubts(finals(), over_default={"ratio": 1.04, "interval": [0.95, 1.2]})
    assert said.startswith("the difference is within noise: the winner is anywhere from 0.95 to 1.2 times as fast as")


def test_a_ratio_that_only_a_busy_machine_explains() -> None:
    sure = baseline(495.5, 490.0, 500.0)
    disturbed = [{"name": "numpy", "contaminated": busy(60)}]
    assert doubts(finals(baselines=[sure])) == []
    assert "numpy took 496 times as long as the winner on a busy machine" in " ".join(
        doubts(finals(baselines=[sure], conditions=disturbed))
    )


def test_nothing_runs_faster_than_its_bound() -> None:
    [said] = doubts(finals(), share_of_peak=1.056)
    assert said.startswith("the winner runs at 105.6% of the peak")
    memory: dict[str, Any] = {"bound": "memory", "share_of_bound": 1.2}
    assert "120.0% of the memory bandwidth" in doubts(finals(), **memory)[0]
    assert doubts(finals(), cold=False, **memory) == [], "warm caches need no memory"


def test_a_peak_that_a_winner_beats_is_measured_anew_and_never_taken_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first peak was measured on a busy machine; the second, from a quiet machine, is still below the winner."""
    measured: list[bool] = []

    def peak(operator: object, target: object, *, again: bool = False, **kept: object) -> float:
        measured.append(again)
        return 2e-3 if again else 1e-3

    monkeypatch.setattr(local, "peak_gflops", peak)
    engine = dg.LocalEngine(jobs=1, cache=tmp_path / "cache")
    study = dg.tune(OPERATOR, target="sim", trials=4, strategy="random", out=tmp_path / "studies", engine=engine)
    assert measured == [False, True]
    held: Any = study.finals()
    assert held.peak_gflops == 2e-3
    assert "of the peak" in study.summary()["doubts"][0]  # type: ignore[index, operator]


def test_what_else_a_user_should_know() -> None:
    [said] = doubts(finals(serves={"only": [{"M": 16}], "why": "wrong at gemm f32 nn 16x31x8: C[0, 0] is 2"}))
    assert said == "the winner supports its tuned shape only: it was wrong at gemm f32 nn 16x31x8: C[0, 0] is 2"
    [said] = doubts(finals(baselines_lost=[{"name": "torch", "verdict": "crashed", "detail": "signal 11"}]))
    assert said == "torch crashed: signal 11; not compared"
    [said] = doubts(finals(baselines_lost=[{"name": "mkl", "verdict": "refused", "detail": "MKL is not installed"}]))
    assert said == "mkl: MKL is not installed; not compared"
    [said] = doubts(None)
    assert said.startswith("no finals were run")


def test_what_the_search_gained() -> None:
    rng = np.random.default_rng(0)
    rows = [
        raced(number, [float(sample) for sample in scale * np.exp(0.01 * rng.standard_normal(40))])
        for number, scale in ((0, 1.37), (1, 1.0))
    ]
    over: Any = over_default(finals(finalists=rows))
    assert over["interval"][0] < 1.37 < over["interval"][1] and over["ratio"] == pytest.approx(1.37, rel=0.01)
    assert over_default(finals(finalists=rows, winner=0)) == {"ratio": 1.0, "interval": [1.0, 1.0]}
    assert over_default(finals(finalists=rows[1:])) is None


def test_a_study_says_all_this_in_json_and_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = dg.LocalEngine(jobs=1, cache=tmp_path / "cache")
    study = dg.tune(OPERATOR, target="sim:gap=0", trials=4, strategy="random", out=tmp_path / "studies", engine=engine)
    summary: Any = study.summary()
    assert summary["doubts"] == [] and summary["winner"]["over_default"] == {"ratio": 1.0, "interval": [1.0, 1.0]}
    assert {"bound", "share_of_bound", "share_of_peak"} <= set(summary["winner"])
    print_result(study)
    calm = capsys.readouterr().out
    assert "gained   over the default: 1.00 (a tie)" in calm and "doubts" not in calm
    held = study.finals()
    assert held is not None
    disturbed: dict[str, Any] = {"baselines": [baseline(132.4, 6.78, 994.0), baseline(1.32, 1.29, 1.35)]}
    with Journal(study.folder, write=True) as journal:
        journal.add_finals(Finals.from_json({**held.to_json(), **disturbed}))
    print_result(study)
    said = capsys.readouterr().out
    assert "numpy: ours is 132.40 times as fast (6.78 to 994.00), 132.4 s" in said
    assert "numpy: ours is 1.32 times as fast (1.29 to 1.35), 1.32 s" in said
    assert "doubts   - the winner is anywhere from 6.78 to 994 times as fast as numpy, a" in said


def test_the_time_of_one_trial_and_that_of_the_finals_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = dg.LocalEngine(jobs=1, cache=tmp_path / "cache")
    words: dict[str, Any] = {"trials": 4, "keep_top": 1, "strategy": "random", "out": tmp_path / "studies"}
    study = dg.tune(OPERATOR, target="sim:noise=0.1", engine=engine, **words)
    winner: Any = study.summary()["winner"]
    rows: Any = reuse.top_rows(study, 4)
    assert (rows[0]["seconds"], rows[0]["finals"]["seconds"]) == (winner["trial_seconds"], winner["seconds"])
    assert winner["trial_seconds"] != winner["seconds"] and rows[-1]["finals"] is None
    print_result(study)
    assert f"{seconds_text(winner['trial_seconds'])} in the search" in capsys.readouterr().out
    top(str(study.folder))
    listed = " ".join(capsys.readouterr().out.split())
    assert "trial finals search rate config" in listed
    assert f"{seconds_text(winner['seconds'])} {seconds_text(winner['trial_seconds'])} " in listed
    assert f" - {seconds_text(rows[-1]['seconds'])} " in listed


def test_a_faster_baseline_is_the_first_thing_that_a_result_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the difference is within the interval, or caused by a busy machine."""
    study = dg.tune(OPERATOR, target="sim", strategy="random", trials=4, out=tmp_path)
    held = study.finals()
    assert held is not None and study.summary()["faster_baseline"] is None
    rows = [
        ("slow", 2.0, (1.9, 2.1)),
        ("level", 0.99, (0.9, 1.1)),
        ("fast", 0.8, (0.75, 0.85)),
        ("near", 0.9, (0.8, 0.95)),
    ]
    baselines = [RacedBaseline(name, 1e-3, ratio, interval) for name, ratio, interval in rows]
    noisy = RacedBaseline("noisy", 1e-3, 0.1, (0.1, 0.1), noisy="threads waited for cores")
    with Journal(study.folder, write=True) as journal:
        journal.add_finals(replace(held, baselines=(*baselines, noisy)))
    faster: dict[str, Any] = study.summary()["faster_baseline"]  # type: ignore[assignment]
    assert (faster["name"], faster["ratio"], faster["interval"]) == ("fast", 0.8, [0.75, 0.85])
    assert faster["helps"] == ["more trials: --trials 200", "other families: --family all", "fast itself"]
    print_result(study)
    first = " ".join(capsys.readouterr().out.split("gemm")[0].split())
    assert first.startswith("fast is 1.25 times as fast as the winner (1.18 to 1.33). What would help: more trials:")
