"""A warp's fragments are read by the lanes that have them; whoever would read another lane's is refused."""

from __future__ import annotations

from deepgen.compiler.passes.gpu.launches import Launch
from deepgen.compiler.passes.ir import Alloc, Call, Stmt, Store, walk
from deepgen.compiler.schedule.steps import LANES
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import Read, reads
from deepgen.vocabulary import BadInput


def in_own_lane(launch: Launch) -> Launch:
    buffers = [s.buffer for s in walk(launch.body) if isinstance(s, Alloc) and s.buffer.scope == "warp"]
    held = {buffer.name for buffer in buffers}
    alone = {buffer.name for buffer in buffers if buffer.sizes[1] == 1}
    for buffer in buffers:
        if launch.threads[0] != buffer.sizes[1]:
            allowed = f"{buffer.sizes[1]}: as many as have {buffer.name}"
            raise BadInput(f"{launch.threads[0]} threads along {LANES}", allowed=allowed)
    for statement in walk(launch.body):
        for read in _accesses(statement):
            if read.tensor in held - alone and isinstance(statement, Store):
                number, lane = read.indices
                if lane != iterator(LANES) or LANES in number.iterators:
                    what = f"a lane would read {read.tensor} of another one"
                    raise BadInput(what, where=str(lane), allowed="loops bound to lanes as the intrinsic has its sums")
    return launch


def _accesses(statement: Stmt) -> tuple[Read, ...]:
    if isinstance(statement, Store):
        return (*reads(statement.value), Read(statement.buffer, statement.indices, statement.value.dtype))
    return statement.places if isinstance(statement, Call) else ()
