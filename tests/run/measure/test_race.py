"""One race: rounds are interleaved, orders are drawn from the seed, and a stopping rule ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepgen.run.measure.race import RaceResult, interleaved, race


def test_every_contender_has_one_sample_a_round() -> None:
    calls: list[str] = []

    def timer(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    timers = {"a": lambda: timer("a", 1.0), "b": lambda: timer("b", 2.0), "c": lambda: timer("c", 4.0)}
    result = race(timers, interleaved(timers, 7), 4)
    assert result.samples == {"a": [1.0] * 4, "b": [2.0] * 4, "c": [4.0] * 4}
    rounds = [tuple(calls[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 1, "the order is drawn again for each round"
    again = calls.copy()
    calls.clear()
    race(timers, interleaved(timers, 7), 4)
    assert calls == again, "the seed decides the order"
    assert result.leader("abc") == "a" and result.leader("bc") == "b" and result.leader("x") is None
    ratio = result.ratio("b", "a")
    assert (ratio.estimate, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


def test_who_fails_drops_out() -> None:
    left = [0.1, 0.1]

    def fails() -> float | None:
        return left.pop() if left else None

    result = race("ab", interleaved({"a": fails, "b": lambda: 0.2}, 0), 3)
    assert result.samples == {"b": [0.2] * 3}


def test_a_rule_asks_for_more_rounds() -> None:
    asked: list[tuple[list[str], int, int]] = []

    def time_rounds(present: Sequence[str], rounds: int, first: int) -> Mapping[str, Sequence[float]]:
        asked.append((list(present), rounds, first))
        return {name: [1.0] * rounds for name in present if name != "b" or first == 0}

    def more(result: RaceResult[str]) -> int:
        return min(4, 9 - result.rounds)

    result = race(("a", "b"), time_rounds, 3, more)
    assert asked == [(["a", "b"], 3, 0), (["a", "b"], 4, 3), (["a"], 2, 7)]
    assert result.samples == {"a": [1.0] * 9} and result.rounds == 9 and len(result.seconds) == 3


def test_rounds_that_fit_into_the_time_that_is_left() -> None:
    result = RaceResult({"a": [1.0] * 10}, rounds=10, seconds=[1.0, 1.0])
    assert result.fitting(4.0) == 10
    assert result.fitting(1.0) <= 0
