"""A kernel that needs more alignment than its parameters guarantee does not pass, whatever its sizes are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import kernel as gpu_kernel
from faulty_kernels import TARGET, build
from faulty_kernels import kernel as cpu_kernel

import deepgen as dg
from deepgen.kernels.own import OwnKernel
from deepgen.operators import gemm
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.run.measure.guarded import Guarded, Placement
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import BadInput, Verdict

ADD = """
#include <stdint.h>
void add(float *y, const float *x, long n) {
    for (long i = 0; i < n; i++) y[i] = x[i] + ((uintptr_t)x % NEEDS || (uintptr_t)y % NEEDS);
}
"""


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    task = Task(gemm(32, 32, 32), TARGET, policy=Policy(min_samples=3, max_samples=3))  # all tensors are whole pages
    supervisor = Supervisor(task)
    yield supervisor
    supervisor.close()


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_aligned_loads_are_found_in_trials_and_in_finals(name: str, supervisor: Supervisor) -> None:
    made = cpu_kernel(f"multiply(A, B, C, M, N, K); ALIGNED({name});")
    built = made, build(made)
    for found in (supervisor.measure(*built), supervisor.verify(*built, 3, "normal")):
        assert found.verdict is Verdict.CRASHED and "aligned only to their element size" in found.detail, found


def test_wrong_results_where_arrays_are_not_aligned_are_said_to_be_such(supervisor: Supervisor) -> None:
    made = cpu_kernel("multiply(A, B, C, M, N, K); if ((long)B % 64) C[3] = 0;")
    found = supervisor.measure(made, build(made))
    assert found.verdict is Verdict.WRONG and "aligned only to their element size" in found.detail
    right = cpu_kernel("multiply(A, B, C, M, N, K);")
    assert supervisor.measure(right, build(right)).ok


def test_gpus_promise_16_bytes_and_no_more(runner: Supervisor, tmp_path: Path) -> None:
    wide = gpu_kernel(tmp_path, "wide", "if ((unsigned long)B % 32) C[0] = 0;")
    for found in (runner.measure(*wide), runner.verify(*wide, 3, "normal")):
        assert found.verdict is Verdict.WRONG and "aligned only to their element size" in found.detail, found
    assert runner.measure(*gpu_kernel(tmp_path, "narrow", "if ((unsigned long)B % 16) C[0] = 0;")).ok


@pytest.mark.parametrize("size", [1, 4, 64, 100, 4096, 5_000_000])
@pytest.mark.parametrize("promised", [1, 4, 16, 64, 256])
def test_buffers_lie_off_by_what_is_promised(size: int, promised: int) -> None:
    buffer = Guarded("C", size, *Placement.OFF.border(promised))
    assert buffer.start % promised == 0 and buffer.start % (2 * promised) == promised
    buffer.all.fill(7)
    assert buffer.damage() is None
    buffer.close()


@pytest.mark.parametrize("promised", [1, 4, 8, 16, 64])
def test_every_tensor_meets_every_part_of_a_line_and_no_two_the_same(promised: int) -> None:
    met = {number: [Placement.apart(turn).border(promised, number) for turn in range(3)] for number in range(3)}
    line = max(64, 2 * promised)
    wanted = {part for part in (line // 2, line // 4, line // 8) if part >= promised}
    for number, borders in met.items():
        assert {off for _, off in borders} == wanted and {align for align, _ in borders} == {line}
        if len(wanted) > 1 and number:
            assert all(one != other for one, other in zip(borders, met[number - 1], strict=True))


def test_arrays_that_differ_in_their_alignment_are_found_in_finals(supervisor: Supervisor) -> None:
    """Vectors that begin where A is aligned, and store to C as if it were alike."""
    made = cpu_kernel("multiply(A, B, C, M, N, K); if ((long)A % 64 != (long)C % 64) C[3] = 0;")
    built = made, build(made)
    assert supervisor.measure(*built).ok
    found = supervisor.verify(*built, 3, "normal")
    assert found.verdict is Verdict.WRONG and "aligned differently from each other" in found.detail, found


def test_contenders_get_arrays_that_begin_as_numpys_do(supervisor: Supervisor) -> None:
    """Large arrays of numpy begin 16 bytes behind a cache line."""
    made = cpu_kernel("multiply(A, B, C, M, N, K); if ((long)A % 64 != 16 || (long)C % 64 != 16) C[3] = 0;")
    built = made, build(made)
    lines, behind = supervisor.compare([Contender("a", *built), Contender("b", *built, behind=True)], 2, 0)
    assert lines.verdict is Verdict.WRONG and behind.ok, (lines, behind)
    assert Placement.BEHIND.border(64) == (64, 0), "unless more is promised"


def _adding(needs: list[int], align: int) -> OwnKernel:
    arguments = [dg.output("y", "n", "f32", align=align), dg.input("x", "n", "f32", align=align), dg.scalar("n", "i64")]
    return dg.kernel(
        ADD, language="c", entry="add", arguments=arguments, sizes={"n": 1024}, knobs={"NEEDS": needs},
        reference=lambda x: x,
    )  # fmt: skip


def test_a_users_kernel_may_ask_for_alignment_and_is_then_called_with_nothing_else(tmp_path: Path) -> None:
    study = dg.tune(_adding([1, 64], 0), target="cpu", trials=2, out=tmp_path / "plain", baselines=False)
    assert {t.config["NEEDS"]: t.measurement.verdict for t in study.trials() if t.measurement} == {
        1: Verdict.CORRECT,
        64: Verdict.WRONG,
    }
    study = dg.tune(_adding([64], 64), target="cpu", trials=1, out=tmp_path / "aligned", baselines=False)
    raw = np.zeros(200, np.float32)
    lines = raw[-raw.ctypes.data % 64 // 4 :][:100]
    loaded = study.best().load()
    assert (loaded(lines) == lines).all()
    with pytest.raises(BadInput, match="x is not 64-byte aligned"):
        loaded(lines[1:])


def test_alignments_are_powers_of_two() -> None:
    with pytest.raises(BadInput, match="aligned to 24 bytes"):
        dg.input("x", "n", "f32", align=24)
