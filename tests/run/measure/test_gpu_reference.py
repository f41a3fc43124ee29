"""References on the device: trusted if numpy agrees, else the host computes them and the measurement says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_gpu import kernel, reference, supervised
from hypothesis import given
from hypothesis import strategies as st

from deepgen.operators import gemm
from deepgen.run.measure.base import Task
from deepgen.run.measure.helpers import build_helpers
from deepgen.run.measure.references import SAMPLES, sampled
from deepgen.targets import resolve
from deepgen.vocabulary import DeepgenError, Kernel, Verdict

OPERATOR = gemm(40, 50, 16, layout="nt")


def test_a_kernel_is_judged_by_the_devices_reference(tmp_path: Path) -> None:
    with supervised(OPERATOR, tmp_path, reference=reference(OPERATOR, tmp_path)) as runner:
        right = runner.measure(*kernel(tmp_path, "right"))
        assert right.ok and right.conditions["reference"] == "device"
        wrong = runner.measure(*kernel(tmp_path, "little", "C[7] *= 1.01f;"))
        assert wrong.verdict is Verdict.WRONG and "C[0, 7] is" in wrong.detail and "1 of 2000" in wrong.detail
        assert runner.verify(*kernel(tmp_path, "right"), 3, "large").conditions["reference"] == "device"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("want[M * N - 1] += 1e-3;", "a different value at C[39, 49]"),  # a corner
        ("for (int i = 0; i < M * N; i += 2) size[i] *= 2;", "a different scale at C[0, 0]"),
        ("want[0] = __builtin_nan(\"\");", "a different value at C[0, 0]"),
    ],
)  # fmt: skip
def test_one_that_numpy_does_not_agree_with_is_not_used(more: str, words: str, tmp_path: Path) -> None:
    with supervised(OPERATOR, tmp_path, reference=reference(OPERATOR, tmp_path, "off", more)) as runner:
        measured = runner.measure(*kernel(tmp_path, "right"))
        assert measured.ok, measured.detail
        said = str(measured.conditions["reference"])
        assert said.startswith("host: ") and words in said


def test_one_that_does_not_build_is_done_without() -> None:
    task = Task(OPERATOR, resolve("cuda:sm_90a"))

    def build(kernel: Kernel) -> None:
        raise DeepgenError(f"{kernel.name} does not build")

    assert build_helpers(task, build) == {}  # type: ignore[arg-type]
    with pytest.raises(DeepgenError, match="measuring_harness"):
        build_helpers(task, build, needed=("harness",))  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=3))
def test_corners_are_always_among_the_elements_that_are_compared(lengths: list[int]) -> None:
    shape = tuple(lengths)
    places = sampled(shape)
    count = int(np.prod(shape))
    assert {0, count - 1, shape[-1] - 1, count - shape[-1]} <= set(places.tolist())
    assert min(count, SAMPLES // 2) <= len(places) <= SAMPLES + 8 and places.max() < count
