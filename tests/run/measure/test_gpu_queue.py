"""A GPU's clock measures the run, and not the time that the host took to enqueue it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from fake_gpu import kernel, supervised
from slow_baselines import Chooses, Slow, TooSlow

from deepgen.operators import gemm
from deepgen.run.measure.base import Contender
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Measurement
from deepgen.vocabulary.finding import source_of

pytestmark = pytest.mark.quiet


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Supervisor]:
    own = {one.name: source_of(one) for one in (Slow, TooSlow, Chooses)}
    with supervised(gemm(24, 20, 16, layout="nt"), folder, own={n: s for n, s in own.items() if s}) as made:
        yield made


def raced(runner: Supervisor, name: str) -> Measurement:
    (measured,) = runner.compare([Contender(name)], rounds=4, seed=1)
    assert measured.ok, measured.detail
    return measured


@pytest.mark.parametrize("name", ["slow", "chooses"])
def test_a_slow_host_is_not_held_against_a_baseline(runner: Supervisor, name: str) -> None:
    measured = raced(runner, name)
    assert median(measured.samples) < 0.5 * Slow.seconds and measured.conditions["late_samples"] == 0


def test_a_host_that_is_too_slow_to_be_hidden_is_told_of(runner: Supervisor) -> None:
    measured = raced(runner, "too slow")
    assert measured.conditions["late_samples"] == len(measured.samples) == 4


def test_every_run_is_checked_also_one_that_is_taken_again(runner: Supervisor, folder: Path) -> None:
    measured = runner.measure(*kernel(folder, "second", "static int n; if (n++ == 1) C[0] += 1.f;"))
    assert "correct at first but not on call" in measured.detail
