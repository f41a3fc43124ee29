"""Races at the first use of a shape: how long they continue, and which times they trust. The times are fictitious."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import deepgen as dg
from deepgen import generators, targets
from deepgen.libraries import Library, first_use
from deepgen.libraries.first_use import Raced, time_chosen
from deepgen.run.measure.base import Contender
from deepgen.vocabulary import Measurement, Verdict

UNSEEN = dg.gemm(52, 70, 33)
CPU = targets.resolve("cpu")


def raced(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    *ours: float,
    entries: float = 1.0,
    varied: Any = lambda *_: [],
    rounds: list[int | None] | None = None,
) -> Raced:
    """Make all kernels take this many times as long as numpy: one number per race, the last for all later ones.

    `entries`: the same for those of the library. `rounds` records the limit on rounds of each race.
    """
    races = iter(ours)
    now = next(races)
    slower = dict.fromkeys((entry.name for entry in library.list()), entries)

    def measured(
        task: object, contenders: Sequence[Contender], runners: object, most: int | None
    ) -> dict[str, Measurement]:
        nonlocal now
        if rounds is not None:
            rounds.append(most)
        told = {
            one.name: Measurement(Verdict.CORRECT, "", (now * slower.get(one.name, 1.0),) * 5) for one in contenders
        }
        now = next(races, now)
        return told | {"numpy": Measurement(Verdict.CORRECT, "", (1.0,) * 5)}

    monkeypatch.setattr("deepgen.libraries.first_use.measured", measured)
    monkeypatch.setattr(first_use, "varied_candidates", varied)
    found = time_chosen(library, library.choose(UNSEEN, "cpu"))
    assert found is not None
    return found


def test_who_is_first_of_many_is_timed_once_more(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the best of 32 kernels appeared as fast as the vendor's, and then took 7% longer in every race."""
    rounds: list[int | None] = []
    times = raced(library, monkeypatch, 0.99, 1.07, rounds=rounds).times
    assert rounds == [None, 60], "it decides, and a median of few rounds is chance where samples are of two kinds"
    assert set(times.kernels.values()) == {1.07} and times.baselines == {"numpy": 1.0}
    assert not times.ties


def test_who_lost_stays_slower_when_the_machine_slows_down(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    found = raced(library, monkeypatch, 1.0, 1.5, entries=1.2)
    assert found.fastest is not None, "it was the fastest"
    assert sorted(found.times.kernels.values()) == pytest.approx([1.5, 1.8, 1.8])


@pytest.mark.slow
def test_variants_are_made_for_longer_while_a_baseline_is_faster(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = generators.find(UNSEEN, CPU)
    near = family.space(UNSEEN, CPU).sample(12, seed=0)
    steps: list[int] = []

    def one_more(best: object, known: Sequence[object]) -> list[Any]:
        steps.append(len(steps))
        return [(family, config) for config in near if config not in known][:1]

    raced(library, monkeypatch, 1.1, varied=one_more)
    assert len(steps) == 6
    steps.clear()
    raced(library, monkeypatch, 0.9, varied=one_more)
    assert len(steps) == 1, "it gained nothing, and nobody is faster"
