"""Kernels whose errors usual inputs may not reveal, on a GPU whose driver works over host memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpu import FLOATS, image, kernel, supervised

import deepgen as dg
from deepgen.operators import Gemm, gemm
from deepgen.run.measure import handed
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, Verdict

INTEGERS = """
typedef signed char number;
static int value(number x) { return x; }
#define float int
"""
NARROW = "for (int i = 0; i < M * ldc; i++) C[i] = (short)C[i];"
LOST = "C[7] -= value(A[5]) * value(B[7 * ldb + 5]);"
FLUSHED = FLOATS.replace("return x;", "return x < 1e-37f && x > -1e-37f ? 0 : x;")


@pytest.mark.parametrize(
    ("operator", "right", "wrong", "more", "shown_by"),
    [
        pytest.param(gemm(12, 10, 40, dtype="i8", layout="nt"), INTEGERS, INTEGERS, NARROW, "maximum", id="16 bits"),
        pytest.param(gemm(12, 10, 40, layout="nt"), FLOATS, FLOATS, LOST, "exact", id="lost, f32"),
        pytest.param(gemm(12, 10, 40, layout="nt"), FLOATS, FLUSHED, "", "denormal", id="flushed"),
    ],
)
def test_the_probe_that_is_there_for_it_shows_it(
    operator: Gemm, right: str, wrong: str, more: str, shown_by: str, tmp_path: Path
) -> None:
    with supervised(operator, tmp_path) as runner:
        for seed, probe in handed.sets(operator, 0, 1):
            judged = runner.verify(*kernel(tmp_path, "right", numbers=right), seed, probe)
            assert judged.ok, f"{probe}: {judged.detail}"
        assert runner.verify(*kernel(tmp_path, "wrong", more, wrong), 0, shown_by).verdict is Verdict.WRONG


SIGMOID = """
double exp(double);
int entry(void** p, const unsigned* grid, const unsigned* block) {
    const double* x = *(double**)p[0];
    double* y = *(double**)p[1];
    for (int i = 0; i < *(int*)p[2]; i++) y[i] = 1 / (1 + exp(-x[i])) * (1 + OFF * 0x1p-52);
    return 0;
}
"""


def test_tiny_results_of_f64_are_judged_by_themselves(tmp_path: Path) -> None:
    """The tolerance of sigmoid(-180) underflows in f32."""
    operator = dg.operator("elementwise", rows=24, cols=40, dtype="f64", epilogue="sigmoid")
    with supervised(operator, tmp_path) as runner:
        for off, verdict in ((2, Verdict.CORRECT), (-2, Verdict.CORRECT), (100, Verdict.WRONG)):
            text = SIGMOID.replace("OFF", str(off))
            plan = LaunchPlan((Step("entry", (TensorArg("x"), TensorArg("y"), ScalarArg("i32", 960))),))
            one = Kernel(f"off{off}", "cuda", (Source("k.cu", text),), (), plan)
            built = Artifact(one.id, str(image(tmp_path, one.name, text)), "cubin", "fake", {}, 0.0)
            judged = runner.verify(one, built, 4, "wide")
            assert judged.verdict is verdict, judged.detail
