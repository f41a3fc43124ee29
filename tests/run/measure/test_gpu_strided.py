"""Tensors with gaps between their rows on a GPU, with a driver over host memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import ARGUMENTS, kernel

import deepgen as dg
from deepgen.run.measure.base import STRIDED
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import LaunchPlan, ScalarArg, Step, Verdict


def test_a_kernel_that_goes_by_strides_is_right(runner: Supervisor, tmp_path: Path) -> None:
    found = runner.verify(*kernel(tmp_path, "right"), 3, STRIDED)
    assert found.ok, found


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("takes_dense", "for (int i = 0; i < M; i++) C[i * N] = C[i * ldc];", "C"),
        ("in_the_gap", "if (ldc > N) C[N] = 1;", "wrote between the rows of C"),
        ("past_the_end", "if (ldc > N) C[M * ldc + 4] = 1;", "past the end of C with padded rows"),
    ],
)
def test_what_is_wrong_with_strides_only_is_found(
    runner: Supervisor, tmp_path: Path, name: str, more: str, says: str
) -> None:
    made = kernel(tmp_path, name, more)
    assert runner.verify(*made, 3, "normal").ok
    found = runner.verify(*made, 3, STRIDED)
    assert found.verdict is Verdict.WRONG and says in found.detail, found


def test_a_kernel_that_is_told_of_no_stride_claims_none(runner: Supervisor, tmp_path: Path) -> None:
    made, artifact = kernel(tmp_path, "untold")
    args = (*ARGUMENTS[:6], ScalarArg("i32", "K"), ScalarArg("i32", "K"), ScalarArg("i32", "N"))
    untold = replace(made, plan=LaunchPlan((Step("entry", args),)))
    assert runner.verify(untold, artifact, 3, STRIDED).verdict is Verdict.REFUSED


def test_on_processors_arrays_are_dense(tmp_path: Path) -> None:
    study = dg.tune(dg.gemm(8, 8, 8), target="cpu", trials=1, keep_top=1, baselines=False, out=tmp_path)
    finals = study.finals()
    assert (
        finals is not None and finals.serves is not None and finals.serves.dense is None and study.serves_only() == ()
    )
