"""Every runner satisfies the suite. A new kind of device is added to RUNNERS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import needs
from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.run.measure import Policy, RunnerOptions, Task, open_runner
from deepgen.targets import Sim, Target
from deepgen.targets.sim import fault
from deepgen.testing import RunnerCase, RunnerSuite
from deepgen.testing.runners import BAD
from deepgen.toolchains import Cache, build_once
from deepgen.vocabulary import (
    Artifact,
    Kernel,
    LaunchPlan,
    ScalarArg,
    Source,
    Step,
    TensorArg,
)

pytestmark = pytest.mark.quiet  # the time limit of a run is short, as some kernels never end

OPERATOR = gemm(48, 40, 32)
POLICY = Policy(min_samples=5, max_samples=15, timeout_seconds=1.0)


def _sim(cache: Path) -> RunnerCase:
    target = targets.resolve("sim:faults=0.4,noise=0.01")
    assert isinstance(target, Sim)
    family = SimTiles()
    space = family.space(OPERATOR, target)
    good, bad = [], []
    for config in (space.at(rank) for rank in range(0, 4000, 40)):
        kernel = family.emit(OPERATOR, target, config)
        made = (kernel, Artifact(kernel.id, "", "sim", "sim", {}, 0.0))
        found = fault(target, config)
        if found is None:
            good.append(made)
        elif found in BAD:
            bad.append(made)
    return RunnerCase(open_runner(Task(OPERATOR, target, policy=POLICY)), OPERATOR, POLICY, good[:3], bad[:3])


def _cpu(cache: Path) -> RunnerCase:
    return _loops(cache, targets.resolve("cpu"))


def _riscv(cache: Path) -> RunnerCase:
    return _loops(cache, needs.qemu(), fewer=True)


def _loops(cache: Path, target: Target, *, fewer: bool = False) -> RunnerCase:
    """`fewer`: fewer kernels, for targets where each takes long to build."""
    loop = "for (long i = 0; i < M; i++) for (long j = 0; j < N; j++) { float s = 0; %s C[i * N + j] = s; }"
    inner = "for (long k = 0; k < K; k++) s += A[i * K + k] * B[k * N + j];"
    bodies = [loop % inner, loop % inner + "(void)0;", loop % (inner + "s += 0;")]
    faults = [loop % (inner + "s += (i == 7);"), "*(volatile int *)8 = 1;", 'for (;;) __asm__ volatile("");']
    args = (TensorArg("A"), TensorArg("B"), TensorArg("C"), *(ScalarArg("i64", d) for d in "MNK"))
    head = "void gemm(const float *A, const float *B, float *C, long M, long N, long K)"

    def made(body: str) -> tuple[Kernel, Artifact]:
        source = Source("k.c", f"{head} {{ {body} }}")
        kernel = Kernel("loops", "c", (source,), ("-O2",), LaunchPlan((Step("gemm", args),)))
        return kernel, build_once(kernel, target, cache=Cache(cache))

    runner = open_runner(Task(OPERATOR, target, policy=POLICY), RunnerOptions(cache=cache))
    count = 2 if fewer else 3
    return RunnerCase(runner, OPERATOR, POLICY, [made(b) for b in bodies[:count]], [made(b) for b in faults[:count]])


RUNNERS: dict[str, Callable[[Path], RunnerCase]] = {"sim": _sim, "cpu": _cpu, "riscv": _riscv}


@pytest.fixture(scope="module", params=sorted(RUNNERS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerCase]:
    made = RUNNERS[request.param](tmp_path_factory.mktemp("cache"))
    yield made
    made.runner.close()
    made.runner.close()  # closing twice is harmless


class TestRunners(RunnerSuite):
    pass
