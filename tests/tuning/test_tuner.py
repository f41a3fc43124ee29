"""The tuner on the simulated device: it finds, stores, resumes and decides."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import deepgen as dg
from deepgen import targets
from deepgen.run.measure.base import Policy, Task
from deepgen.targets import Sim
from deepgen.targets.sim import fault, true_seconds
from deepgen.tuning import Progress
from deepgen.tuning.engines import Look, Session
from deepgen.tuning.request import Request, plan
from deepgen.tuning.search.model import Model
from deepgen.tuning.study.journal import Journal
from deepgen.vocabulary import BadInput, DeepgenError, Missing, Verdict

OPERATOR = dg.gemm(256, 256, 256)


def tune(out: Path, **words: object) -> dg.Study:
    given = {"target": "sim:noise=0.01", "trials": 40, "engine": dg.LocalEngine(jobs=2, cache=out / "cache"), **words}
    return dg.tune(OPERATOR, out=out / "studies", **given)  # type: ignore[arg-type]


def test_the_winner_is_the_best_of_what_was_tried(tmp_path: Path) -> None:
    study = tune(tmp_path, target="sim:noise=0.001", trials=60)
    assert isinstance(study.target, Sim)
    best = study.best()
    sim, flops = study.target, OPERATOR.flops()
    true = {t.id: true_seconds(sim, flops, t.config) for t in study.trials()}
    assert true[best.trial.id] <= min(true.values()) * 1.005
    assert study.top(3)[0].id == best.trial.id
    summary = study.summary()
    assert summary["trials"] == {"correct": 60}
    assert set(summary["winner"]) >= {"rank", "config", "seconds", "gflops", "share_of_peak", "verdict"}  # type: ignore[arg-type]


def test_the_default_goes_to_the_finals_however_slow_its_trial(tmp_path: Path) -> None:
    study = tune(tmp_path, target="sim:noise=0.5", trials=60, keep_top=1)
    default = study.generator.default(OPERATOR, study.target)
    finals = study.finals()
    assert finals is not None
    raced = [row.config for row in finals.finalists]
    assert default in raced and 2 <= len(raced) <= 4, "with up to two whose runs scattered so much that nobody knows"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_a_search_on_fewer_threads_begins_with_their_default(tmp_path: Path, dtype: str) -> None:
    operator, cpu = dg.gemm(1024, 1024, 1024, dtype=dtype), targets.resolve("x86:amx")
    assert isinstance(cpu, targets.X86)
    request = Request(operator, replace(cpu, cores=4), domains={"THREADS": [1]}, policy=Policy(threads=1), out=tmp_path)
    starts = plan(request).starts
    assert starts and all(start["THREADS"] == 1 and len(start) > 3 for start in starts)


def test_knobs_that_are_given_hold_from_the_first_trial_on(tmp_path: Path) -> None:
    default = dg.tune(OPERATOR, target="sim", trials=1, out=tmp_path / "any").trials()[0].config
    other = next(v for v in (16, 32, 64) if v != default["BLOCK_M"])
    first = dg.tune(OPERATOR, target="sim", trials=1, knobs={"BLOCK_M": [other]}, out=tmp_path).trials()[0].config
    assert {**first, "BLOCK_M": 0} == {**default, "BLOCK_M": 0}


def test_the_same_command_again_measures_nothing(tmp_path: Path) -> None:
    first = tune(tmp_path)
    seen: list[Progress] = []
    again = tune(tmp_path, watch=seen.append)
    assert again.folder == first.folder
    assert again.summary() == first.summary()
    assert {p.phase for p in seen} == {"done"} and seen[-1].resumed == 40


class NoCompiler:
    """An engine on a machine without a compiler."""

    def open(self, task: Task, look: Look | None = None) -> Session:
        raise Missing("a compiler", blocks="building kernels", remedy="Install one.")


def test_a_run_that_cannot_begin_leaves_no_study(tmp_path: Path) -> None:
    for folder in ("studies", "one/deeper"):
        with pytest.raises(Missing, match="a compiler"):
            dg.tune(OPERATOR, target="sim", out=tmp_path / folder, engine=NoCompiler())
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_that_cannot_begin_leaves_its_study_as_it_is(tmp_path: Path) -> None:
    study = tune(tmp_path, trials=4)
    with pytest.raises(Missing, match="a compiler"):
        tune(tmp_path, trials=8, engine=NoCompiler())
    assert len(dg.Study.open(study.folder).trials()) == 4


def test_more_trials_go_on_with_the_same_study(tmp_path: Path) -> None:
    short = tune(tmp_path, trials=20).trials()
    long = tune(tmp_path, trials=40)
    assert len(long.trials()) == 40
    assert long.trials()[:20] == short
    finals = long.finals()
    assert finals is not None and finals.trials == 40


def sequence(study: dg.Study) -> list[object]:
    """Everything that a search sees of its trials, which excludes build times."""
    return [(t.id, t.rank, t.config, t.kernel_id, t.measurement) for t in study.trials()]


def stop_after(count: int, stop: threading.Event) -> object:
    def watch(progress: Progress) -> None:
        if progress.done >= count:
            stop.set()

    return watch


def test_an_interrupted_search_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = tune(tmp_path / "whole", target="sim:faults=0.2")
    for count in (1, 13, 14, 30):
        stop = threading.Event()
        tune(tmp_path / "cut", target="sim:faults=0.2", watch=stop_after(count, stop), stop=stop)
    cut = tune(tmp_path / "cut", target="sim:faults=0.2")
    assert sequence(cut) == sequence(whole)
    assert cut.best().trial.id == whole.best().trial.id


def test_a_resumed_search_asks_only_for_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the model's fits nor its earlier choices are repeated; without its state they are."""
    stop = threading.Event()
    whole = tune(tmp_path / "whole")
    cut = tune(tmp_path / "cut", watch=stop_after(25, stop), stop=stop)
    left = 40 - len(cut.trials())
    asked: list[int] = []
    ask = Model.ask
    monkeypatch.setattr(Model, "ask", lambda self, n: asked.append(n) or ask(self, n))
    shutil.copytree(tmp_path / "cut", tmp_path / "copy")
    with Journal(tmp_path / "copy" / "studies" / cut.folder.name, write=True) as journal:
        journal._keep("checkpoint", {"asks": journal.tally().asks, "code": "of another deepgen", "state": {}})
    assert sequence(tune(tmp_path / "cut")) == sequence(whole)
    assert 0 < sum(asked) <= left
    asked.clear()
    assert sequence(tune(tmp_path / "copy")) == sequence(whole)
    assert sum(asked) == 40


@pytest.fixture
def bold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look that judges early and easily, so that even a short study skips trials."""
    monkeypatch.setattr("deepgen.tuning.search.second_look._LEARN", 15)
    monkeypatch.setattr("deepgen.tuning.search.second_look._SURE", 0.5)
    monkeypatch.setattr("deepgen.tuning.search.second_look.CLEARLY_SLOWER", 1.4)


def test_kernels_that_were_not_run_stay_so_wherever_the_search_is_cut(tmp_path: Path, bold: None) -> None:
    words = {"target": "sim:noise=0.01,faults=0.1", "strategy": "random", "trials": 90}
    whole = tune(tmp_path / "whole", **words)
    counts = whole.summary()["trials"]
    assert isinstance(counts, dict) and sum(counts.values()) == 90, "a trial that is not run counts"  # type: ignore[arg-type]
    skipped = [t for t in whole.trials() if t.measurement.verdict is Verdict.NOT_RUN]
    assert len(skipped) == counts["not_run"] >= 5  # type: ignore[operator]
    assert all(t.seconds is None and t.measurement.detail and t.build_facts["code_bytes"] for t in skipped)
    finals = whole.finals()
    assert finals is not None and not {t.id for t in skipped} & {row.trial for row in finals.finalists}
    for count in (skipped[0].id - 1, skipped[0].id, skipped[1].id, 70):
        stop = threading.Event()
        tune(tmp_path / "cut", watch=stop_after(count, stop), stop=stop, **words)
    assert sequence(tune(tmp_path / "cut", **words)) == sequence(whole)


def test_every_kernel_is_run_where_the_user_wants_that(tmp_path: Path, bold: None) -> None:
    seen: list[Progress] = []
    study = tune(tmp_path, strategy="random", trials=60, second_look=False)
    assert study.summary()["trials"] == {"correct": 60}
    looked = tune(tmp_path, strategy="random", trials=60, watch=seen.append)
    assert looked.folder != study.folder
    assert looked.summary()["trials"]["not_run"] == seen[-1].verdicts["not_run"] > 0  # type: ignore[index, call-overload]
    assert seen[-1].last_failure is None, "not to be run is no failure"
    whole = tune(tmp_path, strategy="exhaustive", trials=60)
    assert whole.summary()["trials"] == {"correct": 60}


def test_faults_are_counted_by_name_and_do_not_stop_the_study(tmp_path: Path) -> None:
    study = tune(tmp_path, target="sim:faults=0.5", trials=80)
    assert isinstance(study.target, Sim)
    trials = study.summary()["trials"]
    assert isinstance(trials, dict) and sum(trials.values()) == 80  # type: ignore[arg-type]
    assert len(trials) >= 6
    for trial in study.trials():
        assert trial.measurement.verdict == (fault(study.target, trial.config) or "correct")


def test_a_study_of_failures_only_says_so(tmp_path: Path) -> None:
    with pytest.raises(DeepgenError, match="none of 10 kernels computed a correct result"):
        tune(tmp_path, target="sim:faults=1.0", trials=10)


def test_a_small_space_ends_when_it_is_exhausted(tmp_path: Path) -> None:
    knobs = {"BLOCK_M": [64], "BLOCK_N": [64], "BLOCK_K": [16], "THREAD_M": [4], "THREAD_N": [4]}
    told: list[Progress] = []
    study = tune(tmp_path, knobs=knobs, strategy="exhaustive", trials=1000, watch=told.append)
    assert len(study.trials()) == study.space.count() == 16
    assert {progress.budget for progress in told} == {16}  # and so "left" refers only to these
    assert tune(tmp_path, knobs=knobs, strategy="exhaustive", trials=1000).trials() == study.trials()


def test_a_time_budget_ends_the_search_and_holds_finals(tmp_path: Path) -> None:
    study = tune(tmp_path, target="sim:measure_seconds=0.05", trials=100_000, time_budget=4.0)
    assert 1 <= len(study.trials()) < 5000
    assert study.finals() is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"trials": "40"}, "trials is '40'"),
        ({"seed": -1}, "seed is -1"),
        ({"time_budget": float("inf")}, "inf is not a positive time"),
        ({"target": 3}, "target is 3"),
        ({"knobs": {"BLOCK_M": 64}}, r"BLOCK_M is 64 .*\[64\]"),
        ({"strategy": "psychic"}, "psychic"),
        ({"knobs": {"BLOCK_Q": [1]}}, "BLOCK_Q"),
        ({"knobs": {"BLOCK_M": [7]}}, "BLOCK_M cannot be 7"),
        ({"knobs": {"BLOCK_M": [256], "BLOCK_N": [256], "THREAD_M": [1], "THREAD_N": [1]}}, "is empty.*1024 threads"),
        ({"target": "moon"}, "moon"),
    ],
)
def test_bad_input_is_named_before_anything_is_written(tmp_path: Path, words: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tune(tmp_path, **words)
    assert not (tmp_path / "studies").exists()


def test_a_word_is_no_operator(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'gemm' is not an operator .*deepgen\.gemm"):
        dg.tune("gemm", target="sim", out=tmp_path)  # type: ignore[arg-type]


def test_a_damaged_copy_of_the_winner_is_made_again(tmp_path: Path) -> None:
    study = tune(tmp_path, trials=3)
    right = study.best().kernel
    for text in ("{", "[]", ""):
        (study.folder / "winner" / "kernel.json").write_text(text)
        assert study.best().kernel == right


def test_two_tuners_on_one_study_the_second_is_refused(tmp_path: Path) -> None:
    study = tune(tmp_path)
    with Journal(study.folder, write=True), pytest.raises(DeepgenError, match="being written by process"):
        tune(tmp_path)
    assert len(study.trials()) == 40


DUELS = int(os.environ.get("DEEPGEN_DUELS", "20"))  # set it to 100 for the full statistics
DUEL = {"BLOCK_M": [64], "BLOCK_N": [64], "BLOCK_K": [16], "THREAD_M": [4], "THREAD_N": [4], "STAGES": [2]}


def duel(out: Path, gap: float, seed: int) -> dict[str, object]:
    """A study of four configs, two of them good; which of the two is better alternates with the seed."""
    target = targets.resolve(f"sim:noise=0.02,gap={gap},seed={seed}")
    study = tune(out, target=target, strategy="exhaustive", knobs=DUEL, seed=seed, transfer=False)
    finals = study.finals()
    assert finals is not None and finals.winner is not None
    chosen = study.trial(finals.winner).config["SWIZZLE"]
    return {"right": chosen == seed % 2, "tie": bool(finals.ties), "chosen": chosen}


@pytest.mark.quiet  # races have few rounds where a loaded machine leaves them little time: 10 decide 93% of ties
def test_a_gap_of_three_percent_is_decided_rightly(tmp_path: Path) -> None:
    results = [duel(tmp_path, 0.03, seed) for seed in range(DUELS)]
    assert sum(bool(r["right"]) for r in results) >= 0.95 * DUELS


@pytest.mark.quiet
def test_equals_tie_and_the_choice_among_them_is_always_the_same(tmp_path: Path) -> None:
    results = [duel(tmp_path, 0.0, seed) for seed in range(DUELS)]
    assert sum(bool(r["tie"]) for r in results) >= 0.9 * DUELS
    assert {r["chosen"] for r in results if r["tie"]} == {0}


def test_a_new_study_learns_from_earlier_ones_and_says_so(tmp_path: Path) -> None:
    first = tune(tmp_path, trials=60)
    seen: list[Progress] = []
    other = dg.gemm(256, 256, 512)
    words = {"target": "sim:noise=0.01", "trials": 12, "out": tmp_path / "studies"}
    study = dg.tune(other, watch=seen.append, engine=dg.LocalEngine(jobs=2, cache=tmp_path / "cache"), **words)  # type: ignore[arg-type]
    assert any(first.folder.name in text for _, text in study.notes())
    assert any("learning from 1 earlier studies" in (p.note or "") for p in seen)
    alone = dg.tune(other, transfer=False, engine=dg.LocalEngine(jobs=2, cache=tmp_path / "cache"), **words)  # type: ignore[arg-type]
    assert alone.folder != study.folder and not alone.notes()
    assert isinstance(study.target, Sim)
    found, unaided = (
        min(true_seconds(study.target, other.flops(), t.config) for t in s.trials()[1:7]) for s in (study, alone)
    )
    assert found < unaided, "the first configs should be those that were good before"


def test_what_was_learned_stays_the_same_when_the_teacher_goes_on(tmp_path: Path) -> None:
    tune(tmp_path, trials=30)
    other = dg.gemm(512, 256, 256)
    engine = dg.LocalEngine(jobs=2, cache=tmp_path / "cache")
    short = dg.tune(other, target="sim:noise=0.01", trials=10, out=tmp_path / "studies", engine=engine).trials()
    tune(tmp_path, trials=60)
    long = dg.tune(other, target="sim:noise=0.01", trials=20, out=tmp_path / "studies", engine=engine).trials()
    assert long[:10] == short


def test_a_search_stops_when_it_finds_nothing_better(tmp_path: Path) -> None:
    study = tune(tmp_path, trials=5000, strategy="random", patience=15)
    assert len(study.trials()) < 1000
    assert study.finals() is not None
    assert tune(tmp_path, trials=5000, strategy="random", patience=15).trials() == study.trials()


def test_a_target_speedup_needs_a_baseline(tmp_path: Path) -> None:
    with pytest.raises(DeepgenError, match="needs a baseline"):
        tune(tmp_path, target_speedup=2.0)
