"""The axis along which a reduction is vectorized, and the operands that must be packed for that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deepgen.compiler.intrinsics.tiles import Instruction
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.values import up_to
from deepgen.compiler.schedule.steps import PARALLEL, UNROLL, VECTOR
from deepgen.operators.expr.nodes import Axis, Expression, Place, Read, Select, Stage, reads, walk

_MOST = 2  # axes that are tried
_MANY_ROWS = 8  # of an axis that is long enough for tiles


@dataclass(frozen=True)
class Grouped:
    """An instruction that adds up several products at once, and the reduced axis along which these are contiguous."""

    dot: Instruction
    axis: str


@dataclass(frozen=True)
class Vectors:
    """A stage's vectorized axis, the axis whose tiles reuse a vector, and how tensors are read."""

    axis: str
    reused_along: str | None
    loaded: tuple[str, ...]  # vectors are loaded from these in place, contiguous or with a stride of two
    packed: tuple[str, ...]  # vectors can be loaded from these only after packing
    single: tuple[str, ...]  # one element, or one group, is multiplied with a vector
    lanes: int  # of a vector
    by: Grouped | None = None  # the instruction used; without one, vectors are multiplied and added


def along_results(expression: Expression, stage: Stage, lanes: int) -> list[Vectors]:
    """The axes of a reduction's results that can be vectorized, the better ones first.

    If all of them are shorter than a vector, one that fills more than half of it gets whole vectors, loaded from copies
    packed for that; others that need no packing get vectors of fewer lanes.
    """
    matches = []
    for axis in stage.axes:
        if (one := _vectors(expression, stage, axis, lanes)) is None:
            continue
        last = axis.name == stage.axes[-1].name
        loads = [read for read in reads(stage.value) if read.tensor in one.loaded]
        alternate = any(facts.stride(expression, read, axis.name) == 2 for read in loads)
        matches.append(((alternate, len(one.packed), not last), one))
    ordered = [one for _, one in sorted(matches, key=lambda pair: pair[0])]
    # Tensors are packed, and stages keep their layout: their elements would be gathered one by one.
    tensors = {tensor.name for tensor in expression.tensors}
    ordered = [one for one in ordered if tensors.issuperset(one.packed)] or ordered
    whole = [one for one in ordered if one.lanes == lanes]
    return (whole or _filled_up(stage, ordered, lanes) or [one for one in ordered if not one.packed])[:_MOST]


def _filled_up(stage: Stage, narrow: list[Vectors], lanes: int) -> list[Vectors]:
    """Variants with whole vectors, whose last lanes have no results: copies of all loaded tensors have room for
    them."""
    extents = {axis.name: axis.extent for axis in stage.axes}
    return [
        replace(one, loaded=(), packed=(*one.loaded, *one.packed), lanes=lanes)
        for one in narrow
        if lanes < 2 * extents[one.axis] and one.lanes < extents[one.axis]
        if all(packable(stage, read, one.axis) for read in reads(stage.value) if read.tensor in one.loaded)
    ]


def along_reduction(expression: Expression, stage: Stage, lanes: int) -> bool:
    """Whether vectors can run along the innermost reduced axis."""
    if not stage.reduced or stage.reduced[-1].extent < 2 * lanes:
        return False
    strides = [facts.stride(expression, read, stage.reduced[-1].name) for read in reads(stage.value)]
    return 1 in strides and all(stride in (0, 1) for stride in strides)


def contiguous(expression: Expression, stage: Stage, axis: str) -> bool:
    """Whether all reads of a stage are contiguous or constant along an axis."""
    return all(facts.stride(expression, read, axis) in (0, 1) for read in reads(stage.value))


def _vectors(expression: Expression, stage: Stage, along: Axis, lanes: int) -> Vectors | None:
    axis, fitting = along.name, min(lanes, 1 << along.extent.bit_length() - 1)
    if fitting < 2:
        return None
    loaded, packed, single = [], [], []
    every = reads(stage.value)
    for read in every:
        stride = facts.stride(expression, read, axis)
        if stride == 0:
            single.append(read.tensor)
        elif stride == 1:
            loaded.append(read.tensor)
        elif packable(stage, read, axis):
            packed.append(read.tensor)
        elif stride == 2:
            loaded.append(read.tensor)
        else:
            return None
    if (not loaded and not packed) or set(packed) & {*loaded, *single}:
        return None
    moving = [read for read in every if read.tensor in (*loaded, *packed)]
    names = (tuple(dict.fromkeys(loaded)), tuple(dict.fromkeys(packed)), tuple(dict.fromkeys(single)))
    return Vectors(axis, reused_along(stage, axis, moving), *names, fitting)


def packable(stage: Stage, read: Read, axis: str) -> bool:
    """Whether a copy can have the axis as its innermost dimension, and its elements are used more than once."""
    along = [index for index in read.indices if axis in index.iterators]
    reused = any(not facts.depends(read, other.name) for other in stage.axes if other.extent > 1)
    return reused and len(along) == 1 and facts.plain(along[0]) == axis


def reused_along(stage: Stage, axis: str, moving: list[Read], *, nearest: bool = False) -> str | None:
    """The axis whose tiles share vectors: one on which these do not depend, if there is any, or else any other.

    It is the innermost such axis; if that is short, as in small images, the longest, so that vectors are loaded less
    often.
    """
    others = [other for other in stage.axes if other.name != axis and other.extent > 1]
    independent = [other for other in others if not any(facts.depends(read, other.name) for read in moving)]
    able = list(reversed(independent or others))
    if not able:
        return None
    return (able[0] if nearest or able[0].extent >= _MANY_ROWS else max(able, key=lambda one: one.extent)).name


UNROLLED = (1, 2, 4, 8)
_USUAL, _USUAL_SCANS = 2, 8  # vectors: in scans each waits for its own last sum


def in_vectors(draft: Draft, stage: Stage, *, knob: bool = True) -> list[str]:
    """Vectorizes a stage's last axis. Returns its loops; none if not all reads allow it.

    The loops of reduced and scanned axes enclose the vectors. Without `knob`, the default number of vectors is
    unrolled.
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
    """Schedules a stage that copies what others read: vectors along its last axis, threads divide the others."""
    axes = [axis.name for axis in stage.axes]
    if _padded(stage, axes[-1]) and contiguous(draft.expression, stage, axes[-1]):
        draft.annotate(stage.name, VECTOR, axes[-1])  # whole rows: their padding then begins at a constant
    else:
        in_vectors(draft, stage, knob=False)
    if parallel and len(axes) > 1:
        draft.annotate(stage.name, PARALLEL, draft.fuse(stage.name, axes[:-1]))


def _padded(stage: Stage, axis: str) -> bool:
    """Whether the selected value depends on the position along an axis."""
    chosen = (v.condition for v in walk(stage.value) if isinstance(v, Select))
    return any(axis in v.index.iterators for c in chosen for v in walk(c) if isinstance(v, Place))
