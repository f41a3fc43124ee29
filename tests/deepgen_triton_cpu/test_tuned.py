"""A user's Triton kernels on this machine's CPU: verified, tuned, stored and called."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from compiled_kernels import Case, Compiled

import deepgen as dg
import triton_calls
from deepgen import targets
from deepgen.kernels.own.operator import KernelOperator
from deepgen.operators.compare import compare, explain
from deepgen.vocabulary import dtype

CPU = targets.resolve("cpu")


def _case(name: str) -> tuple[KernelOperator, Case]:
    """An example's call with its default config for CPUs."""
    own, function = triton_calls.example(name)
    operator = own.operator(**triton_calls.SMALL[name])
    config = own.family.default(operator, CPU)
    made = triton_calls.call(operator, "cpu")
    arguments = [v.numpy() if hasattr(v, "numpy") else v for v in made.arguments]
    names = [n for n in function.arg_names if n not in made.constants(config)]
    given: Mapping[str, Any] = dict(zip(names, arguments, strict=True))
    return operator, Case(function, made.grid(config), given, dict, made.constants(config))


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, tuple[KernelOperator, Case]], Compiled]:
    made = {name: _case(name) for name in triton_calls.NAMES}
    return made, Compiled([case for _, case in made.values()], tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize("name", triton_calls.NAMES)
def test_the_examples_are_right(name: str, examples: Any) -> None:
    operator, case = examples[0][name]
    found = examples[1].run(case)
    for output, answer in operator.reference(operator.inputs(0)).items():
        of = dtype(operator.signature().dtype_of(operator.signature()[output]))
        judged = compare(found[output], answer, of, operator.tolerance(output))
        assert judged.ok, explain(output, found[output], answer.values, of, judged, None)


@pytest.mark.slow
def test_one_is_tuned_and_called(tmp_path: Path) -> None:
    own, _ = triton_calls.example("softmax")
    space = own.family.space(own.operator(), CPU)
    assert {knob.name for knob in space.knobs} == {"COLUMNS", "ROWS"}, "options of GPUs change nothing here"
    study = dg.tune(own.operator(rows=20, columns=60), target="cpu", trials=2, out=tmp_path / "study")
    best = study.best()
    assert best is not None
    x = np.random.default_rng(0).standard_normal((20, 60)).astype(np.float32)
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(best.load()(x=x), raised / raised.sum(axis=1, keepdims=True), rtol=1e-5)
