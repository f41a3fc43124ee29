"""What every runner must satisfy. A new kind of device is added to RUNNERS and passes everything below."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import needs
from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.run.measure import Contender, Policy, Runner, Task, open_runner
from deepgen.targets import Sim, Target
from deepgen.targets.sim import fault
from deepgen.toolchains import Cache, build_once
from deepgen.vocabulary import (
    Artifact,
    Kernel,
    LaunchPlan,
    Measurement,
    ScalarArg,
    Source,
    Step,
    TensorArg,
    Verdict,
)

OPERATOR = gemm(48, 40, 32)
POLICY = Policy(min_samples=5, max_samples=15, timeout_seconds=1.0)
BAD = (Verdict.WRONG, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.OUT_OF_MEMORY, Verdict.REFUSED)


@dataclass
class Case:
    """A runner with kernels that are right and kernels that are not."""

    runner: Runner
    good: list[tuple[Kernel, Artifact]]
    bad: list[tuple[Kernel, Artifact]]


def _sim(cache: Path) -> Case:
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
    return Case(open_runner(Task(OPERATOR, target, policy=POLICY)), good[:3], bad[:3])


def _cpu(cache: Path) -> Case:
    return _loops(cache, targets.resolve("cpu"))


def _riscv(cache: Path) -> Case:
    return _loops(cache, needs.qemu(), fewer=True)


def _loops(cache: Path, target: Target, *, fewer: bool = False) -> Case:
    """`fewer`: of kernels, where each takes long to build."""
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

    runner = open_runner(Task(OPERATOR, target, policy=POLICY), cache=cache)
    count = 2 if fewer else 3
    return Case(runner, [made(b) for b in bodies[:count]], [made(b) for b in faults[:count]])


RUNNERS: dict[str, Callable[[Path], Case]] = {"sim": _sim, "cpu": _cpu, "riscv": _riscv}


@pytest.fixture(scope="module", params=sorted(RUNNERS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = RUNNERS[request.param](tmp_path_factory.mktemp("cache"))
    yield made
    made.runner.close()
    made.runner.close()  # twice is as good as once


def test_a_right_kernel_is_correct_and_timed(case: Case) -> None:
    for made in case.good:
        measured = case.runner.measure(*made)
        assert measured.ok, measured.detail
        assert POLICY.min_samples <= len(measured.samples) <= POLICY.max_samples
        assert all(s > 0 for s in measured.samples)
        assert measured.error is not None
        assert 0.0 <= measured.error <= 1.0


def test_a_bad_kernel_has_a_verdict_with_a_reason_and_no_time(case: Case) -> None:
    for made in case.bad:
        measured = case.runner.measure(*made)
        assert measured.verdict in BAD
        assert measured.detail
        assert measured.seconds is None
        assert case.runner.measure(*case.good[0]).ok, "the next one is measured as if nothing had been"


def test_measurements_are_plain_data(case: Case) -> None:
    for made in (case.good[0], case.bad[0]):
        measured = case.runner.measure(*made)
        text = json.dumps(measured.to_json(), allow_nan=False)
        assert Measurement.from_json(json.loads(text)) == measured


def test_a_hopeless_kernel_is_not_timed_longer_than_needed(case: Case) -> None:
    assert case.runner.measure(*case.good[0], beat=1e-12).ok


def test_verifying_gives_a_verdict_on_any_probe_and_takes_no_samples(case: Case) -> None:
    for probe in OPERATOR.probes():
        verified = case.runner.verify(*case.good[0], seed=11, probe=probe)
        assert verified.ok, f"{probe}: {verified.detail}"
        assert verified.samples == ()
    assert case.runner.verify(*case.bad[0], seed=11, probe="normal").verdict is not Verdict.CORRECT


def test_a_comparison_has_one_sample_of_each_for_every_round(case: Case) -> None:
    entries = [Contender(f"k{i}", *made) for i, made in enumerate(case.good)]
    results = case.runner.compare(entries, rounds=7, seed=3)
    assert [len(m.samples) for m in results] == [7] * len(entries)
    assert all(m.ok for m in results)


def test_every_event_is_counted_or_missing_with_a_reason(case: Case) -> None:
    events = ["task-clock", "no-such-event"]
    counted = case.runner.count(*case.good[0], events)
    assert sorted([*counted.values, *counted.missing]) == sorted(events)
    assert all(counted.missing.values())
    assert not case.runner.count(*case.bad[0], events).values


def test_one_bad_contender_does_not_spoil_a_comparison(case: Case) -> None:
    entries = [Contender("first", *case.good[0]), Contender("bad", *case.bad[0]), Contender("last", *case.good[1])]
    first, bad, last = case.runner.compare(entries, rounds=3, seed=3)
    assert (first.ok, bad.ok, last.ok) == (True, False, True)
    assert not bad.samples
    assert bad.detail
