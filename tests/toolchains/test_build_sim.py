"""The simulated toolchain fails where its target says, and obeys the pool like a real one."""

from __future__ import annotations

import json
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from build_helpers import until

from deepgen import targets
from deepgen.targets import Sim
from deepgen.targets.sim import fault
from deepgen.toolchains import BuildError, BuildPool, Cache, build_once, toolchain_for
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Verdict


def sim_kernel(x: int) -> Kernel:
    return Kernel("sim", "sim", (Source("sim.json", json.dumps({"config": {"x": x}})),), (), LaunchPlan(()))


def sim_target(options: str) -> Sim:
    target = targets.resolve(f"sim:{options}")
    assert isinstance(target, Sim)
    return target


def test_builds_fail_where_the_target_says(cache: Cache) -> None:
    target = sim_target("faults=0.9,seed=1")
    seen = set()
    for x in range(40):
        expected = fault(target, {"x": x})
        if expected in (Verdict.BUILD_FAILED, Verdict.BUILD_TIMEOUT):
            with pytest.raises(BuildError) as caught:
                build_once(sim_kernel(x), target, cache=cache)
            assert caught.value.verdict is expected
            seen.add(expected)
        else:
            artifact = build_once(sim_kernel(x), target, cache=cache)
            assert json.loads(Path(artifact.binary).read_text()) == {"config": {"x": x}}
            assert artifact.format == "sim"
    assert len(seen) == 2


def test_a_device_with_other_faults_does_not_share_its_failures(cache: Cache) -> None:
    faulty = sim_target("faults=1.0")
    bad = next(x for x in range(100) if fault(faulty, {"x": x}) is Verdict.BUILD_FAILED)
    with pytest.raises(BuildError):
        build_once(sim_kernel(bad), faulty, cache=cache)
    assert build_once(sim_kernel(bad), sim_target(""), cache=cache).format == "sim"


def test_a_simulated_build_takes_its_time_pauses_and_is_killed(cache: Cache) -> None:
    target = sim_target("build_seconds=2.0")
    with BuildPool(lambda _: toolchain_for(target, "sim"), target, cache, jobs=1) as pool:
        future = pool.submit(sim_kernel(1))
        assert until(lambda: pool.running == 1)
        with pool.quiet():
            time.sleep(2.1)
            assert not future.done()
        future.result()
        last = pool.submit(sim_kernel(2))
        assert until(lambda: pool.running == 1)
    with pytest.raises(CancelledError):
        last.result()
