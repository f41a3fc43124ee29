"""Loops that several rules make in the same way."""

from __future__ import annotations

from deepgen.compiler.rules.candidates import up_to
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.vectors import contiguous
from deepgen.compiler.schedule.steps import PARALLEL, UNROLL, VECTOR
from deepgen.operators.expr.nodes import Place, Select, Stage, walk

UNROLLED = (1, 2, 4, 8)
_USUAL, _USUAL_SCANS = 2, 8  # vectors: of a scan, each waits for its own last sum


def in_vectors(draft: Draft, stage: Stage, *, knob: bool = True) -> list[str]:
    """Vectors along a stage's last axis: the loops of that axis; none where not all that it reads lies so.

    What it is summed over, or scanned along, runs around the vectors. Without `knob`, as many are unrolled as usual.
    """
    lanes = draft.lanes(stage.name)
    if not stage.axes or stage.axes[-1].name == stage.scan:
        return []
    last = stage.axes[-1]
    there = draft.extents[stage.name][last.name]
    if (isinstance(there, int) and there < lanes) or not contiguous(draft.expression, stage, last.name):
        return []
    values = up_to(UNROLLED, last.extent // lanes)
    usual = max(v for v in values if v <= (_USUAL if stage.scan is None else _USUAL_SCANS))
    name = draft.free_name(stage.name, f"{last.name}_1")
    wide = draft.knob(name, values, usual) if knob else usual
    outer, inner, vector = draft.split(stage.name, last.name, (wide, lanes))
    around = [axis.name for axis in stage.reduced] + ([stage.scan] if stage.scan is not None else [])
    others = [axis.name for axis in stage.axes if axis.name not in (last.name, stage.scan)]
    draft.reorder(stage.name, [*others, outer, *around, inner, vector])
    draft.annotate(stage.name, UNROLL, inner)
    draft.annotate(stage.name, VECTOR, vector)
    return [outer, inner, vector]


def copy_loops(draft: Draft, stage: Stage, *, parallel: bool) -> None:
    """Of a stage that copies what others read: vectors along its last axis, threads divide the others."""
    axes = [axis.name for axis in stage.axes]
    if _padded(stage, axes[-1]) and contiguous(draft.expression, stage, axes[-1]):
        draft.annotate(stage.name, VECTOR, axes[-1])  # whole rows: where their padding begins is known in the text
    else:
        in_vectors(draft, stage, knob=False)
    if parallel and len(axes) > 1:
        draft.annotate(stage.name, PARALLEL, draft.fuse(stage.name, axes[:-1]))


def _padded(stage: Stage, axis: str) -> bool:
    """Whether it depends on the place along an axis which value is chosen."""
    chosen = (v.condition for v in walk(stage.value) if isinstance(v, Select))
    return any(axis in v.index.iterators for c in chosen for v in walk(c) if isinstance(v, Place))
