"""8-bit floats through the GPU worker, with a driver over host memory: inputs, reference, verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_gpu import EIGHT_BITS, build_driver, kernel

from deepgen.build import Cache, build_once
from deepgen.measure import gpu_checks
from deepgen.measure.base import Policy, Task
from deepgen.measure.supervisor import Supervisor
from deepgen.operators import gemm
from deepgen.targets import resolve
from deepgen.vocabulary import Missing, Verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("eight")
    if build_driver(made) is None:
        pytest.skip("there is no C compiler to build the fake driver with")
    return made


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Supervisor]:
    target = resolve("cuda:sm_90a")
    try:
        build_once(gpu_checks.source("cuda"), target, cache=Cache(folder))
    except Missing as error:
        pytest.skip(str(error))
    # f32, because the driver's stand-in judges nothing else.
    operator = gemm(24, 20, 64, dtype="f8e4m3", c="f32", layout="nt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(folder))  # not before: NVRTC itself asks a driver that it finds
        made = Supervisor(Task(operator, target, policy=Policy(timeout_seconds=1.0, max_samples=8)), cache=folder)
        yield made
        made.close()


def test_a_right_kernel_is_right_on_usual_and_on_odd_inputs(runner: Supervisor, folder: Path) -> None:
    right = kernel(folder, "right", numbers=EIGHT_BITS)
    measured = runner.measure(*right)
    assert measured.verdict is Verdict.CORRECT, measured.detail
    assert measured.error is not None and measured.error < 0.1  # f32 sums are better than those of tensor cores
    for probe in ("large", "denormal", "special"):
        assert runner.verify(*right, 5, probe).ok, probe


def test_a_lost_product_and_a_number_read_wrongly_are_found(runner: Supervisor, folder: Path) -> None:
    lost = kernel(folder, "lost", "C[7] -= value(A[0]) * value(B[7 * ldb]);", EIGHT_BITS)
    measured = runner.measure(*lost)
    assert measured.verdict is Verdict.WRONG and "C[0, 7] is" in measured.detail
    flushed = kernel(folder, "flushed", numbers=EIGHT_BITS.replace("__builtin_ldexpf(fraction, -9)", "0"))
    assert runner.verify(*flushed, 5, "denormal").verdict is Verdict.WRONG
