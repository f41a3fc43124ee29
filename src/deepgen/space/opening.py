"""Which engine answers for a space: a diagram, a relaxed one if that is too wide, a solver as the last resort."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.space.compile import compile_space
from deepgen.space.definition import Knob
from deepgen.space.diagram import Diagram
from deepgen.space.engine import Engine, TooWide
from deepgen.space.expr import Requirement
from deepgen.space.partial import Partial
from deepgen.space.relax import relax
from deepgen.space.union import Alternative, Union, alternatives


def open_engine(
    name: str,
    knobs: Sequence[Knob],
    requirements: Sequence[Requirement],
    memory: int,
    orders: Sequence[Sequence[str]] = (),
    by: str | None = None,
) -> Engine:
    """`by` is the knob whose values are alternatives, each with an engine of its own."""
    try:
        if by is None:
            return _without_solver(name, knobs, requirements, memory, orders)
        found = []
        for mark, own, places in alternatives(knobs, by):
            known = [order[1:] for order in orders if order[0] == mark]
            found.append(Alternative(mark, _without_solver(name, own, requirements, memory, known), places))
        return Union(tuple(found), [k.name for k in knobs].index(by))
    except TooWide as error:
        from deepgen.space.solver import Solver

        return Solver(name, knobs, requirements, str(error))


def _without_solver(
    name: str, knobs: Sequence[Knob], requirements: Sequence[Requirement], memory: int, orders: Sequence[Sequence[str]]
) -> Diagram | Partial:
    try:
        return compile_space(knobs, requirements, memory, orders)
    except TooWide as error:
        return Partial(name, [k.name for k in knobs], relax(knobs, requirements, memory), str(error))
