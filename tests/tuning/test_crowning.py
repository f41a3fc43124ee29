"""The last checks of finals: the leader must pass them, otherwise the next one leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import deepgen as dg
from deepgen import targets
from deepgen.operators.neighbours import multiples
from deepgen.run.measure.base import MANY_CALLS, SEVERAL_THREADS, Task
from deepgen.run.measure.race import RaceResult
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.finals.crowning import Crowned, _fixed_values, crown
from deepgen.tuning.finals.qualifying import Finalist, Qualified
from deepgen.tuning.finals.race import Race
from deepgen.tuning.progress import Clock
from deepgen.tuning.study.finals import Serves
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, Measurement, Source, Trial, Verdict
from deepgen.vocabulary.measurement import ANY, ONE

OPERATOR = dg.gemm(64, 64, 64)
TASK = Task(OPERATOR, targets.resolve("sim"), neighbours=OPERATOR.neighbours(), multiples=multiples(OPERATOR))
NEAR, MULTIPLES = len(TASK.timed), len(TASK.timed) + len(TASK.neighbours)
RIGHT, WRONG = Measurement(Verdict.CORRECT), Measurement(Verdict.WRONG, "C[0] is 1")


class Judged:
    """An arena that knows which kernel fails which check."""

    def __init__(self, wrong: Callable[[int, str, int], bool | None]) -> None:
        """`wrong` returns None if the kernel refuses."""
        self._wrong = wrong

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        wrong = self._wrong(int(kernel.sources[0].text), probe, shape)
        return Measurement(Verdict.REFUSED) if wrong is None else WRONG if wrong else RIGHT


def crowned(
    wrong: Callable[[int, str, int], bool | None], clock: Clock | None = None
) -> tuple[Crowned | None, Qualified]:
    """Three finalists, each slower than the one before."""
    finalists = []
    for number in range(3):
        kernel = Kernel("made_up", "c", (Source("id", str(number)),), (), LaunchPlan(()))
        trial = Trial(number, number, {}, str(number), Measurement(Verdict.CORRECT, samples=(1.0,)))
        finalists.append(Finalist(trial, kernel, Artifact(str(number), "", "so", "", {}, 0.0), number == 2))
    samples = {f.name: [1.0 + f.trial.id] * 10 for f in finalists}
    result = RaceResult(samples)
    ratios = {name: result.ratio(name, finalists[0].name) for name in samples}
    race = Race(samples, ratios, finalists[0].name, [], tuple(samples))
    qualified = Qualified(finalists, sets=9)
    return crown(cast(Arena, Judged(wrong)), TASK, qualified, race, clock or Clock()), qualified


def facts(of: Crowned | None) -> tuple[int, bool, str]:
    assert of is not None and of.serves is not None
    return of.winner.trial.id, of.serves.only is None, of.properties.threads


def test_the_fastest_wins_where_nothing_is_wrong() -> None:
    winner, qualified = crowned(lambda who, probe, shape: False)
    assert facts(winner) == (0, True, ANY) and not qualified.dropped


def test_one_that_fails_in_many_calls_is_dropped_and_the_next_one_leads() -> None:
    winner, qualified = crowned(lambda who, probe, shape: who == 0 and probe == MANY_CALLS)
    assert facts(winner) == (1, True, ANY)
    assert [(row.trial, row.verdict) for row in qualified.dropped] == [(0, Verdict.WRONG)]
    assert winner is not None and winner.race.leader == "trial 1"


def test_one_that_is_wrong_at_another_shape_loses_to_one_that_is_not() -> None:
    winner, qualified = crowned(lambda who, probe, shape: who < 2 and shape >= NEAR)
    assert facts(winner) == (2, True, ANY)
    assert [row.trial for row in qualified.dropped] == [0, 1]
    assert "elsewhere: wrong at gemm" in qualified.dropped[0].detail


def test_one_that_serves_multiples_only_is_tried_there() -> None:
    winner, _ = crowned(lambda who, probe, shape: None if NEAR <= shape < MULTIPLES else who == 0 and shape > MULTIPLES)
    assert facts(winner) == (1, True, ANY)
    assert winner is not None and winner.serves is not None
    assert winner.serves.right_at == tuple(TASK.shapes[shape].describe() for shape in (MULTIPLES, MULTIPLES + 1))
    winner, _ = crowned(lambda who, probe, shape: who == 0 and shape >= MULTIPLES)
    assert facts(winner) == (0, True, ANY), "the neighbours say enough"


def test_where_all_are_wrong_elsewhere_the_fastest_is_confined() -> None:
    called = []

    def wrong(who: int, probe: str, shape: int) -> bool:
        called.extend([who] if probe == MANY_CALLS else [])
        return shape >= NEAR

    winner, qualified = crowned(wrong)
    assert facts(winner) == (0, False, ANY) and not qualified.dropped
    assert called == [0], "the others do not win, however often they are called"


def test_one_that_is_right_elsewhere_is_called_as_often_as_a_leader() -> None:
    def wrong(who: int, probe: str, shape: int) -> bool:
        return (who == 0 and shape >= NEAR) or (who == 1 and probe == MANY_CALLS)

    winner, qualified = crowned(wrong)
    assert facts(winner) == (2, True, ANY)
    assert {row.trial for row in qualified.dropped} == {0, 1}


def test_none_wins_where_all_are_wrong() -> None:
    winner, qualified = crowned(lambda who, probe, shape: probe == MANY_CALLS)
    assert winner is None and len(qualified.dropped) == 3


def test_one_that_threads_cannot_share_wins_and_is_marked() -> None:
    winner, _ = crowned(lambda who, probe, shape: probe == SEVERAL_THREADS)
    assert facts(winner) == (0, True, ONE)


def test_what_there_is_no_time_for_is_named_and_not_served() -> None:
    winner, _ = crowned(lambda who, probe, shape: False, Clock(1e-9))
    assert facts(winner)[:2] == (0, False) and winner is not None
    assert {"many calls", "calls from several threads"} <= set(winner.left_out)
    (condition, words), *_ = cast(Serves, winner.serves).requirements(OPERATOR.signature())
    assert "M == 64" in condition and "`deepgen retest` tests them" in words


def test_values_of_scalars_that_were_not_tried_are_refused() -> None:
    (only,) = Serves(values={"factor": 2.0}).requirements(OPERATOR.signature())
    assert only[0] == "factor == 2.0" and "`deepgen retest`" in only[1]


def test_scalars_get_two_other_values() -> None:
    def kernel(**words: Any) -> dict[str, list[Any]]:
        scalars = [dg.scalar("f", "f32", 2.0, **words), dg.scalar("count", "i32", 10), dg.scalar("flag", "i32", 1)]
        arguments = [dg.output("y", "n", "f32"), *scalars]
        made_up = "void k(float *y, float f, int count, int flag) {}"
        own = dg.kernel(made_up, language="c", entry="k", arguments=arguments, sizes={"n": 8}, reference=lambda f: f)
        variants = own.operator().variants()
        return {name: [one.values()[name] for one in variants] for name in ("f", "count", "flag")}

    near = kernel()
    assert near["count"] == [9, 5] and near["flag"] == [1, 1]
    assert len(near["f"]) == 2 and all(1.0 < value < 4.0 and value != 2.0 for value in near["f"])
    assert all(5.0 <= value <= 6.0 for value in kernel(range=(5.0, 6.0))["f"])


def test_a_flag_without_a_range_serves_its_one_value_and_says_why() -> None:
    def fixed(**words: Any) -> dict[str, float]:
        arguments = [dg.output("y", "n", "f32"), dg.scalar("f", "f32", 2.0), dg.scalar("flag", "i32", 1, **words)]
        made_up = "void k(float *y, float f, int flag) {}"
        own = dg.kernel(made_up, language="c", entry="k", arguments=arguments, sizes={"n": 8}, reference=lambda f: f)
        operator = own.operator()
        if words:
            assert {one.values()["flag"] for one in operator.variants()} == {0}, "never its own"
        return _fixed_values(Task(operator, targets.resolve("sim"), variants=operator.variants()))

    assert fixed() == {"flag": 1} and fixed(range=(0, 1)) == {}
    (only,) = Serves(values={"flag": 1}, fixed={"flag": 1}).requirements(OPERATOR.signature())
    assert only[0] == "flag == 1" and "range=(low, high)" in only[1]
