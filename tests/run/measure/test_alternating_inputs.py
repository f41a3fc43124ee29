"""Alternating inputs at the same addresses: which sets there are, and which runs see which."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import Answer, Array, Gemm, Operator, Param, Signature, Work, gemm, record
from deepgen.run.measure import handed
from deepgen.run.measure.base import Policy, Task
from deepgen.run.measure.bench import Bench
from deepgen.run.measure.guarded import Placement
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg, Verdict, WorkspaceArg

POLICY = Policy(min_samples=5, max_samples=8)
GEMM = gemm(9, 8, 7)


@dataclass(frozen=True)
class Scaled(Operator):
    """y = x * w: an operator whose code the worker does not have."""

    name = "scaled"

    n: int

    def signature(self) -> Signature:
        return Signature(tuple(Param(name, role, "f32", ("n",)) for name, role in _ROLES.items()))

    def sizes(self) -> Mapping[str, int]:
        return {"n": self.n}

    def work(self) -> Work:
        return Work({"f32": self.n}, 8 * self.n, 4 * self.n)

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        return {"y": Answer(inputs["x"].astype(np.float64) * inputs["w"])}


_ROLES = {"x": "input", "w": "input", "y": "output"}


def scaled(body: str, *, prepares: bool = False) -> Kernel:
    text = (
        "#include <string.h>\n"
        "void keep(const float *w, float *kept, long n) { memcpy(kept, w, 4 * n); }\n"
        f"void scaled(const float *x, const float *w, float *y, long n, float *kept) {{ {body} }}\n"
    )
    kept = WorkspaceArg("kept", "4 * n")
    step = Step("scaled", (*(TensorArg(name) for name in _ROLES), ScalarArg("i64", "n"), kept))
    ahead = (Step("keep", (TensorArg("w"), kept, ScalarArg("i64", "n"))),) if prepares else ()
    return Kernel("scaled", "c", (Source("k.c", text),), ("-O1",), LaunchPlan((step,), ahead))


def test_both_sets_differ_nearly_everywhere_but_not_at_their_ends(tmp_path: Path) -> None:
    (first, _), (second, _) = handed.arrays(GEMM, 0, "normal", tmp_path)
    for name in "AB":
        same = np.flatnonzero(first[name] == second[name])
        assert same.tolist() == [0, first[name].size - 1]
    assert len(handed.arrays(GEMM, 0, "zeros", tmp_path)) == 1


def test_each_set_has_its_own_answers(tmp_path: Path) -> None:
    bench = Bench(GEMM, 1, "normal", tmp_path, placed=Placement.TIGHT)
    for chosen in (*bench.alternating.under(frozenset()), *bench.alternating.under(frozenset("B"))):
        bench.use(chosen)
        bench.reset()
        np.matmul(bench.arrays["A"], bench.arrays["B"], out=bench.arrays["C"])
        assert bench.judge().error < 1.0
        assert bench.judge() is bench.judge()
    bench.close()


def test_what_is_constant_stays_and_what_is_read_and_written_is_restored(tmp_path: Path) -> None:
    operator = replace(GEMM, beta=2.0)
    bench = Bench(operator, 0, "normal", tmp_path, placed=Placement.LINES)
    first, second = bench.alternating.under(frozenset("B"))
    held = {}
    for chosen in (first, second, first):
        bench.use(chosen)
        bench.reset()
        held[id(chosen)] = {name: array.copy() for name, array in bench.arrays.items()}
        bench.arrays["C"][...] = 0
        assert not np.array_equal(held[id(chosen)]["C"], bench.arrays["C"])
    assert np.array_equal(held[id(first)]["B"], held[id(second)]["B"])
    assert not np.array_equal(held[id(first)]["A"], held[id(second)]["A"])
    assert not np.array_equal(held[id(first)]["C"], held[id(second)]["C"])
    assert len(bench.alternating.under(frozenset("ABC"))) == 1
    bench.close()


def test_handed_over_they_are_the_same(tmp_path: Path) -> None:
    operator = Scaled(50)
    handed.hand_over(operator, 3, "normal", tmp_path)
    assert handed.name(operator, 3, "normal") == handed.name(operator, 2, "normal")
    sets = handed.arrays(record(operator), 3, "normal", tmp_path)
    for seed, (inputs, answers) in zip((2, 3), sets, strict=True):
        assert np.array_equal(inputs["x"], operator.inputs(seed)["x"])
        assert np.array_equal(answers()["y"].values, inputs["x"].astype(np.float64) * inputs["w"])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_kernels_for_an_operator_of_ones_own_are_found_out_too() -> None:
    runner = Supervisor(Task(Scaled(500), TARGET, policy=POLICY))
    right = "for (long i = 0; i < n; i++) y[i] = x[i] * "
    stale = "static float old[500]; static int calls; if (!calls++) memcpy(old, w, 4 * n);" + right + "old[i];"
    made = {
        "right": scaled(right + "w[i];"),
        "prepared": scaled(right + "kept[i];", prepares=True),
        "stale": scaled(stale),
    }
    found = {name: runner.measure(one, build(one)) for name, one in made.items()}
    assert {name: m.verdict for name, m in found.items()} == {
        "right": Verdict.CORRECT,
        "prepared": Verdict.CORRECT,
        "stale": Verdict.WRONG,
    }
    runner.close()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_who_is_never_the_same_twice_may_still_be_right() -> None:
    operator: Gemm = replace(gemm(37, 29, 23), beta=2.0)  # C is read and written
    runner = Supervisor(Task(operator, TARGET, policy=POLICY))
    body = """
        static int n; float sum[29];
        n++;
        for (long i = 0; i < M; i++) {
            for (long j = 0; j < N; j++) sum[j] = 2 * C[i * N + j] * (1 + n % 3 * 1e-7f);
            for (long k = 0; k < K; k++) for (long j = 0; j < N; j++) sum[j] += A[i * K + k] * B[k * N + j];
            memcpy(C + i * N, sum, sizeof sum);
        }
    """
    made = kernel(body)
    measured = runner.measure(made, build(made))
    assert measured.ok and not measured.conditions["reproducible"], measured.detail
    runner.close()
