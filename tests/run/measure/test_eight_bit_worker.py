"""8-bit floats through the GPU worker, with a driver over host memory: inputs, reference, verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_gpu import EIGHT_BITS, kernel, supervised

from deepgen.operators import gemm
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Verdict


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Supervisor]:
    # f32, because the simulated driver judges nothing else.
    with supervised(gemm(24, 20, 64, dtype="f8e4m3", c="f32", layout="nt"), folder) as made:
        yield made


def test_a_right_kernel_is_right_on_usual_and_on_odd_inputs(runner: Supervisor, folder: Path) -> None:
    right = kernel(folder, "right", numbers=EIGHT_BITS)
    measured = runner.measure(*right)
    assert measured.verdict is Verdict.CORRECT, measured.detail
    assert measured.error is not None and measured.error < 0.1  # f32 sums are more accurate than those of tensor cores
    for probe in ("large", "denormal", "special"):
        assert runner.verify(*right, 5, probe).ok, probe


def test_a_lost_product_and_a_number_read_wrongly_are_found(runner: Supervisor, folder: Path) -> None:
    lost = kernel(folder, "lost", "C[7] -= value(A[0]) * value(B[7 * ldb]);", EIGHT_BITS)
    measured = runner.measure(*lost)
    assert measured.verdict is Verdict.WRONG and "C[0, 7] is" in measured.detail
    flushed = kernel(folder, "flushed", numbers=EIGHT_BITS.replace("__builtin_ldexpf(fraction, -9)", "0"))
    assert runner.verify(*flushed, 5, "denormal").verdict is Verdict.WRONG
