"""Lowering: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from deepgen.compiler.passes.build import build
from deepgen.compiler.passes.check import check
from deepgen.compiler.passes.flatten import flatten
from deepgen.compiler.passes.guards import place_guards
from deepgen.compiler.passes.ir import Function
from deepgen.compiler.passes.pads import pad
from deepgen.compiler.passes.partition import partition
from deepgen.compiler.passes.registers import registers
from deepgen.compiler.passes.simplify import simplify
from deepgen.compiler.passes.squares import squares
from deepgen.compiler.passes.storage import storage
from deepgen.compiler.passes.stores import store_tiles
from deepgen.compiler.passes.tensorize import tensorize
from deepgen.compiler.passes.unroll import unroll
from deepgen.compiler.passes.vectorize import vectorize
from deepgen.compiler.schedule.apply import apply
from deepgen.compiler.schedule.steps import Schedule
from deepgen.operators.expr.nodes import Expression

Pass: TypeAlias = Callable[[Function], Function]


def lower(expression: Expression, schedule: Schedule, *, vector_bytes: int = 16) -> Function:
    """The function that computes an expression by a concrete schedule."""
    *_, (_, last) = passes(expression, schedule, vector_bytes=vector_bytes)
    return last


def passes(expression: Expression, schedule: Schedule, *, vector_bytes: int = 16) -> Iterator[tuple[str, Function]]:
    """The function after each pass, with the pass's name."""
    function = build(apply(expression, schedule))
    check(function)
    yield "build", function
    order: tuple[tuple[str, Pass], ...] = (
        ("pads", pad),
        ("flatten", flatten),
        ("simplify", simplify),
        ("guards", place_guards),
        ("squares", squares),
        ("partition", partition),
        ("tensorize", tensorize),
        ("stores", store_tiles),
        ("vectorize", partial(vectorize, vector_bytes=vector_bytes)),
        ("unroll", unroll),
        ("registers", registers),
        ("storage", storage),
    )
    for name, one in order:
        function = one(function)
        yield name, function
