"""Lowering for GPUs: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from deepgen.compiler.passes.bounds import Known
from deepgen.compiler.passes.flatten import flat
from deepgen.compiler.passes.gpu.barriers import with_barriers
from deepgen.compiler.passes.gpu.lanes import in_own_lane
from deepgen.compiler.passes.gpu.launches import Launch, Program, build
from deepgen.compiler.passes.gpu.shared import in_shared_memory
from deepgen.compiler.passes.gpu.together import together
from deepgen.compiler.passes.gpu.unrolled import with_registers
from deepgen.compiler.passes.gpu.vectors import with_vectors
from deepgen.compiler.passes.guards import placed
from deepgen.compiler.passes.ir import Buffer
from deepgen.compiler.passes.simplify import simplified
from deepgen.compiler.schedule.apply import apply
from deepgen.compiler.schedule.steps import Schedule
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
