"""Random expressions under random legal schedules, as C, compute what the expressions mean."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from compiled import COMPILERS, NO_COMPILER, in_child, library, run
from expressions import expressions, naive, rounded
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schedules import random_schedule

from deepgen.compiler.passes.lower import lower
from deepgen.compiler.schedule.steps import Schedule
from deepgen.operators.expr.nodes import Expression
from deepgen.vocabulary.dtypes import DType, dtype, narrow, widen

# `DEEPGEN_EXPRESSIONS=5000 pytest tests/compiler/test_lowered.py` takes minutes.
COUNT = int(os.environ.get("DEEPGEN_EXPRESSIONS", "24"))
LARGEST = 1e30
AT_ONCE = 40  # functions per library


def collected(count: int) -> list[tuple[Expression, Schedule]]:
    found: list[tuple[Expression, Schedule]] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(expressions(most=9), st.integers(0, 2**32))
    def collect(expression: Expression, seed: int) -> None:
        found.append((expression, random_schedule(expression, Random(f"{seed} {len(found)}"))))

    collect()
    return found


def agrees(expression: Expression, results: list[Any], inputs: dict[str, Any]) -> str:
    """How results differ from an expression's meaning; empty if they match."""
    stages = replace(expression, outputs=tuple(stage.name for stage in expression.stages))
    wide_inputs = {t.name: widen(inputs[t.name], dtype(t.dtype)) for t in expression.tensors}
    meant = naive(stages, wide_inputs)
    if any(np.abs(values).max() > LARGEST for values in meant.values()):
        return ""  # products that exceed f32
    for name, got in zip(expression.outputs, results, strict=True):
        of = dtype(expression.dtype_of(name))
        wide, want = widen(got, of).reshape(meant[name].shape), meant[name]
        # In comparisons, a sigmoid that f32 rounds to 1 is no longer less than 1.
        if not (close(wide, want, of) or close(wide, naive(stages, wide_inputs, rounded)[name], of)):
            return f"{name} is\n{wide}\nnot\n{want}"
    return ""


def close(got: Any, want: Any, of: DType) -> bool:
    if of.integer:
        return np.array_equal(got, want)
    return np.allclose(got, want, rtol=64 * of.epsilon, atol=64 * of.epsilon * (1 + np.abs(want).max()))


def random_inputs(expression: Expression, seed: int) -> dict[str, Any]:
    numbers = np.random.default_rng(seed)
    drawn = {t.name: numbers.integers(-4, 5, t.shape) for t in expression.tensors}
    kinds = {t.name: dtype(t.dtype) for t in expression.tensors}
    return {n: narrow(np.abs(x) if kinds[n].name == "u8" else x.astype(float), kinds[n]) for n, x in drawn.items()}


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_random_expressions_under_random_schedules(tmp_path: Path) -> None:
    cases = collected(COUNT)
    for start in range(0, len(cases), AT_ONCE):
        part = cases[start : start + AT_ONCE]
        compiler = COMPILERS[start // AT_ONCE % len(COMPILERS)]
        functions = [lower(e, s, vector_bytes=(16, 32)[n % 2]) for n, (e, s) in enumerate(part)]
        folder = tmp_path / str(start)
        folder.mkdir()
        built = library(functions, folder, "-w", compiler=compiler)

        def work(say: Callable[[str], None], built: Path = built, part: Any = part, functions: Any = functions) -> None:
            loaded = ctypes.CDLL(str(built))
            for n, ((expression, schedule), function) in enumerate(zip(part, functions, strict=True)):
                say(f"{expression}\n{schedule}")
                inputs = random_inputs(expression, n)
                for threads in (1, 3):
                    results = run(loaded, n, function, [inputs[t.name] for t in expression.tensors], threads)
                    wrong = agrees(expression, results, inputs)
                    assert not wrong, f"{n}: {wrong}\n{expression}\n" + "\n".join(map(str, schedule))

        assert not (wrong := in_child(work)), wrong
