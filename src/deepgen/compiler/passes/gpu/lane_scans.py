"""Scans along the lanes of a warp: each lane scans a few neighbours in registers, then takes in those before its own.

The last dimension of the stage's layout is the lane. What a lane has of one turn of the other loops lies side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from deepgen.compiler.passes.build import combined
from deepgen.compiler.passes.ir import Alloc, Buffer, Call, For, Stmt, Store, sequence
from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.schedule.state import Loop, Planned
from deepgen.compiler.schedule.steps import BOUND, LANES, UNROLL
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Binary, Read
from deepgen.vocabulary import BadInput

SCAN = "scan_lanes"


def is_by_lanes(planned: Planned) -> bool:
    scan = planned.stage.scan
    return scan is not None and any(loop.kind == LANES and scan in loop.axes for loop in planned.loops)


def held_by_lanes(whole: Buffer) -> Buffer:
    """The numbers of a lane, of a buffer whose last dimension is the lane."""
    *rest, lanes = whole.sizes
    return replace(whole, sizes=(prod(rest), lanes), strides=(1, 0))


def in_lane(whole: Buffer, indices: Sequence[Index]) -> tuple[Index, Index]:
    """Which of a lane's numbers, and which lane."""
    at = Index()
    for size, i in zip(whole.sizes[:-1], indices[:-1], strict=True):
        at = at * size + i
    return at, indices[-1]


def scanned_by_lanes(planned: Planned, at: tuple[Index, ...], filled: Stmt) -> Stmt:
    """The scan of what `filled` stores; all of that comes first, so that all loads are under way."""
    stage = planned.stage
    assert stage.reduce and stage.scan
    *outer, lanes, each = planned.loops
    if lanes.kind != LANES or stage.scan not in each.axes or any(loop.kind in BOUND for loop in outer):
        allowed = "as its last loops lanes, and the elements of each of them"
        raise BadInput(f"stage {stage.name} is scanned along lanes", allowed=allowed)
    rows = [loop for loop in outer if stage.scan not in loop.axes]
    carry = Buffer(f"{stage.name}.carry", stage.dtype, (prod(loop.extent for loop in rows),), (1,), "register")
    row = Index()
    for loop in rows:
        row = row * loop.extent + iterator(loop.variable)
    joined = combined(stage.reduce, Read("a", (), stage.dtype), Read("b", (), stage.dtype))
    assert isinstance(joined, Binary)
    name = f"{SCAN}<{lanes.extent}, {each.extent}, {stage.dtype}, {joined.op}_{stage.dtype}>"
    first = tuple(i.substitute({each.variable: 0}) for i in at)
    own = Read(stage.name, first, stage.dtype)
    start = _over(rows, Store(carry.name, (row,), identity(stage.reduce, stage.dtype)))
    scanned = _over(outer, Call(name, (own, Read(carry.name, (row,), stage.dtype))))
    return sequence(filled, Alloc(carry, sequence(start, scanned)))


def _over(loops: Sequence[Loop], body: Stmt) -> Stmt:
    for loop in reversed(loops):
        body = For(loop.variable, loop.extent, UNROLL, body)
    return body
