"""What lies in the registers of a warp's lanes: scans that lanes share, and who reads what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Buffer,
    Call,
    Stmt,
    Store,
    accesses,
    over,
    sequence,
    walk,
)
from deepgen.compiler.schedule.stages import combined, identity
from deepgen.compiler.schedule.state import Planned
from deepgen.compiler.schedule.steps import BOUND, LANES
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Read
from deepgen.vocabulary import BadInput


@dataclass(frozen=True)
class LaneScan:
    """Lanes of a team scan what each of them has together, and carry on from what was before."""

    team: int
    each: int
    dtype: str
    op: str

    @property
    def name(self) -> str:
        return f"scan_lanes<{self.team}, {self.each}, {self.dtype}, {self.op}_{self.dtype}>"


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
    scan = LaneScan(lanes.extent, each.extent, stage.dtype, joined.op)
    first = tuple(i.substitute({each.variable: 0}) for i in at)
    own = Read(stage.name, first, stage.dtype)
    start = over(rows, Store(carry.name, (row,), identity(stage.reduce, stage.dtype)))
    scanned = over(outer, Call(scan, (own, Read(carry.name, (row,), stage.dtype))))
    return sequence(filled, Alloc(carry, sequence(start, scanned)))


def lanes(body: Stmt, around: Around) -> Stmt:
    """Nothing changes: each lane must read its own of what lies in the registers of a warp."""
    threads = around.ranges[LANES][1] + 1
    buffers = [s.buffer for s in walk(body) if isinstance(s, Alloc) and s.buffer.scope == "warp"]
    for buffer in buffers:
        if threads != buffer.sizes[1]:
            allowed = f"{buffer.sizes[1]}: as many as have {buffer.name}"
            raise BadInput(f"{threads} threads along {LANES}", allowed=allowed)
    held = {buffer.name for buffer in buffers if buffer.sizes[1] > 1}
    for read in (read for s in walk(body) if isinstance(s, Store) for read in accesses(s) if read.tensor in held):
        number, lane = read.indices
        if lane != iterator(LANES) or LANES in number.iterators:
            what = f"a lane would read {read.tensor} of another one"
            raise BadInput(what, where=str(lane), allowed="loops bound to lanes as the intrinsic has its sums")
    return body
