"""Measuring on a GPU, with a driver over host memory instead of the real one: verdicts, restarts, timing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import kernel, supervised

from deepgen.operators import gemm
from deepgen.run.measure.base import Contender
from deepgen.run.measure.supervisor import Supervisor
from deepgen.targets import device_for
from deepgen.targets.gpu import parse_cuda, parse_hip
from deepgen.vocabulary import Missing, Verdict


def test_a_right_kernel_is_timed_and_its_conditions_told(runner: Supervisor, folder: Path) -> None:
    measured = runner.measure(*kernel(folder, "right"))
    assert measured.verdict is Verdict.CORRECT, measured.detail
    assert len(measured.samples) >= 5 and measured.error is not None and measured.error < 1.0
    assert measured.conditions["cold"] and measured.conditions["flush"] == "read"


@pytest.mark.parametrize(
    ("name", "more", "verdict", "words"),
    [
        ("past", "C[M * ldc + 3] = 1.f;", Verdict.WRONG, "past the end of C"),
        ("before", "C[-2] = 1.f;", Verdict.WRONG, "before the start of C (at byte -8)"),
        ("input", "((float*)A)[5] = 1.f;", Verdict.WRONG, "wrote to its input A (at byte 20)"),
        ("little", "C[7] *= 1.01f;", Verdict.WRONG, "C[0, 7] is"),
        ("no number", "C[7] = 0.f / 0.f;", Verdict.WRONG, "C[0, 7] is nan"),
        ("later", "static int n; if (n++ > 2) C[0] += 1.f;", Verdict.WRONG, "correct at first but not on call"),
        ("address", "return 700;", Verdict.CRASHED, "illegal memory access"),
        ("endless", 'for (;;) __asm__ volatile("");', Verdict.TIMED_OUT, "did not finish within 1 second"),
    ],
)
def test_a_faulty_kernel_has_its_verdict_and_harms_nobody(
    runner: Supervisor, folder: Path, name: str, more: str, verdict: Verdict, words: str
) -> None:
    good = kernel(folder, "right")
    assert runner.measure(*good).ok
    measured = runner.measure(*kernel(folder, name, more))
    assert measured.verdict is verdict
    assert words in measured.detail
    assert runner.measure(*good).ok


def test_what_the_driver_refuses_is_refused(runner: Supervisor, folder: Path) -> None:
    greedy = runner.measure(*kernel(folder, "greedy", shared_bytes=1 << 20))
    assert greedy.verdict is Verdict.REFUSED and "invalid argument" in greedy.detail
    made, artifact = kernel(folder, "garbled")
    Path(artifact.binary).write_bytes(b"no cubin\0")
    garbled = runner.measure(made, artifact)
    assert garbled.verdict is Verdict.REFUSED and "cannot be loaded" in garbled.detail


def test_contenders_race_in_turns_and_one_that_dies_leaves_the_others(runner: Supervisor, folder: Path) -> None:
    names = ("right", "address")
    built = [kernel(folder, "right"), kernel(folder, "address", "return 700;")]
    contenders = [Contender(name, *pair) for name, pair in zip(names, built, strict=True)]
    first, second, missing = runner.compare([*contenders, Contender("no such baseline")], rounds=4, seed=1)
    assert first.ok and len(first.samples) == 4
    assert second.verdict is Verdict.CRASHED
    assert missing.verdict is Verdict.REFUSED and "unknown baseline" in missing.detail


def test_other_inputs_are_verified(runner: Supervisor, folder: Path) -> None:
    assert runner.verify(*kernel(folder, "right"), 5, "large").ok
    assert runner.verify(*kernel(folder, "little", "C[7] *= 1.01f;"), 5, "normal").verdict is Verdict.WRONG


def test_without_a_gpu_a_bundle_is_offered() -> None:
    with pytest.raises(Missing, match=r"this host can build kernels .* but not measure them.*deepgen bundle pack"):
        device_for(parse_hip("gfx906"))


@pytest.mark.parametrize(
    ("target", "card", "runs"),
    [("sm_80", "sm_86", True), ("sm_86", "sm_80", False), ("sm_80", "sm_90", False), ("sm_90a", "sm_90a", True)],
)
def test_code_runs_on_its_own_generation(target: str, card: str, runs: bool) -> None:
    assert parse_cuda(target).runs_on(parse_cuda(card)) is runs


def test_one_worker_goes_from_operator_to_operator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reimporting a baseline's framework for each shape would take longer than the race."""
    monkeypatch.setattr("deepgen.run.measure.supervisor.built_here", lambda task, **options: {})
    with supervised(gemm(24, 20, 16, layout="nt"), folder) as runner:
        first, right = runner.task, Contender("right", *kernel(folder, "right"))
        assert runner.compare([right], rounds=2, seed=0)[0].ok
        worker = runner.worker_pid
        runner.switch_to(replace(first, operator=gemm(40, 20, 16, layout="nn")))
        [other] = runner.compare([right], rounds=2, seed=0)
        assert other.verdict is Verdict.WRONG, "it is judged by the other operator's answer"
        runner.switch_to(first)
        assert runner.compare([right], rounds=2, seed=0)[0].ok
        assert runner.worker_pid == worker
