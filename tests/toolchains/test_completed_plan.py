"""Launch details known only to the compiler are filled in by the build, and hold wherever the kernel is launched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from build_helpers import c_kernel

from deepgen.operators import gemm
from deepgen.run.call.loaded import load
from deepgen.run.measure import RunnerOptions, Task, open_runner
from deepgen.targets import Cpu, Target
from deepgen.toolchains import BuildLimits, Built, Cache, Group, make
from deepgen.toolchains.compilers.c import CCompiler
from deepgen.tuning.study.winner import read_winner, write_winner
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, Step, TensorArg, completed

OPERATOR = gemm(1, 1, 1)
ARGS = (TensorArg("A"), TensorArg("B"), TensorArg("C"))
TEXT = "void named_by_the_compiler(const float *a, const float *b, float *c) { *c = *a * *b; }\n"


@dataclass(frozen=True)
class Naming(CCompiler):
    """A compiler that renames entry points."""

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        built = super().build(kernel, target, folder, limits, group)
        steps = tuple(replace(step, entry="named_by_the_compiler") for step in kernel.plan.steps)
        return replace(built, plan=replace(kernel.plan, steps=steps))


@pytest.fixture
def kernel() -> Kernel:
    return replace(c_kernel(TEXT), plan=LaunchPlan((Step("not_known_yet", ARGS),)))


@pytest.fixture
def artifact(kernel: Kernel, gcc: CCompiler, target: Cpu, cache: Cache, group: Group) -> Artifact:
    made = [make(kernel, Naming(**vars(gcc)), target, cache, BuildLimits(), group) for _ in range(2)]
    assert made[0] == made[1], "the cache gives what the build gave"
    return made[0]


def test_the_plan_comes_back_from_json_and_changes_no_id(kernel: Kernel, artifact: Artifact) -> None:
    assert artifact.plan is not None and artifact.plan.steps[0].entry == "named_by_the_compiler"
    assert Artifact.from_json(artifact.to_json()) == artifact
    assert artifact.kernel_id == kernel.id != completed(kernel, artifact.plan).id
    plain = replace(artifact, plan=None)
    assert "plan" not in plain.to_json() and Artifact.from_json(plain.to_json()) == plain
    assert completed(kernel, None) is kernel


def test_it_is_what_is_measured(kernel: Kernel, artifact: Artifact, target: Cpu, tmp_path: Path) -> None:
    runner = open_runner(Task(OPERATOR, target), RunnerOptions(cache=tmp_path))
    try:
        assert runner.measure(kernel, artifact).ok
    finally:
        runner.close()


def test_a_stored_winner_is_called_by_it(kernel: Kernel, artifact: Artifact, target: Cpu, tmp_path: Path) -> None:
    write_winner(tmp_path / "winner", kernel, artifact, "{}")
    stored = read_winner(tmp_path / "winner")
    assert stored is not None and stored.own and stored.kernel == kernel and stored.plan == artifact.plan
    loaded = load(stored.kernel, OPERATOR, target, stored.binary, stored.plan)
    two = np.full((1, 1), 2.0, np.float32)
    assert loaded(two, two)[0, 0] == 4.0
    (tmp_path / "winner" / "plan.json").unlink()
    changed = read_winner(tmp_path / "winner")
    assert changed is not None and not changed.own, "who launches something else is not who signed"
