"""The simulated device answers the same on every machine and in every process, so that searches can be replayed."""

from __future__ import annotations

import math
from statistics import median

import pytest

from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.run.measure import Contender, Policy, Task, open_runner
from deepgen.targets import Sim
from deepgen.targets.sim import true_seconds
from deepgen.vocabulary import Artifact, BadInput, Kernel, LaunchPlan, Source

OPERATOR = gemm(256, 256, 256)
FAMILY = SimTiles()


def made(rank: int, target: Sim) -> tuple[Kernel, Artifact]:
    kernel = FAMILY.emit(OPERATOR, target, FAMILY.space(OPERATOR, target).at(rank))
    return kernel, Artifact(kernel.id, "", "sim", "sim", {}, 0.0)


def sim(options: str = "noise=0.02") -> Sim:
    target = targets.resolve(f"sim:{options}")
    assert isinstance(target, Sim)
    return target


def test_times_depend_on_seed_config_and_occasion_alone() -> None:
    target = sim()
    one, two = (open_runner(Task(OPERATOR, target, seed=4)) for _ in range(2))
    two.measure(*made(9, target))  # earlier measurements do not matter, nor does the time to beat
    assert one.measure(*made(5, target)) == two.measure(*made(5, target), beat=1e-9)
    other = open_runner(Task(OPERATOR, target, seed=5))
    assert one.measure(*made(5, target)).samples != other.measure(*made(5, target)).samples
    entries = [Contender("x", *made(5, target))]
    assert one.compare(entries, 5, seed=1) == two.compare(entries, 5, seed=1)
    assert one.compare(entries, 5, seed=1) != two.compare(entries, 5, seed=2)


def test_the_median_is_near_the_true_time() -> None:
    target = sim()
    runner = open_runner(Task(OPERATOR, target))
    for rank in (0, 100, 1000):
        config = FAMILY.space(OPERATOR, target).at(rank)
        measured = runner.measure(*made(rank, target))
        assert measured.seconds is not None
        assert math.isclose(measured.seconds, true_seconds(target, OPERATOR.flops(), config), rel_tol=0.03)
        assert measured.seconds == median(measured.samples)


def test_less_noise_needs_fewer_samples() -> None:
    counts = []
    for options in ("noise=0.0001", "noise=0.1"):
        target = sim(options)
        runner = open_runner(Task(OPERATOR, target, policy=Policy(min_samples=5, max_samples=50)))
        counts.append(len(runner.measure(*made(5, target)).samples))
    assert counts == [5, 50]


def test_a_kernel_for_another_device_is_refused_in_words() -> None:
    kernel = Kernel("k", "c", (Source("k.c", "int x;"),), (), LaunchPlan(()))
    with pytest.raises(BadInput, match="not for the simulated device"):
        open_runner(Task(OPERATOR, sim())).measure(kernel, Artifact("", "", "so", "", {}, 0.0))
