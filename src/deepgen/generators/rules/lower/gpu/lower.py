"""Lowering for GPUs: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from deepgen.generators.rules.lower.bounds import Known
from deepgen.generators.rules.lower.flatten import flat
from deepgen.generators.rules.lower.gpu.barriers import with_barriers
from deepgen.generators.rules.lower.gpu.lanes import in_own_lane
from deepgen.generators.rules.lower.gpu.launches import Launch, Program, build
from deepgen.generators.rules.lower.gpu.shared import in_shared_memory
from deepgen.generators.rules.lower.gpu.together import together
from deepgen.generators.rules.lower.gpu.unrolled import with_registers
from deepgen.generators.rules.lower.gpu.vectors import with_vectors
from deepgen.generators.rules.lower.guards import placed
from deepgen.generators.rules.lower.ir import Buffer
from deepgen.generators.rules.lower.simplify import simplified
from deepgen.generators.rules.schedule.apply import apply
from deepgen.generators.rules.schedule.steps import Schedule
from deepgen.operators.expr.nodes import Expression

Pass: TypeAlias = Callable[[Launch, Mapping[str, Buffer]], Launch]


def lower(expression: Expression, schedule: Schedule, warp: int = 32) -> Program:
    """The launches that compute an expression by a concrete schedule."""
    *_, (_, last) = passes(expression, schedule, warp)
    return last


def passes(expression: Expression, schedule: Schedule, warp: int = 32) -> Iterator[tuple[str, Program]]:
    """The program after each pass, with the pass's name."""
    program = build(apply(expression, schedule), warp)
    yield "build", program
    order: tuple[tuple[str, Pass], ...] = (
        ("barriers", lambda launch, _: replace(launch, body=with_barriers(launch.body))),
        ("lanes", lambda launch, _: in_own_lane(_simplified(launch))),
        ("flatten", lambda launch, buffers: _simplified(replace(launch, body=flat(launch.body, buffers)))),
        ("registers", lambda launch, _: replace(launch, body=with_registers(launch.body))),
        ("guards", lambda launch, _: replace(launch, body=placed(launch.body))),
        ("vectors", lambda launch, _: _simplified(replace(launch, body=with_vectors(launch.body)))),
        ("shared", lambda launch, _: in_shared_memory(launch, warp)),
    )
    for name, one in order:
        program = replace(program, launches=tuple(one(launch, program.buffers) for launch in program.launches))
        yield name, program
    yield "together", together(program)


def _simplified(launch: Launch) -> Launch:
    return replace(launch, body=simplified(launch.body, Known(launch.ranges)))
