"""What is lowered computes the same after every pass, on processors and on GPUs: interpreted, without a compiler."""

from __future__ import annotations

import os
from random import Random

import pytest
from expressions import expressions
from gpu_schedules import random_program
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schedules import random_schedule

from deepgen.compiler.check_passes import check_passes
from deepgen.compiler.passes.ir import Machine
from deepgen.compiler.passes.lower import passes
from deepgen.compiler.schedule.steps import Schedule
from deepgen.operators.expr.nodes import Expression

# `DEEPGEN_EXPRESSIONS=1000 pytest tests/compiler/test_interpret.py` checks 2,000 random schedules, which takes minutes.
COUNT = int(os.environ.get("DEEPGEN_EXPRESSIONS", "12"))
PROCESSORS = (Machine(16), Machine(32), Machine(64))
GPUS = (Machine(warp=32), Machine(warp=32), Machine(warp=64))


def collected(count: int, *, gpu: bool) -> list[tuple[Expression, Schedule, Machine]]:
    drawn: list[tuple[Expression, Schedule, Machine]] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(expressions(most=5), st.integers(0, 2**32))
    def collect(expression: Expression, seed: int) -> None:
        random, machine = Random(f"{seed} {len(drawn)}"), (GPUS if gpu else PROCESSORS)[len(drawn) % 3]
        if gpu:
            drawn.append((expression, random_program(expression, random, machine.warp)[0], machine))
        else:
            drawn.append((expression, random_schedule(expression, random), machine))

    collect()
    return drawn


@pytest.mark.parametrize("gpu", [False, True], ids=["processors", "gpus"])
def test_no_pass_changes_what_random_schedules_compute(gpu: bool) -> None:
    for n, (expression, schedule, machine) in enumerate(collected(COUNT, gpu=gpu)):
        checked = check_passes(expression, passes(expression, schedule, machine), machine, n)
        assert not checked.wrong, f"{n}: {checked.text}\n{expression}\n" + "\n".join(map(str, schedule))
