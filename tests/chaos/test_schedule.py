"""The faults of a chaos run: which are injected, and when."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from faults import kinds, schedule
from faults.kinds import Kind, Scene, Struck
from faults.schedule import Schedule


def scene(**fields: Any) -> Scene:
    return cast("Scene", SimpleNamespace(ended=0, chance=Random(1), nodes=None, **fields))


def test_a_fault_that_finds_nobody_waits_for_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requested faults hit, including those that are rarely possible."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: clock.now))
    there = Kind("kill tuner", "kill", 1, lambda _: Struck("tuner"))
    # A compiler exists for a tenth of a second in every three.
    seldom = Kind("kill compiler", "kill", 1, lambda _: Struck("compiler") if clock.now % 3.0 < 0.1 else None)
    faults = Schedule([there, seldom], 60, seconds=300.0, overtime=150.0, chance=Random(2))
    while not faults.over:
        faults.step(scene())
        clock.now += 0.02
    assert sum(faults.hits.values()) == 60 and not faults.left


def test_what_cannot_hit_ends_with_the_overtime(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: clock.now))
    faults = Schedule([Kind("kill worker", "kill", 1, lambda _: None)], 3, seconds=10.0, overtime=5.0, chance=Random(2))
    while not faults.over:
        assert faults.step(scene()) is None
        clock.now += 0.02
    assert 15.0 < clock.now < 15.1
    assert faults.left == {"kill worker": 3}


def test_a_clusters_clock_is_set_back_by_seconds_only() -> None:
    """Ray stalls for as long as the clock is set back."""
    [jump] = [kind for kind in kinds.EVERYWHERE if kind.name == "clock jump"]
    clock = [0]
    place = SimpleNamespace(clock=lambda: clock[-1], set_clock=clock.append)
    around = scene(place=place)
    for _ in range(50):
        jump.strike(around)
    assert min(after - before for before, after in pairwise(clock)) < -3600
    around.nodes = cast("Any", object())
    clock[:] = [0]
    for _ in range(50):
        jump.strike(around)
    jumps = [after - before for before, after in pairwise(clock)]
    assert -10 < min(jumps) < 0 and max(jumps) > 3600
