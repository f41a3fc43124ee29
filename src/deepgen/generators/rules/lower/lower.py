"""Lowering: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from deepgen.generators.rules.lower.build import build
from deepgen.generators.rules.lower.check import check
from deepgen.generators.rules.lower.flatten import flatten
from deepgen.generators.rules.lower.guards import place_guards
from deepgen.generators.rules.lower.ir import Function
from deepgen.generators.rules.lower.pads import pad
from deepgen.generators.rules.lower.partition import partition
from deepgen.generators.rules.lower.registers import registers
from deepgen.generators.rules.lower.simplify import simplify
from deepgen.generators.rules.lower.squares import squares
from deepgen.generators.rules.lower.storage import storage
from deepgen.generators.rules.lower.stores import store_tiles
from deepgen.generators.rules.lower.tensorize import tensorize
from deepgen.generators.rules.lower.unroll import unroll
from deepgen.generators.rules.lower.vectorize import vectorize
from deepgen.generators.rules.schedule.apply import apply
from deepgen.generators.rules.schedule.steps import Schedule
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
