"""A kernel that is correct at its tuned shape and wrong at others keeps its tuned shape only, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen.extend import (
    BadInput,
    Cpu,
    Kernel,
    LaunchPlan,
    Operator,
    ScalarArg,
    Source,
    Space,
    Step,
    Target,
    TensorArg,
)
from deepgen.run.measure.base import Policy

_TEXT = """
void small_gemm(const float *a, const float *b, float *c, long m, long n, long k) {
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++) {
            float sum = 0.0f;
            for (long p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
    FAULT
}
"""
FAULTS = {
    "odd columns": ("if (n % 2) c[0] += 37.0f;", "wrong at gemm f32 nn 16x"),
    "fewer rows": ("if (m < 16) *(volatile int *)0 = 0;", "crashed at gemm f32 nn 15x"),
    "a hang beside it": ('while (k == 9) __asm__ volatile("");', "timed out at gemm f32 nn 16x32x9"),
}


class SmallGemm:
    """Plain loops, with a fault at shapes other than 16x32x8."""

    name = "small_gemm"

    def __init__(self, fault: str, requires: tuple[tuple[str, str], ...] = ()) -> None:
        self._fault, self._requires = fault, requires

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) and operator.name == "gemm" else "it supports gemm on CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("LEVEL", [1, 2])
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        args = (*(TensorArg(name) for name in "ABC"), *(ScalarArg("i64", size) for size in "MNK"))
        plan = LaunchPlan((Step("small_gemm", args),), requires=(("batch == 1", "no batch"), *self._requires))
        source = Source("small_gemm.c", _TEXT.replace("FAULT", self._fault))
        return Kernel(self.name, "c", (source,), (f"-O{config['LEVEL']}",), plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"LEVEL": 2}


def tuned(family: SmallGemm, folder: Path, *shapes: Operator) -> dg.Study:
    return dg.tune(
        shapes or dg.gemm(16, 32, 8),
        target="cpu",
        generator=family,
        trials=2,
        keep_top=1,
        baselines=False,
        out=folder,
        policy=Policy(timeout_seconds=1.0),
    )


def arrays(m: int, n: int, k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_is_wrong_at_neighbours_serves_its_tuned_shape_only(fault: str, tmp_path: Path) -> None:
    text, why = FAULTS[fault]
    study = tuned(SmallGemm(text), tmp_path)
    serves: Any = study.finals().to_json()["serves"]  # type: ignore[union-attr]
    assert serves["only"] == [{"M": 16, "N": 32, "K": 8, "batch": 1}] and serves["why"].startswith(why)
    kernel = study.best().load()
    a, b = arrays(16, 32, 8)
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5, atol=1e-5)
    with pytest.raises(BadInput, match="it supports only M=16 N=32 K=8"):
        kernel(*arrays(16, 31, 8))


def test_a_kernel_that_is_right_there_serves_any_shape(tmp_path: Path) -> None:
    study = tuned(SmallGemm(""), tmp_path)
    serves: Any = study.finals().to_json()["serves"]  # type: ignore[union-attr]
    assert serves["only"] is None and "gemm f32 nn 16x31x8" in serves["right_at"]
    a, b = arrays(5, 7, 3)
    np.testing.assert_allclose(study.best().load()(a, b), a @ b, rtol=1e-5, atol=1e-5)


def test_shapes_that_a_kernel_does_not_claim_are_not_held_against_it(tmp_path: Path) -> None:
    text, _ = FAULTS["odd columns"]
    study = tuned(SmallGemm(text, (("N % 2 == 0", "an even number of columns"),)), tmp_path)
    serves: Any = study.finals().to_json()["serves"]  # type: ignore[union-attr]
    assert serves["only"] is None and serves["right_at"] and not any("x31x" in name for name in serves["right_at"])


def test_several_shapes_and_one_kernel_for_all_of_them(tmp_path: Path) -> None:
    text, _ = FAULTS["odd columns"]
    study = tuned(SmallGemm(text), tmp_path, dg.gemm(16, 32, 8), dg.gemm(64, 32, 8))
    kernel = study.best().load()
    for m in (16, 64):
        a, b = arrays(m, 32, 8)
        np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-5, atol=1e-5)
    with pytest.raises(BadInput, match="or M=64 N=32 K=8"):
        kernel(*arrays(32, 32, 8))


def test_a_kernel_must_be_right_at_every_shape_it_is_tuned_for(tmp_path: Path) -> None:
    text, _ = FAULTS["odd columns"]
    with pytest.raises(dg.DeepgenError, match=r"none of .* computed a correct result: .* at shape 2: C\[0, 0\] is"):
        tuned(SmallGemm(text), tmp_path, dg.gemm(16, 32, 8), dg.gemm(16, 31, 8))
