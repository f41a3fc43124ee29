"""Finals: the result is never worse than the default, noise adds rounds, and all finals follow the same rules."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deepgen as dg
from deepgen import baselines, targets
from deepgen.frontends.cli.result import print_result
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.run.measure.race import RaceResult, paired_ratio
from deepgen.run.measure.sim import SimRunner
from deepgen.tuning import reuse
from deepgen.tuning.finals import race as finals_race
from deepgen.tuning.finals import run_finals
from deepgen.tuning.finals.qualifying import Finalist, entrants
from deepgen.tuning.finals.race import Race, choose, raced_among
from deepgen.tuning.progress import Clock
from deepgen.tuning.study.text import lost_baselines
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, Measurement, Source, Trial, Verdict

OPERATOR = dg.gemm(256, 256, 256)
SIMULATED = Task(OPERATOR, targets.resolve("sim"))


def trial(number: int) -> Trial:
    return Trial(number, number, {}, str(number), Measurement(Verdict.CORRECT, samples=(1.0,)))


def kernel(of: Trial) -> Kernel:
    return Kernel("made_up", "c", (Source("id", str(of.id)),), (), LaunchPlan(()))


@st.composite
def races(draw: st.DrawFn) -> tuple[list[Finalist], Race]:
    """Any outcome of a race of a few rounds, in which noise may be larger than what differs."""
    count, rounds = draw(st.integers(1, 6)), draw(st.sampled_from([1, 3, 3, 3, 10]))
    at = draw(st.none() | st.integers(0, count - 1))  # the default
    finalists, samples = [], {}
    for number in range(count):
        code = draw(st.integers(1, 3))
        artifact = Artifact(str(number), "", "so", "", {"code_bytes": code}, 0.0)
        finalists.append(Finalist(trial(number), kernel(trial(number)), artifact, number == at))
        samples[f"trial {number}"] = draw(st.lists(st.floats(0.95, 1.1), min_size=rounds, max_size=rounds))
    result = RaceResult(samples)
    leader = result.leader(samples)
    assert leader is not None
    return finalists, Race(samples, {name: result.ratio(name, leader) for name in samples}, leader)


@settings(max_examples=300, deadline=None)
@given(races())
def test_the_default_yields_only_to_what_is_faster(case: tuple[list[Finalist], Race]) -> None:
    finalists, race = case
    winner, ties = choose(finalists, race)
    level = [f for f in finalists if race.ratios[f.name].no_slower]
    default = next((f for f in finalists if f.default), None)
    assert winner in level and winner not in ties and set(map(id, ties)) <= set(map(id, level))
    if default in level:
        assert winner is default and len(ties) == len(level) - 1
        return
    resources = [(f.artifact.facts["code_bytes"], f.trial.rank) for f in (winner, *ties)]
    assert resources[0] == min(resources), "the rest is in the order of resources"
    if default is not None:
        for one in (winner, *ties):
            shown = paired_ratio(race.samples[default.name], race.samples[one.name])
            assert shown.estimate > 1.0 and not shown.no_slower, "faster than the default itself"


def test_a_kernel_near_the_leader_but_slower_than_the_default_does_not_win() -> None:
    """Three rounds of a ten-second study, which ended with a kernel at 0.96 of the default's speed."""
    default, small, leader = [1.00, 1.03, 0.99], [1.06, 0.99, 1.03], [0.97, 0.98, 1.09]
    finalists, samples = [], {}
    for number, times in enumerate((default, small, leader)):
        artifact = Artifact(str(number), "", "so", "", {"code_bytes": 1 + number}, 0.0)
        finalists.append(Finalist(trial(number), kernel(trial(number)), artifact, number == 0))
        samples[f"trial {number}"] = times
    race = raced_among(Race(samples, {}, "", rivals=tuple(samples)), [*samples])
    assert race is not None
    assert [race.ratios[f.name].no_slower for f in finalists] == [False, True, True]
    assert paired_ratio(default, small).estimate < 0.97, "what the result would show"
    assert choose(finalists, race) == (finalists[2], [])


class Arena:
    """Kernels that take the given times, with that much noise; all are correct."""

    def __init__(self, seconds: dict[int, float], noise: float) -> None:
        self._seconds, self._noise = seconds, noise
        self.rounds = 0

    @contextmanager
    def quiet(self) -> Iterator[None]:
        yield

    def disturbed(self) -> str | None:
        return None

    def build(self, kernel: Kernel) -> Artifact:
        # The higher the number the smaller the code: a tie without the default goes to the last one.
        number = int(kernel.sources[0].text)
        return Artifact(str(number), "", "so", "", {"code_bytes": 100 - number}, 0.0)

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        return Measurement(Verdict.CORRECT)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        self.rounds += rounds
        rng = np.random.default_rng(seed)
        times = [self._seconds[int(e.kernel.sources[0].text)] for e in contenders if e.kernel]
        drawn = [t * np.exp(self._noise * rng.standard_normal(rounds)) for t in times]
        return [Measurement(Verdict.CORRECT, samples=tuple(map(float, row))) for row in drawn]

    def baselines(self) -> list[str]:
        return []

    def peak(self, *, again: bool = False) -> float | None:
        return None


def held(
    seconds: dict[int, float], noise: float, seed: int = 0, max_seconds: float = 3e4
) -> tuple[dict[str, Any], int]:
    """The finals of trials with these true times, the first of which is the default; and the number of rounds."""
    arena = Arena(seconds, noise)
    trials = [trial(number) for number in seconds]
    task = replace(SIMULATED, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        if max_seconds:  # simulated rounds take no time, however busy the machine is
            patch.setattr("deepgen.run.measure.race.time", SimpleNamespace(monotonic=lambda: 0.0))
        result = run_finals(
            arena, task, trials[1:], kernel, default=trials[0], keep=3, baselines=False, max_seconds=max_seconds
        )
    return result.to_json(), arena.rounds


@pytest.mark.parametrize("noise", [0.001, 0.02, 0.05])
def test_a_phase_in_which_all_are_alike_leaves_the_default(noise: float) -> None:
    result, _ = held({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, noise)
    assert (result["winner"], result["tie_broken_by"]) == (0, "default") and result["ties"]


def test_what_is_faster_wins_and_a_tie_without_the_default_goes_by_resources() -> None:
    result, _ = held({0: 1.0, 1: 0.9, 2: 0.9, 3: 0.95}, 0.001)
    assert (result["winner"], result["ties"], result["tie_broken_by"]) == (2, [1], "resources")
    result, _ = held({0: 1.0, 1: 0.9, 2: 0.95, 3: 0.95}, 0.001)
    assert (result["winner"], result["ties"], result["tie_broken_by"]) == (1, [], None)


def test_noise_costs_rounds_and_never_without_end() -> None:
    alike = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}
    taken = [held(alike, noise)[1] for noise in (0.0001, 0.02, 0.05, 0.5)]
    assert taken[:2] == [finals_race.CHUNK, finals_race.ROUNDS] and taken[3] == finals_race.NOISY_ROUNDS
    assert finals_race.ROUNDS < taken[2] < finals_race.NOISY_ROUNDS
    assert held(alike, 0.5, max_seconds=0.0)[1] == finals_race.CHUNK, "time is a limit of its own"


def test_through_noise_the_default_is_kept_where_it_is_best_and_left_where_it_is_not() -> None:
    ends = [held({0: 1.0, 1: 1.02, 2: 1.03, 3: 1.04}, 0.08, seed)[0]["winner"] for seed in range(6)]
    assert ends == [0] * 6
    ends = [held({0: 1.0, 1: 0.9, 2: 1.03, 3: 1.04}, 0.08, seed)[0]["winner"] for seed in range(6)]
    assert ends == [1] * 6


class SlowMachine(Arena):
    """A machine on which everything takes long, by a simulated clock."""

    def __init__(self, noise: float) -> None:
        super().__init__({0: 1.0, 1: 0.9, 2: 0.95, 3: 0.97}, noise)
        self.now = 0.0

    def disturbed(self) -> str | None:
        self.now += 0.3
        return "other processes took 80% of the CPU time"

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        self.now += 0.1
        return super().verify(kernel, seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        self.now += 0.25 * len(contenders) * rounds
        return super().compare(contenders, rounds, seed)


def test_on_a_slow_machine_finals_shrink_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(0.05)
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    clock = Clock(30.0)
    machine.now = 21.0
    policy = Policy(race_seconds=30.0)
    task = replace(SIMULATED, policy=policy, neighbours=tuple(dg.gemm(8 + i, 8, 8) for i in range(40)))
    trials = [trial(number) for number in range(4)]
    result = run_finals(machine, task, trials, kernel, default=trials[0], keep=3, baselines=False, clock=clock)
    assert machine.now < 30.0 * 1.15 and result.winner is not None
    assert 3 <= result.rounds < finals_race.CHUNK
    serves = result.serves
    assert serves is not None and len(serves.right_at) + serves.untried == 40
    assert 1 <= len(serves.right_at) < 40


def tied(out: Path) -> dg.Study:
    """A study in which all configs are equally fast, and nearly all have less code than the default."""
    engine = dg.LocalEngine(jobs=2, cache=out / "cache")
    words = {"knobs": {"SWIZZLE": [0, 1]}, "strategy": "random", "trials": 16, "keep_top": 3}
    return dg.tune(OPERATOR, target="sim:noise=0.01,gap=0", out=out / "studies", engine=engine, **words)  # type: ignore[arg-type]


def test_a_study_of_equals_ends_where_it_began_and_says_so(tmp_path: Path) -> None:
    study = tied(tmp_path)
    winner = study.summary()["winner"]
    assert isinstance(winner, dict) and winner["config"] == study.generator.default(OPERATOR, study.target)
    assert winner["ties"] and winner["tie_broken_by"] == "default"
    found = study.finals()
    assert found is not None and [row.trial for row in found.finalists if row.default] == [winner["trial"]]
    said = subprocess.run(
        [sys.executable, "-m", "deepgen", "retest", str(study.folder), "--top", "1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tie,) = study.summary()["winner"]["ties"]
    assert f"trial {tie} is as fast; the default wins ties" in said


def test_a_second_look_at_the_best_races_the_default_too(tmp_path: Path) -> None:
    study = tied(tmp_path)
    default = study.generator.default(OPERATOR, study.target)
    result = reuse.retest(study, 1, engine=dg.LocalEngine(jobs=1, cache=tmp_path / "cache"))
    assert default in [row.config for row in result.finalists]
    assert result.winner == study.best().trial.id and study.best().trial.config == default


class WrongBaseline(Arena):
    """A baseline takes part whose result turns out to be wrong after the first rounds."""

    def baselines(self) -> list[str]:
        return ["planted"]

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        kernels = [e for e in contenders if e.kernel]
        measured = dict(zip((e.name for e in kernels), super().compare(kernels, rounds, seed), strict=True))
        wrong = Measurement(Verdict.WRONG, "C[0, 1] is 2, should be 1 (1 of 4 elements wrong)", error=1.07)
        return [measured.get(e.name, wrong) for e in contenders]


def test_a_baseline_that_is_called_wrong_is_told_with_its_error() -> None:
    arena = WrongBaseline({0: 1.0, 1: 0.9}, 0.001)
    trials = [trial(0), trial(1)]
    result = run_finals(arena, SIMULATED, trials, kernel, default=None, keep=2, baselines=True)
    assert (result.winner, result.baselines, result.dropped) == (1, (), ())
    [row] = result.baselines_lost
    assert (row.name, row.verdict, row.error) == ("planted", Verdict.WRONG, 1.07)
    [said] = lost_baselines(result.to_json())
    assert said == "planted was called wrong: C[0, 1] is 2, should be 1 (1 of 4 elements wrong); not compared"


def test_the_printed_result_says_which_baseline_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compare = SimRunner.compare

    def with_planted(self: SimRunner, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        kernels = [c for c in contenders if c.kernel]
        measured = dict(zip((c.name for c in kernels), compare(self, kernels, rounds, seed), strict=True))
        return [measured.get(c.name, Measurement(Verdict.WRONG, "C[0, 1] is 2", error=1.07)) for c in contenders]

    monkeypatch.setattr(SimRunner, "compare", with_planted)
    monkeypatch.setattr(baselines, "find", lambda operator, target, own: ["planted"])
    engine = dg.LocalEngine(jobs=1, cache=tmp_path / "cache")
    study = dg.tune(OPERATOR, target="sim", trials=4, strategy="random", out=tmp_path / "studies", engine=engine)
    assert study.summary()["baselines_lost"] == [
        {"name": "planted", "verdict": "wrong", "detail": "C[0, 1] is 2", "error": 1.07}
    ]
    print_result(study)
    assert "doubts   - planted was called wrong: C[0, 1] is 2; not compared" in capsys.readouterr().out


def test_a_trial_that_was_disturbed_in_most_of_its_runs_takes_part() -> None:
    """The fastest of 200 kernels shared its core with a compiler during its timing, and was not a finalist."""

    def timed(number: int, *samples: float) -> Trial:
        return Trial(number, number, {"A": number}, f"k{number}", Measurement(Verdict.CORRECT, samples=samples))

    best = [timed(0, 3.0, 3.1, 3.0), timed(1, 3.2, 3.2, 2.9)]
    late = timed(2, 2.4, 4.8, 4.9)
    slow = timed(3, 3.3, 9.0, 9.0)
    failed = Trial(4, 4, {"A": 4}, "k4", Measurement(Verdict.CRASHED))
    assert entrants([slow, failed, late, *best], keep=1) == ([best[0], late, best[1], slow], 2)
    assert entrants([late, *best], keep=3) == ([*best, late], 3), "it takes part anyway"
    assert entrants([failed], keep=3) == ([], 3)


def missed(
    noise: float, slowed: float, target: str = "cpu", clock: Clock | None = None
) -> tuple[set[int], object, int]:
    """The finalists, the winner and the number of rounds if trial 1 is the best of 20 kernels by a fifth, and its trial
    appeared that many times slower than it is.
    """
    seconds = {0: 1e-3, 1: 0.7e-3, **{number: (0.84 + 0.01 * number) * 1e-3 for number in range(2, 20)}}
    taken = {**seconds, 1: slowed * seconds[1]}
    trials = [replace(trial(n), measurement=Measurement(Verdict.CORRECT, samples=(t,))) for n, t in taken.items()]
    arena, task = Arena(seconds, noise), replace(SIMULATED, target=targets.resolve(target))
    result = run_finals(arena, task, trials, kernel, default=trials[0], keep=3, baselines=False, clock=clock)
    return {row.trial for row in result.finalists}, result.winner, arena.rounds


@pytest.mark.parametrize("noise", [0.001, 0.05])
def test_the_best_kernel_wins_though_its_whole_trial_fell_into_a_slow_phase(noise: float) -> None:
    for slowed in (1.3, 2.0):  # behind a few others, and behind all of them
        racing, winner, _ = missed(noise, slowed)
        assert winner == 1 and {0, 1, 2, 3, 4} <= racing and len(racing) <= 6


def test_slower_trials_are_looked_at_again_only_where_that_may_help() -> None:
    assert missed(0.001, 1.0)[0] == {0, 1, 2, 3}, "nothing was slowed, and nobody joins"
    assert missed(0.001, 4.0)[:2] == ({0, 2, 3, 4}, 2), "no machine is so uneven"
    racing, winner, rounds = missed(0.001, 2.0, target="sim")
    assert (racing, winner, rounds) == ({0, 2, 3, 4}, 2, finals_race.CHUNK), "nobody else is on a device of its own"
    hurried = Clock(60.0)
    hurried.measured(120.0, 60)
    assert 1 not in missed(0.001, 2.0, clock=hurried)[0], "a budget that is hardly enough for the race goes there"
