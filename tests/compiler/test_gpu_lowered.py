"""Random expressions under random legal schedules for GPUs compute, when emulated, what the expressions mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import simt_emulation as simt
from compiled import in_child
from emulated import library, run
from expressions import expressions
from gpu_schedules import random_program
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_lowered import agrees, random_inputs

import deepgen as dg
from deepgen.compiler.passes.ir import Program
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.schedule import steps
from deepgen.compiler.schedule.steps import Schedule
from deepgen.operators.expr.nodes import Expression

# `DEEPGEN_EXPRESSIONS=2000 pytest tests/compiler/test_gpu_lowered.py` takes minutes.
COUNT = int(os.environ.get("DEEPGEN_EXPRESSIONS", "18"))
AT_ONCE = 40  # programs per library
pytestmark = pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)


def collected(count: int, warp: int) -> list[tuple[Expression, Schedule, Program]]:
    found: list[tuple[Expression, Schedule, Program]] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(expressions(most=9), st.integers(0, 2**32))
    def collect(expression: Expression, seed: int) -> None:
        found.append((expression, *random_program(expression, Random(f"{seed} {len(found)}"), warp)))

    collect()
    return found


# NVIDIA's warps, and AMD's wavefronts.
@pytest.mark.parametrize(("warp", "count"), [(32, COUNT), (64, COUNT // 3)])
def test_random_expressions_under_random_schedules(warp: int, count: int, tmp_path: Path) -> None:
    cases = collected(count, warp)
    for start in range(0, len(cases), AT_ONCE):
        part = cases[start : start + AT_ONCE]
        loaded = library([program for _, _, program in part], tmp_path / str(start), warp)

        def work(say: Callable[[str], None], loaded: Any = loaded, part: Any = part) -> None:
            for n, (expression, schedule, program) in enumerate(part):
                told = f"{expression}\n" + "\n".join(map(str, schedule))
                say(told)
                inputs = random_inputs(expression, n)
                error, results = run(loaded, n, program, [inputs[t.name] for t in expression.tensors])
                wrong = error or agrees(expression, results, inputs)
                assert not wrong, f"{n}: {wrong}\n{told}"

        assert not (wrong := in_child(work)), wrong


def test_memory_of_an_outer_buffer_is_not_used_while_it_holds_something(tmp_path: Path) -> None:
    """Each iteration of the loop over `kept` needs `sums` for one product, which it then adds to `kept`."""
    a, k = dg.tensor("a", (6, 4), "f32"), dg.reduce_axis("k", 3)
    sums = dg.compute("sums", (3,), lambda i: a[i, 0] + a[i, 1])
    products = dg.compute("products", (4,), lambda j: dg.sum(sums[k] * a[k, j], k))
    kept = dg.compute("kept", (4,), lambda j: products[j] + 1.0)
    expression = dg.expression(dg.compute("twice", (2, 4), lambda i, j: kept[j] * 2.0))
    program = lower(
        expression,
        (
            steps.SetScope("kept", "shared"),
            steps.ComputeAt("kept", "twice", "i0"),
            steps.SetScope("products", "register"),
            steps.ComputeAt("products", "kept", "i0"),
            steps.SetScope("sums", "shared"),
            steps.ComputeAt("sums", "products", "i0"),
            steps.Annotate("twice", "i1", "thread.x"),
        ),
        warp=32,
    )
    inputs = random_inputs(expression, 0)
    error, results = run(library([program], tmp_path), 0, program, [inputs["a"]])
    assert not (error or agrees(expression, results, inputs))
