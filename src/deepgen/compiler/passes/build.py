"""Builds the first form of a function: the scheduled loops, with a guard around every store that needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.tiles import STORE, TILES, ZERO, TileCall, block_of
from deepgen.compiler.passes.ir import (
    EMPTY,
    Alloc,
    Buffer,
    Call,
    For,
    Function,
    Seq,
    Stmt,
    Store,
    children,
    guarded,
    sequence,
    walk,
    with_children,
)
from deepgen.compiler.passes.memory import held_by_lanes, in_lane, is_by_lanes, scanned_by_lanes
from deepgen.compiler.passes.simplify import all_of
from deepgen.compiler.schedule.stages import combined, identity
from deepgen.compiler.schedule.state import Loop, Planned, State
from deepgen.compiler.schedule.steps import BOUND, LANES, PARALLEL, VECTOR, LayoutPlace, number
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Compare, Const, Place, Read, Select, Value, substituted, with_reads
from deepgen.vocabulary import BadInput, dtype

OWNED = ("shared", "global")  # scopes in which each element is written by one thread
_MOST_CARRIED = 32  # numbers per thread


@dataclass(frozen=True)
class Builder:
    """The loops of stages; for GPUs, also reductions across threads and scans across lanes."""

    state: State
    gpu: bool = False

    def function(self) -> Function:
        inputs, outputs = parameters(self.state)
        body: Stmt = EMPTY
        for planned in reversed([p for p in self.state.stages.values() if p.at is None]):
            body = self.computed(planned, body)
        _check(body, None, frozenset())
        return Function(self.state.expression.name, inputs, outputs, body)

    def computed(self, planned: Planned, rest: Stmt) -> Stmt:
        """A stage and the code after it, within the buffer's lifetime."""
        body = sequence(self.nest(planned, planned.loops), rest)
        if planned.stage.name in self.state.expression.outputs:
            return body
        whole = buffer_of(planned)
        return Alloc(held_by_lanes(whole) if self.by_lanes(planned) else whole, body)

    def by_lanes(self, planned: Planned) -> bool:
        """Whether its elements are distributed over lanes according to its layout."""
        return self.gpu and planned.scope == "warp" and not planned.tensorized

    def nest(self, planned: Planned, loops: Sequence[Loop], started: bool = False) -> Stmt:
        stage = planned.stage
        if stage.reduce and not stage.scan and not started and not (loops and not loops[0].reduced):
            if self.gpu and any(loop.kind == LANES and loop.reduced for loop in loops):
                return self.joined(planned, loops)
            if planned.loops[-1].kind in TILES:
                return self.in_tiles(planned, loops)
            return sequence(self.start(planned, loops), self.nest(planned, loops, started=True))
        if self.gpu and stage.scan and not started:
            if planned.scope == "warp" and is_by_lanes(planned):
                return scanned_by_lanes(planned, self.written(planned), self.nest(planned, loops, started=True))
            if loops and stage.scan in loops[0].axes:
                return self.carried(planned, loops)
        if not loops:
            return self.store(planned)
        return self.loop(planned, loops[0], self.nest(planned, loops[1:], started))

    def loop(self, planned: Planned, loop: Loop, body: Stmt) -> Stmt:
        """One loop of a stage, including the stages computed at it."""
        for inner in reversed(self.state.computed_at(planned.stage.name, loop.name)):
            body = self.computed(inner, body)
        return For(loop.variable, loop.extent, self.kind(planned, loop), body, stage=planned.stage.name)

    def kind(self, planned: Planned, loop: Loop) -> str:
        if self.gpu and planned.tensorized and planned.depth(loop.name) >= planned.depth(planned.tensorized[0]):
            return planned.tensorized[1]
        return loop.kind

    def start(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """Initializes a reduction, over those of the remaining loops that are not reduced."""
        kept = [loop for loop in loops if not loop.reduced]
        names = {loop.variable: iterator(started(loop.variable)) for loop in kept}
        assert planned.stage.reduce
        first = identity(planned.stage.reduce, planned.stage.dtype)
        reduced = {loop.variable for loop in planned.loops if loop.reduced}
        guards = tuple(g.substitute(names) for g in planned.guards if not g.iterators & reduced)
        indices = tuple(i.substitute(names) for i in self.written(planned))
        body: Stmt = guarded(guards, Store(planned.stage.name, indices, first))
        for loop in reversed(kept):
            kind = VECTOR if loop.kind in DOTS else self.kind(planned, loop)
            name, stage = started(loop.variable), planned.stage.name
            body = For(name, loop.extent, kind, body, stage=stage, starts=loop.variable)
        return body

    def in_tiles(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """Sums that are held in tiles, and stored once the reduction is complete."""
        inner = [loop for loop in loops if loop.kind in TILES]
        if any(not loop.reduced for loop in loops[: len(loops) - len(inner)]):
            raise BadInput(f"loops of stage {planned.stage.name} inside of its sums run over tiles", allowed="none")
        start = {loop.variable: Index() for loop in inner}
        places = tuple(i.substitute(start) for i in self.written(planned))
        block = block_of(inner[0].kind, [loop.extent for loop in inner])
        row = block.across * block.tile.lanes * dtype(planned.stage.dtype).bytes
        store = Call(TileCall(block, STORE), (Read(planned.stage.name, places, planned.stage.dtype),), (row,))
        return sequence(Call(TileCall(block, ZERO)), self.nest(planned, loops, started=True), store)

    def written(self, planned: Planned) -> tuple[Index, ...]:
        return self.indices(planned, [planned.places[axis.name] for axis in planned.stage.axes])

    def indices(self, planned: Planned, places: Sequence[Index]) -> tuple[Index, ...]:
        """Positions along the axes as indices of the stage's buffer."""
        indices = stored(planned, places)
        return in_lane(buffer_of(planned), indices) if self.by_lanes(planned) else indices

    def value(self, planned: Planned) -> Value:
        return self.read_from_buffers(substituted(planned.stage.value, planned.absolute()))

    def store(self, planned: Planned) -> Stmt:
        stage, value = planned.stage, self.value(planned)
        if self.by_lanes(planned) and is_by_lanes(planned):
            # All lanes must take part: those with nothing to scan contribute the identity.
            assert stage.reduce
            if planned.guards:
                value = Select(all_of(planned.guards), value, identity(stage.reduce, stage.dtype))
            return Store(stage.name, self.written(planned), value)
        if stage.scan:
            value = self.scanned(planned, value)
        reduce = None if stage.scan else stage.reduce
        return guarded(planned.guards, Store(stage.name, self.written(planned), value, reduce))

    def scanned(self, planned: Planned, value: Value) -> Value:
        stage = planned.stage
        assert stage.reduce and stage.scan
        at = planned.places[stage.scan]
        before = [planned.places[axis.name] - int(axis.name == stage.scan) for axis in stage.axes]
        last = Read(stage.name, self.indices(planned, before), stage.dtype)
        first = Compare("eq", Place(at), Const(0, "i64"))
        return Select(first, value, combined(stage.reduce, last, value))

    def joined(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """Each thread reduces its part, then the threads combine their results."""
        stage = planned.stage
        assert stage.reduce
        if not all(loop.reduced for loop in loops):
            what = f"loops inside of those that threads reduce together, in stage {stage.name}"
            raise BadInput(what, allowed="such loops outside")
        part, at = Buffer(f"{stage.name}.part", stage.dtype, (1,), (1,), "register"), (Index(),)
        own = Read(part.name, at, stage.dtype)
        body = guarded(planned.guards, Store(part.name, at, self.value(planned), stage.reduce))
        for loop in reversed(loops):
            body = self.loop(planned, loop, body)
        reduced = {loop.variable for loop in loops}
        guards = tuple(g for g in planned.guards if not g.iterators & reduced)
        if planned.scope in OWNED:
            guards += (-iterator(LANES),)
        steps = (
            Store(part.name, at, identity(stage.reduce, stage.dtype)),
            body,
            Store(part.name, at, own, joined=stage.reduce),
            guarded(guards, Store(stage.name, self.written(planned), own)),
        )
        return Alloc(part, Seq(steps))

    def carried(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """A scan from its first loop on: the running value stays in registers, one for each iteration of the other
        loops."""
        others = [loop for loop in loops if planned.stage.scan not in loop.axes and loop.kind not in BOUND]
        count = prod(loop.extent for loop in others)
        body = self.nest(planned, loops, started=True)
        mixed = any(planned.stage.scan in loop.axes and len(loop.axes) > 1 for loop in loops)
        if mixed or count > _MOST_CARRIED:
            return body
        carry, at = Buffer(f"{planned.stage.name}.carry", planned.stage.dtype, (count,), (1,), "register"), Index()
        for loop in others:
            at = at * loop.extent + iterator(loop.variable)
        return Alloc(carry, _with_carry(body, planned.stage.name, carry, at))

    def read_from_buffers(self, value: Value) -> Value:
        def place(read: Read) -> Value:
            planned = self.state.stages.get(read.tensor)
            if planned is None:
                return read
            axes = planned.stage.axes
            inside = [i - planned.bases[axis.name] for axis, i in zip(axes, read.indices, strict=True)]
            return Read(read.tensor, self.indices(planned, inside), read.dtype)

        return with_reads(value, place)


def started(variable: str) -> str:
    """The variable of the loop that initializes a reduction."""
    return f"{variable}.start"


def parameters(state: State) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """The input tensors, and the results."""
    expression = state.expression
    inputs = tuple(dense(spec.name, spec.dtype, spec.shape) for spec in expression.tensors)
    stages = [state.stages[name].stage for name in expression.outputs]
    return inputs, tuple(dense(stage.name, stage.dtype, stage.shape) for stage in stages)


def _with_carry(statement: Stmt, name: str, carry: Buffer, at: Index) -> Stmt:
    """A scan's reads of its own buffer become reads of the carried value."""
    if not isinstance(statement, Store):
        return with_children(statement, lambda s: _with_carry(s, name, carry, at))
    if statement.buffer != name:
        return statement
    kept = Read(carry.name, (at,), carry.dtype)
    value = with_reads(statement.value, lambda read: kept if read.tensor == name else read)
    return Seq((Store(carry.name, (at,), value), replace(statement, value=kept)))


def dense(name: str, dtype: str, shape: Sequence[int]) -> Buffer:
    strides = tuple(prod(shape[n + 1 :]) for n in range(len(shape)))
    return Buffer(name, dtype, tuple(shape), strides, "parameter")


def stored(planned: Planned, places: Sequence[Index]) -> tuple[Index, ...]:
    """Positions along the axes as indices of the stage's buffer."""
    if not planned.order:
        return tuple(places)
    return tuple(_divided(places[p.dimension], p) for p in planned.order)


def buffer_of(planned: Planned) -> Buffer:
    shape = [planned.extents[axis.name] for axis in planned.stage.axes]
    if planned.order:
        sizes = [-(-shape[p.dimension] // p.by) if p.modulo is None else p.modulo for p in planned.order]
    else:
        sizes = shape
    align: Mapping[int, tuple[int, int]] = {
        step.dimension: (number(step, step.factor), number(step, step.offset)) for step in planned.aligned
    }
    strides: list[int] = []
    stride = 1
    for dimension in reversed(range(len(sizes))):
        factor, offset = align.get(dimension, (1, 0))
        stride += (offset - stride) % factor
        strides.insert(0, stride)
        stride *= sizes[dimension]
    whole = Buffer(planned.stage.name, planned.stage.dtype, tuple(sizes), tuple(strides), planned.scope)
    return replace(whole, swizzle=planned.swizzle, ahead=planned.depth_of_pipeline)


def _divided(index: Index, place: LayoutPlace[int]) -> Index:
    whole = index // place.by
    return whole if place.modulo is None else whole % place.modulo


def _check(statement: Stmt, parallel: str | None, bound: frozenset[str]) -> None:
    if isinstance(statement, For) and statement.kind == PARALLEL:
        if parallel is not None:
            raise BadInput(f"loop {statement.variable} is parallel, and so is loop {parallel} around it")
        parallel = statement.variable
        _check_writes(statement)
    if isinstance(statement, For) and statement.kind in BOUND:
        if statement.kind in bound:
            raise BadInput(f"loop {statement.variable} is bound to {statement.kind}, and so is a loop around it")
        bound |= {statement.kind}
    for child in children(statement):
        _check(child, parallel, bound)


def _check_writes(loop: For) -> None:
    """Checks that every store in the loop is to a buffer of its own iteration, or to elements selected by its
    variable."""
    own = {s.buffer.name for s in walk(loop.body) if isinstance(s, Alloc)}
    shared = (s for s in walk(loop.body) if isinstance(s, Store) and s.buffer not in own)
    for store in shared:
        if not any(loop.variable in i.iterators for i in store.indices):
            raise BadInput(f"threads of loop {loop.variable} would all write to {store.buffer}")
