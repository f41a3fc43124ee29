"""Decides which buffers become variables (every access must have a constant index), and what each lane of a warp
holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.matrix import WARPGROUP, WideProduct
from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Barrier,
    Buffer,
    Call,
    For,
    Function,
    Launch,
    Lowered,
    Machine,
    Seq,
    Stmt,
    Store,
    accesses,
    calls,
    children,
    offset,
    over,
    sequence,
    unguarded,
    used,
    walk,
    with_accesses,
    with_children,
    with_indices_in,
)
from deepgen.compiler.schedule.stages import combined, identity
from deepgen.compiler.schedule.state import Planned
from deepgen.compiler.schedule.steps import BOUND, LANES, PARALLEL, SERIAL, VECTOR
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Read, reads
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.dtypes import STORED

_MOST_VARIABLES = 256


def registers(statement: Stmt, around: Around) -> Stmt:
    statement = with_children(statement, lambda one: registers(one, around))
    if not isinstance(statement, Alloc) or statement.buffer.scope != "register":
        return statement
    apart = _one_by_one(statement)
    lanes = _lanes(apart)
    return replace(apart if lanes else statement, buffer=replace(statement.buffer, lanes=lanes))


def _one_by_one(alloc: Alloc) -> Alloc:
    """Elements that are stored from a part of a vector, as at the end of a row: each is stored separately."""
    name = alloc.buffer.name
    widest = max((lanes for _, lanes in _accesses(alloc.body, name, None)), default=1)

    def apart(statement: Stmt) -> Stmt:
        asked, store = unguarded(statement.body) if isinstance(statement, For) else ((), statement)
        if not isinstance(statement, For) or not isinstance(store, Store) or statement.limits:
            return with_children(statement, apart)
        variable, every = statement.variable, range(statement.extent)
        copied = store.reduce is None and store.buffer != name and any(r.tensor == name for r in reads(store.value))
        constant = all(condition.iterators <= {variable} for condition in asked)
        if not copied or not constant or len(every) > widest or statement.kind not in (SERIAL, VECTOR):
            return statement
        if len(every) == widest and not asked:
            plain = isinstance(store.value, Read) and store.indices[0].step(variable)
            return replace(statement, kind=VECTOR) if plain else statement
        steps = [_at(variable, n) for n in every if all(c.substitute({variable: n}).constant >= 0 for c in asked)]
        return sequence(*(with_indices_in(store, step) for step in steps))

    return replace(alloc, body=apart(alloc.body))


def _at(variable: str, place: int) -> Callable[[Index], Index]:
    return lambda i: i.substitute({variable: place})


def _lanes(alloc: Alloc) -> int:
    """The lanes of the vectors that a buffer is accessed by; 0 if it cannot be held in variables."""
    if any(isinstance(s, For) and s.kind == PARALLEL for s in walk(alloc.body)):
        return 0
    accesses = set(_accesses(alloc.body, alloc.buffer.name, None))
    if any(at is None for at, _ in accesses):
        return 0
    widths = {lanes for _, lanes in accesses if lanes > 1}
    if len(widths) > 1:
        return 0
    lanes = widths.pop() if widths else 1
    whole = all(at is not None and at % lanes == 0 for at, width in accesses if width > 1)
    return lanes if whole and alloc.buffer.elements <= lanes * _MOST_VARIABLES else 0


def _accesses(statement: Stmt, name: str, vector: For | None) -> Iterator[tuple[int | None, int]]:
    """The places where a buffer is accessed, and by how many lanes."""
    if isinstance(statement, Call) and any(place.tensor == name for place in statement.places):
        yield None, 1
    if isinstance(statement, For) and vector is None and statement.kind in (VECTOR, *DOTS):
        vector = statement
    if isinstance(statement, Store):
        offsets = [read.indices[0] for read in reads(statement.value) if read.tensor == name]
        for offset in (*offsets, *(statement.indices if statement.buffer == name else ())):
            yield _access(offset, vector)
    for child in children(statement):
        yield from _accesses(child, name, vector)


def _access(offset: Index, vector: For | None) -> tuple[int | None, int]:
    if vector is None or vector.variable not in offset.iterators:
        return (None, 1) if offset.terms else (offset.constant, 1)
    rest = offset - iterator(vector.variable)
    return None if rest.terms else rest.constant, vector.extent


ALIGN = 64  # bytes
_MOST_ON_STACK = 16 << 10  # bytes of one buffer


def storage(lowered: Lowered, machine: Machine) -> Lowered:
    if isinstance(lowered, Function):
        return in_workspace(lowered)
    return replace(lowered, launches=tuple(_in_shared_memory(launch, machine.warp) for launch in lowered.launches))


def in_workspace(function: Function) -> Function:
    layout = _Layout()
    body = layout.placed(function.body, 0, 0, in_thread=False)
    return replace(function, body=body, shared_bytes=layout.shared, thread_bytes=layout.thread)


@dataclass
class _Layout:
    shared: int = 0
    thread: int = 0

    def placed(self, statement: Stmt, shared: int, thread: int, in_thread: bool) -> Stmt:
        if isinstance(statement, For) and statement.kind == PARALLEL:
            in_thread = True
        if isinstance(statement, Alloc):
            buffer = statement.buffer
            size = -(-buffer.elements * dtype(buffer.dtype).bytes // ALIGN) * ALIGN
            if not buffer.lanes and not (buffer.scope == "register" and size <= _MOST_ON_STACK):
                statement = replace(statement, buffer=replace(buffer, offset=thread if in_thread else shared))
                shared, thread = (shared, thread + size) if in_thread else (shared + size, thread)
                self.shared, self.thread = max(self.shared, shared), max(self.thread, thread)
        return with_children(statement, lambda s: self.placed(s, shared, thread, in_thread))


def flatten(body: Stmt, around: Around) -> Stmt:
    return _flat(body, around.whole.buffers)


def _flat(statement: Stmt, buffers: Mapping[str, Buffer]) -> Stmt:
    if isinstance(statement, Alloc):
        buffers = {**buffers, statement.buffer.name: statement.buffer}
    inner = with_children(statement, lambda s: _flat(s, buffers))
    return with_accesses(inner, lambda name, indices: (offset(buffers[name], indices),))


_ALIGN = 128  # bytes: a row of all banks
_WIDEST = 8  # bytes of a number that threads combine


def _in_shared_memory(launch: Launch, warp: int) -> Launch:
    """If threads combine reductions across warps, the first bytes are reserved for that; in clusters, for each of these
    reductions."""
    joins = sum(s.joined is not None for s in _stores(launch.body))
    if launch.cluster > 1 and joins_again(launch):
        raise BadInput("threads of a cluster join what they reduced in a loop", allowed="once in a launch")
    x, y, z = launch.threads
    wide = any(calls(launch.body, WideProduct))
    times = min(joins, 1) if joins_again(launch) else joins
    reserved = times * (x * y * z // warp) * _WIDEST if x > warp else 0
    memory = _Memory(reserved, WARPGROUP.align if wide else _ALIGN)
    body = memory.placed(launch.body)
    if not wide:
        return replace(launch, body=body, shared_bytes=memory.bytes)
    return replace(launch, body=body, shared_bytes=memory.bytes + WARPGROUP.align, align=WARPGROUP.align)


def joins_again(launch: Launch) -> bool:
    """Whether threads join what they reduced in a loop, so that they meet in the same place several times."""
    return any(s.joined for part in launch.parts for f in walk(part.body) if isinstance(f, For) for s in _stores(f))


def _stores(statement: Stmt) -> Iterator[Store]:
    return (s for s in walk(statement) if isinstance(s, Store))


@dataclass
class _Memory:
    bytes: int  # bytes in use so far
    align: int

    def placed(self, statement: Stmt, outer: Buffer | None = None) -> Stmt:
        """`outer` is the innermost live buffer, if nothing has been written to it yet."""
        if isinstance(statement, Seq):
            parts: list[Stmt] = []
            for part in statement.body:
                parts.append(self.placed(part, outer))
                outer = None if outer is not None and outer.name in used(part) else outer
            return sequence(*parts)
        if not isinstance(statement, Alloc) or statement.buffer.scope != "shared":
            # A loop that uses it carries values in it from one iteration to the next.
            kept = outer is not None and isinstance(statement, For) and outer.name in used(statement)
            return with_children(statement, lambda s: self.placed(s, None if kept else outer))
        taken, before = self.bytes, outer is not None and _leaves_alone(statement, outer.name)
        start = outer.offset if before and outer is not None and outer.offset is not None else taken
        start = -(-start // self.align) * self.align
        size = statement.buffer.elements * dtype(statement.buffer.dtype).bytes
        self.bytes = start + -(-size // _ALIGN) * _ALIGN
        buffer = replace(statement.buffer, offset=start)
        placed: Stmt = Alloc(buffer, self.placed(statement.body, buffer))
        self.bytes = max(taken, self.bytes)
        return sequence(Barrier(), placed, Barrier()) if before else placed


def _leaves_alone(statement: Alloc, name: str) -> bool:
    """Whether it contains a barrier of all threads, and the buffer is not used in it."""
    return name not in used(statement) and any(isinstance(s, Barrier) for s in walk(statement))


@dataclass(frozen=True)
class LaneScan:
    """The lanes of a team together scan the elements that they hold, starting from the carried value."""

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
    """A lane's numbers, of a buffer whose last dimension is the lane."""
    *rest, lanes = whole.sizes
    return replace(whole, sizes=(prod(rest), lanes), strides=(1, 0))


def in_lane(whole: Buffer, indices: Sequence[Index]) -> tuple[Index, Index]:
    """The index among a lane's numbers, and the lane."""
    at = Index()
    for size, i in zip(whole.sizes[:-1], indices[:-1], strict=True):
        at = at * size + i
    return at, indices[-1]


def scanned_by_lanes(planned: Planned, at: tuple[Index, ...], filled: Stmt) -> Stmt:
    """The scan of what `filled` stores; `filled` comes first as a whole, so that all loads are in flight."""
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
    held = "f32" if stage.dtype in STORED else stage.dtype
    scan = LaneScan(lanes.extent, each.extent, held, joined.op)
    first = tuple(i.substitute({each.variable: 0}) for i in at)
    own = Read(stage.name, first, stage.dtype)
    start = over(rows, Store(carry.name, (row,), identity(stage.reduce, stage.dtype)))
    scanned = over(outer, Call(scan, (own, Read(carry.name, (row,), stage.dtype))))
    return sequence(filled, Alloc(carry, sequence(start, scanned)))


def lanes(body: Stmt, around: Around) -> Stmt:
    """Only a check: each lane must read its own part of buffers in a warp's registers."""
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
