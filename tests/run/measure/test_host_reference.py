"""References in C on CPUs: workers use them for large results, judge by them, and report it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators import Operator, gemm, softmax
from deepgen.run.measure.base import Helper, Policy, RunnerOptions, Task
from deepgen.run.measure.helpers import built_here, helpers_for
from deepgen.run.measure.supervisor import Supervisor
from deepgen.targets import host, resolve
from deepgen.toolchains import build_once
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, Missing, ScalarArg, Source, Step, TensorArg, Verdict

OPERATOR = softmax(70, 9000)
KERNEL = """
#include <math.h>
void entry(const float* x, float* y, int rows, int cols) {
    for (int r = 0; r < rows; r++, x += cols, y += cols) {
        float most = -INFINITY, sum = 0;
        for (int c = 0; c < cols; c++) most = fmaxf(most, x[c]);
        for (int c = 0; c < cols; c++) sum += y[c] = expf(x[c] - most);
        for (int c = 0; c < cols; c++) y[c] /= sum;
        MORE
    }
}
"""


def kernel(more: str = "") -> tuple[Kernel, Artifact]:
    args = (TensorArg("x"), TensorArg("y"), ScalarArg("i32", "rows"), ScalarArg("i32", "cols"))
    sources = (Source("k.c", KERNEL.replace("MORE", more)),)
    emitted = Kernel("softmax", "c", sources, (), LaunchPlan((Step("entry", args),)))
    return emitted, build_once(emitted, host.processor())


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[str, Helper]:
    # Two sizes, of which only the first is small enough for numpy.
    task = Task(OPERATOR, host.processor(), also=(softmax(130, 9000),))
    helpers = built_here(task, folder, None)
    if "reference" not in helpers:
        pytest.skip("there is no C compiler here")
    return helpers


@pytest.fixture(scope="module")
def runner(folder: Path, built: dict[str, Helper]) -> Iterator[Supervisor]:
    policy = Policy(max_samples=4, max_seconds=0.1)
    supervisor = Supervisor(Task(OPERATOR, host.processor(), policy=policy), RunnerOptions(cache=folder, helpers=built))
    yield supervisor
    supervisor.close()


def test_right_and_wrong_kernels_are_told_apart_by_it(runner: Supervisor) -> None:
    right = runner.measure(*kernel())
    assert right.ok and right.conditions["reference"] == "compiled", right.detail
    wrong = runner.measure(*kernel("if (r == 69) y[8999] *= 1.01f;"))
    assert wrong.verdict is Verdict.WRONG and wrong.detail.startswith("y[69, 8999] is ")
    assert "1 of 630000 elements wrong" in wrong.detail
    missing = runner.measure(*kernel('if (r == 3) y[5] = __builtin_nanf("");'))
    assert missing.verdict is Verdict.WRONG and missing.detail.startswith("y[3, 5] ")
    for probe in OPERATOR.probes():
        verified = runner.verify(*kernel(), 2, probe)
        assert verified.ok and verified.conditions["reference"] == "compiled", (probe, verified.detail)


def test_no_threads_are_left_computing(runner: Supervisor) -> None:
    measured = runner.measure(*kernel())
    assert measured.ok and not measured.conditions["restless_threads"]


def test_a_doubtful_one_is_told_of_and_numpy_computes(folder: Path, built: dict[str, Helper]) -> None:
    own = OPERATOR.reference_kernel("c")
    assert own is not None
    source, header = own.sources
    spoilt = Source(header.name, header.text.replace("{ return exp(x); }", "{ return exp(x * 1.01); }"))
    harmed = replace(own, sources=(source, spoilt))
    binary = Path(build_once(harmed, host.processor()).binary)
    helpers = {**built, "reference": Helper(harmed, binary)}
    supervisor = Supervisor(Task(OPERATOR, host.processor()), RunnerOptions(cache=folder, helpers=helpers))
    try:
        verified = supervisor.verify(*kernel(), 0, "normal")
    finally:
        supervisor.close()
    assert verified.ok
    assert str(verified.conditions["reference"]).startswith("numpy: the compiled reference has a different value at y[")


def test_small_results_take_no_compiler() -> None:
    processor = host.processor()
    assert [*helpers_for(Task(softmax(8, 900), processor))] == ["harness"]
    assert [*helpers_for(Task(softmax(800, 9000), processor))] == ["harness", "reference"]
    large = dg.operator("bmm", B=4, M=1024, N=1024, K=1024)
    assert [*helpers_for(Task(large, processor))] == ["harness"], "numpy's products are faster"
    try:
        chip = resolve("cuda:sm_90a")
    except Missing as error:
        pytest.skip(str(error))
    assert [*helpers_for(Task(large, chip))] == ["harness", "reference"]
    several = Task(softmax(800, 9000), chip, neighbours=(softmax(801, 9000), softmax(7, 5)))
    assert [*helpers_for(several)] == ["harness", "reference"], "one serves all"


def test_inputs_are_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for of in ("bf16", "f32", "f8e4m3", "i8"):
        operator: Operator = gemm(1300, 5, 1000, dtype=of) if of != "bf16" else softmax(130, 9001, dtype=of)
        first = operator.inputs(4)
        with monkeypatch.context() as patch:
            patch.setattr("deepgen.operators.filling.usual_threads", lambda: 1)
            again = operator.inputs(4)
        for name, array in first.items():
            assert np.array_equal(array, again[name]), (of, name)
        other = operator.inputs(5)
        assert all((other[name] != array).mean() > 0.9 for name, array in first.items())
