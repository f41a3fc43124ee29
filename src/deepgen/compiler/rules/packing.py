"""Copies into panels: several side by side of what lies along them, and squares of what lies across them."""

from __future__ import annotations

from deepgen.compiler.intrinsics.squares import Square
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.numbers import Extent, covered, least, times
from deepgen.compiler.schedule.steps import PARALLEL, UNROLL, VECTOR
from deepgen.operators.expr.nodes import Read, Stage
from deepgen.vocabulary import dtype

_SHARES, _SIDE_BY_SIDE = 2, 16  # parts of a copy for each thread; panels that are filled side by side


def side_by_side(draft: Draft, name: str, axis: str, panel: tuple[Extent, ...], *, parallel: bool) -> Extent:
    """How many panels are filled at a time with what lies along them.

    One at a time would read little of each row, and come to the same pages of memory again and again.
    """
    panels = covered(draft.extents[name][axis], times(panel))
    return least(covered(panels, _SHARES * draft.target.cores), _SIDE_BY_SIDE) if parallel else panels


def square_rows(draft: Draft, stage: Stage, across: str, lanes: Extent, group: int = 1) -> str | None:
    """The axis along which a copy reads rows of squares, where it turns them into columns that lie along `across`.

    The square has as many rows as a vector has lanes, and in each row as many groups of elements.
    """
    read = stage.value
    if not isinstance(read, Read) or not isinstance(lanes, int):
        return None
    if not Square(lanes, group * dtype(stage.dtype).bytes).there:
        return None
    rows = [axis for axis in stage.axes if facts.stride(draft.expression, read, axis.name) == 1]
    return next((axis.name for axis in rows if axis.name != across and axis.extent >= lanes * group), None)


def pack_squares(
    draft: Draft, name: str, panel: tuple[str, tuple[Extent, ...]], row: str, group: int = 1, *, parallel: bool
) -> None:
    """Panel by panel: in each, strips as wide as a vector, along which whole rows are read from their beginning."""
    across, sizes = panel
    others = [axis.name for axis in draft.stage(name).axes if axis.name not in (across, row)]
    panels, *strips, column = draft.split(name, across, sizes)
    side = sizes[-1]
    squares, step, *within = draft.split(name, row, (side, group) if group > 1 else (side,))
    draft.reorder(name, [panels, *others, *strips, squares, step, column, *within])
    draft.annotate(name, UNROLL, column)
    draft.annotate(name, VECTOR, *within)
    if parallel:
        draft.annotate(name, PARALLEL, panels)
