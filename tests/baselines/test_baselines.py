"""Baselines compute the same operator on the same buffers, and say why where they cannot."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from deepgen import baselines, targets
from deepgen.measure import Contender, Task, open_runner
from deepgen.operators import Array, Gemm, gemm
from deepgen.operators.compare import compare
from deepgen.vocabulary import BadInput, Verdict

X86 = targets.resolve("cpu")
OPERATORS = [
    *(gemm(17, 13, 19, layout=layout) for layout in ("nn", "nt", "tn", "tt")),
    gemm(17, 13, 19, layout="nt", batch=3),
    *(gemm(16, 32, 24, dtype=dtype) for dtype in ("f64", "f16", "bf16")),
    gemm(16, 32, 24, alpha=0.5, beta=2.0),
    gemm(16, 32, 24, alpha=0.5),
    gemm(16, 32, 24, dtype="bf16", bias=True, activation="relu"),
    gemm(16, 32, 24, bias=True, activation="gelu"),
    gemm(16, 32, 24, activation="silu"),
]


def names(operator: Gemm) -> list[str]:
    return baselines.find(operator, X86)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.describe().replace(" ", "-"))
def test_each_baseline_gives_the_reference_wherever_it_says_it_can_run(operator: Gemm) -> None:
    inputs = operator.inputs(seed=3)
    want = operator.reference(inputs)["C"]
    [output] = [t for t in operator.tensors() if t.name == "C"]
    for name in names(operator):
        tensors: dict[str, Array] = {**{k: v.copy() for k, v in inputs.items()}}
        tensors.setdefault("C", np.full(output.shape, 3, output.dtype.numpy()))
        baselines.by_name(name).prepare(operator, tensors, 1)()
        # Each rounding of a result that is rounded more than once may add one unit in the last place.
        found = compare(tensors["C"], want, output.dtype, operator.tolerance("C"))
        assert found.error <= (1.0 if operator.activation == "none" else 3.0), f"{name}: {found}"
        for given, array in inputs.items():
            assert given == "C" or np.array_equal(tensors[given], array), f"{name} changed {given}"


def test_numpy_is_always_there_for_a_plain_product() -> None:
    assert "numpy" in names(gemm(8, 8, 8))
    assert ("torch" in names(gemm(8, 8, 8))) is (find_spec("torch") is not None)


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (gemm(8, 8, 8, dtype="i8"), "f32 or f64 only"),
        (gemm(8, 8, 8, beta=1.0), "alpha, beta"),
        (gemm(8, 8, 8, activation="relu"), "activation"),
    ],
)
def test_why_one_cannot_run_is_said(operator: Gemm, words: str) -> None:
    assert words in str(baselines.by_name("numpy").missing(operator, X86))
    assert "sim" in str(baselines.by_name("numpy").missing(gemm(8, 8, 8), targets.resolve("sim")))


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(BadInput, match="numpy, torch"):
        baselines.by_name("mkl")


def test_baselines_race_in_the_worker_on_read_only_inputs(tmp_path: Path) -> None:
    operator = gemm(64, 64, 64, layout="nt")
    runner = open_runner(Task(operator, X86), cache=tmp_path)
    entries = [Contender(name) for name in names(operator)]
    results = runner.compare(entries, rounds=3, seed=0)
    assert [m.verdict for m in results] == [Verdict.CORRECT] * len(entries), [m.detail for m in results]
    assert all(len(m.samples) == 3 for m in results)
    [unknown] = runner.compare([Contender("nobody")], rounds=3, seed=0)
    assert (unknown.verdict, "unknown baseline" in unknown.detail) == (Verdict.REFUSED, True)
    runner.close()
