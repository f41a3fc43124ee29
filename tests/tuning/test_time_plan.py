"""How finals use their time, on a simulated clock: everything that fits is done, and only what would not fit is left
out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import deepgen as dg
from deepgen import targets
from deepgen.run.measure import race as race_module
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.tuning import costs, finals, progress
from deepgen.tuning.costs import REFERENCE, SAMPLE, VERIFY, StepCosts
from deepgen.tuning.finals import plan, run_finals, wanted_plan
from deepgen.tuning.finals.plan import CHUNK, MARGIN, OutOfTime, for_finals
from deepgen.tuning.finals.qualifying import rehearse
from deepgen.tuning.finals.race import Race, raced_among
from deepgen.tuning.progress import Clock
from deepgen.tuning.study.finals import Finals
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, Measurement, Source, Trial, Verdict


def race_seconds(contenders: int, costs: StepCosts) -> float:
    """A race with the usual number of rounds."""
    return contenders * (2 * costs.of(VERIFY) + CHUNK * costs.of(SAMPLE))


SHAPES = tuple(dg.gemm(256, 256, 256 + 8 * i) for i in range(1, 10))
POLICY = Policy(calm_seconds=20.0, race_seconds=60.0)
TASK = Task(dg.gemm(256, 256, 256), targets.resolve("sim"), policy=POLICY, neighbours=SHAPES)
KEEP, BASELINES = 8, ("numpy", "torch")


@dataclass
class SimTime:
    """Replaces the module `time`: time passes only during work."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@dataclass
class SimArena:
    """Its actions take as long as `seconds` says; a call that exceeds the budget ends with it."""

    clock: SimTime
    until: float
    seconds: dict[str, float]
    seen: set[tuple[int, str, int]] = field(default_factory=set)
    wrong: frozenset[int] = frozenset()  # trials that are wrong on every other set of inputs

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds
        if self.clock.now > self.until:
            self.clock.now = self.until
            raise OutOfTime

    @contextmanager
    def quiet(self) -> Iterator[None]:
        yield

    def disturbed(self) -> str | None:
        self.clock.now += 0.05
        return None

    def build(self, kernel: Kernel) -> Artifact:
        return Artifact(kernel.id, "", "so", "", {}, 0.0)

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        test = (seed, probe, shape)
        self._pass(self.seconds[VERIFY if test in self.seen else REFERENCE])
        self.seen.add(test)
        wrong = int(kernel.sources[0].text) in self.wrong and probe != "normal"
        return Measurement(Verdict.WRONG if wrong else Verdict.CORRECT, samples=(1.0,))

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        self._pass(len(contenders) * (2 * self.seconds[VERIFY] + rounds * self.seconds[SAMPLE]))
        rng = random.Random(seed)
        # The order is clear, with a little noise.
        return [
            Measurement(Verdict.CORRECT, samples=tuple(_speed(c) * rng.uniform(0.999, 1.001) for _ in range(rounds)))
            for c in contenders
        ]

    def baselines(self) -> list[str]:
        return [*BASELINES]

    def peak(self, *, again: bool = False) -> float | None:
        return None


def _speed(contender: Contender) -> float:
    return 3.0 if contender.kernel is None else 1.0 + 0.01 * int(contender.kernel.sources[0].text)


def trial(number: int) -> Trial:
    return Trial(number, number, {}, str(number), Measurement(Verdict.CORRECT, samples=(1.0 + 0.01 * number,)))


def kernel(of: Trial) -> Kernel:
    return Kernel("made_up", "c", (Source("id", str(of.id)),), (), LaunchPlan(()))


TRIALS = [trial(number) for number in range(20)]


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> SimTime:
    ours = SimTime()
    for module in (progress, plan, finals, race_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=ours.monotonic, time=ours.time))
    monkeypatch.setattr(finals, "raced", lambda able, operator, packs: [*able])
    return ours


def held(
    passing: SimTime,
    seconds: float,
    actual: dict[str, float],
    expected: dict[str, float],
    wrong: frozenset[int] = frozenset(),
) -> tuple[Finals, Clock]:
    """Finals with this many seconds, where steps take other times than expected."""
    clock = Clock(seconds, None, StepCosts({costs.END: 0.0, **expected}))
    arena: Any = SimArena(passing, passing.now + seconds, actual, wrong=wrong)
    words: dict[str, Any] = {"default": TRIALS[5], "keep": KEEP, "baselines": True, "clock": clock}
    return run_finals(arena, TASK, TRIALS, kernel, loaded=lambda wait: [*BASELINES], **words), clock


def drawn(seed: int) -> tuple[float, dict[str, float], dict[str, float]]:
    """Seconds for finals, the durations of steps, and the expected ones: up to ten times more or less."""
    rng = random.Random(seed)
    actual = {REFERENCE: 10 ** rng.uniform(-2.5, 0.3), SAMPLE: 10 ** rng.uniform(-4, -1.5)}
    actual[VERIFY] = actual[REFERENCE] * rng.uniform(0.05, 1.0)
    expected = {step: seconds * 10 ** rng.uniform(-1, 1) for step, seconds in actual.items()}
    return 10 ** rng.uniform(-0.3, 1.3), actual, expected


@pytest.mark.parametrize("seed", range(60))
def test_what_is_left_out_would_not_have_fitted(passing: SimTime, seed: int) -> None:
    seconds, actual, expected = drawn(seed)
    finals, clock = held(passing, seconds, actual, expected)
    spare, entrants = clock.spare / MARGIN, len(finals.finalists) + len(finals.baselines)
    assert finals.winner is not None and (finals.rounds or "the race" in finals.left_out)
    texts = " and ".join(finals.left_out)
    if not finals.rounds:
        return
    known = StepCosts(actual)
    if "other shape" in texts or "set" in texts:
        assert spare < 1.01 * (actual[REFERENCE] + len(finals.finalists) * actual[VERIFY]) + 0.05
    if "finalist" in texts:
        assert spare < race_seconds(entrants + 1, known) + 7 * actual[VERIFY] + actual[REFERENCE] + 0.05
    if "rounds" in texts:  # contenders are verified each time they are compared
        assert spare < entrants * (2 * actual[VERIFY] + 2 * actual[SAMPLE]) + 0.05
    if "baseline" in texts:
        assert spare < race_seconds(entrants + 2, known) + actual[REFERENCE]


def test_finalists_that_seemed_too_many_race_once_it_is_known_what_a_race_takes(passing: SimTime) -> None:
    actual = {REFERENCE: 0.01, VERIFY: 0.002, SAMPLE: 0.002}
    finals, _ = held(passing, 5.0, actual, {**actual, SAMPLE: 0.5})
    assert not finals.left_out and len(finals.finalists) == KEEP and len(finals.baselines) == 2
    assert finals.winner == 0 and finals.rounds >= 10


def test_a_winner_that_is_wrong_on_a_set_that_was_taken_up_loses(passing: SimTime) -> None:
    """It was correct on the first set, the only one for which there seemed to be time."""
    actual = {REFERENCE: 0.05, VERIFY: 0.01, SAMPLE: 0.001}
    finals, _ = held(passing, 20.0, actual, {**actual, VERIFY: 5.0}, frozenset({0}))
    assert finals.winner == 1 and [row.trial for row in finals.dropped] == [0] and not finals.left_out


def test_without_a_budget_nothing_is_taken_up_and_nothing_left_out(passing: SimTime) -> None:
    arena: Any = SimArena(passing, float("inf"), {REFERENCE: 1.0, VERIFY: 1.0, SAMPLE: 1.0})
    finals = run_finals(arena, TASK, TRIALS, kernel, default=TRIALS[5], keep=KEEP, baselines=True)
    assert not finals.left_out and len(finals.finalists) == KEEP and finals.rounds >= 10


def test_what_finals_do_not_need_is_the_search_s(passing: SimTime) -> None:
    """If nothing is known of references, a quarter of the time is reserved for them; a rehearsal shows their need."""
    clock, wanted = Clock(40.0), wanted_plan(TASK, KEEP + 1, 2)
    assert for_finals(40.0, clock.costs, wanted) == 10.0
    arena: Any = SimArena(passing, passing.now + 40.0, {REFERENCE: 0.02, VERIFY: 0.004, SAMPLE: 0.001})
    clock.costs.hear(SAMPLE, 0.001)
    rehearse(arena, TASK, kernel(TRIALS[5]), clock)
    assert len(arena.seen) == 1 and clock.costs.of(REFERENCE) == pytest.approx(0.02)
    assert clock.costs.of(VERIFY) == pytest.approx(0.004)
    assert for_finals(40.0, clock.costs, wanted) == pytest.approx(0.12 * 40.0)  # the minimum that is reserved
    slow: Any = SimArena(passing, passing.now + 40.0, {REFERENCE: 4.0, VERIFY: 1.0, SAMPLE: 0.001})
    known = Clock(40.0)
    rehearse(slow, TASK, kernel(TRIALS[5]), known)
    assert for_finals(40.0, known.costs, wanted) >= 10.0


def test_a_race_without_its_leader_is_led_by_the_next() -> None:
    samples = {"a": [1.0] * 9, "b": [2.0] * 9, "c": [4.0] * 9, "numpy": [8.0] * 9}
    race = Race(samples, {}, "a", [], ("a", "b", "c"))
    rest = raced_among(race, ["b", "c"])
    assert rest is not None and rest.leader == "b" and {*rest.samples} == {"b", "c", "numpy"}
    assert [rest.ratios[name].estimate for name in ("c", "numpy")] == pytest.approx([2.0, 4.0])
    assert raced_among(race, []) is None


def test_baselines_that_are_loaded_late_race_all_the_same(passing: SimTime) -> None:
    actual = {REFERENCE: 0.2, SAMPLE: 0.005, VERIFY: 0.05}
    clock = Clock(8.0, None, StepCosts({costs.END: 0.0, **actual}))
    arena: Any = SimArena(passing, passing.now + 8.0, actual)
    ready_at = passing.now + 4.0

    def loaded(wait: float) -> list[str]:
        passing.now += min(wait, max(0.0, ready_at - passing.now))
        return [*BASELINES] if passing.now >= ready_at else []

    words: dict[str, Any] = {"default": TRIALS[5], "keep": KEEP, "baselines": True, "clock": clock}
    finals = run_finals(arena, TASK, TRIALS, kernel, loaded=loaded, **words)
    assert {row.name for row in finals.baselines} == {*BASELINES}


def test_a_race_that_was_held_counts_where_the_time_ends_after_it(passing: SimTime) -> None:
    """If steps take ten times as long as expected after the first race, its comparison is not lost."""
    actual = {REFERENCE: 1.0, SAMPLE: 0.005, VERIFY: 0.2}
    finals, _ = held(passing, 3.5, actual, {step: seconds / 10 for step, seconds in actual.items()})
    assert finals.rounds >= 3 and {row.name for row in finals.baselines} == {*BASELINES}
    assert finals.winner is not None and finals.serves is not None and finals.serves.only is not None
    assert {"many calls", "calls from several threads"} <= {*finals.left_out}
