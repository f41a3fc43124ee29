"""The first form of a function: the loops of a state, with a guard around every store that needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.tiles import TILES, block_of
from deepgen.compiler.passes.ir import EMPTY, Alloc, Buffer, Call, For, Function, If, Stmt, Store, sequence
from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.schedule.state import Loop, Planned, State
from deepgen.compiler.schedule.steps import VECTOR
from deepgen.compiler.schedule.text import LayoutPlace, number
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Binary, Compare, Const, Place, Read, Select, Value, substituted, with_reads
from deepgen.vocabulary import BadInput, dtype

STARTED = ".start"  # what the names of the loops end with that write what a reduction starts from
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def build(state: State) -> Function:
    return Builder(state).function()


@dataclass(frozen=True)
class Builder:
    state: State

    def function(self) -> Function:
        inputs, outputs = parameters(self.state)
        body: Stmt = EMPTY
        for planned in reversed([p for p in self.state.stages.values() if p.at is None]):
            body = self.computed(planned, body)
        return Function(self.state.expression.name, inputs, outputs, body)

    def computed(self, planned: Planned, rest: Stmt) -> Stmt:
        """A stage, and what follows where it is there."""
        body = sequence(self.nest(planned, planned.loops), rest)
        return body if planned.stage.name in self.state.expression.outputs else Alloc(buffer_of(planned), body)

    def nest(self, planned: Planned, loops: Sequence[Loop], started: bool = False) -> Stmt:
        if planned.stage.reduce and not planned.stage.scan and not started and not (loops and not loops[0].reduced):
            if planned.loops[-1].kind in TILES:
                return self.in_tiles(planned, loops)
            return sequence(self.start(planned, loops), self.nest(planned, loops, started=True))
        if not loops:
            return self.store(planned)
        body = self.nest(planned, loops[1:], started)
        for inner in reversed(self.state.computed_at(planned.stage.name, loops[0].name)):
            body = self.computed(inner, body)
        return For(loops[0].variable, loops[0].extent, loops[0].kind, body)

    def start(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """What a reduction starts from, over those of its loops that are left and not reduced."""
        kept = [loop for loop in loops if not loop.reduced]
        names = {loop.variable: iterator(loop.variable + STARTED) for loop in kept}
        assert planned.stage.reduce
        first = identity(planned.stage.reduce, planned.stage.dtype)
        reduced = {loop.variable for loop in planned.loops if loop.reduced}
        guards = tuple(g.substitute(names) for g in planned.guards if not g.iterators & reduced)
        indices = tuple(i.substitute(names) for i in self.written(planned))
        body: Stmt = guarded(guards, Store(planned.stage.name, indices, first))
        for loop in reversed(kept):
            kind = VECTOR if loop.kind in DOTS else loop.kind
            body = For(loop.variable + STARTED, loop.extent, kind, body)
        return body

    def in_tiles(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """Sums that are held in tiles, and stored once all is added up."""
        inner = [loop for loop in loops if loop.kind in TILES]
        if any(not loop.reduced for loop in loops[: len(loops) - len(inner)]):
            raise BadInput(f"loops of stage {planned.stage.name} inside of its sums run over tiles", allowed="none")
        start = {loop.variable: Index() for loop in inner}
        places = tuple(i.substitute(start) for i in self.written(planned))
        block = block_of(inner[0].kind, [loop.extent for loop in inner])
        row = block.across * block.tile.lanes * dtype(planned.stage.dtype).bytes
        store = Call(f"{block.name}_store", (Read(planned.stage.name, places, planned.stage.dtype),), (row,))
        return sequence(Call(f"{block.name}_zero"), self.nest(planned, loops, started=True), store)

    def written(self, planned: Planned) -> tuple[Index, ...]:
        places = [planned.places[axis.name] for axis in planned.stage.axes]
        return stored(planned, places)

    def store(self, planned: Planned) -> Stmt:
        stage = planned.stage
        value = self.read_from_buffers(substituted(stage.value, planned.absolute()))
        if stage.scan:
            value = self.scanned(planned, value)
        reduce = None if stage.scan else stage.reduce
        return guarded(planned.guards, Store(stage.name, self.written(planned), value, reduce))

    def scanned(self, planned: Planned, value: Value) -> Value:
        stage = planned.stage
        assert stage.reduce and stage.scan
        at = planned.places[stage.scan]
        before = [planned.places[axis.name] - int(axis.name == stage.scan) for axis in stage.axes]
        last = Read(stage.name, stored(planned, before), stage.dtype)
        first = Compare("eq", Place(at), Const(0, "i64"))
        return Select(first, value, Binary(_COMBINE[stage.reduce], last, value))

    def read_from_buffers(self, value: Value) -> Value:
        def place(read: Read) -> Value:
            planned = self.state.stages.get(read.tensor)
            if planned is None:
                return read
            axes = planned.stage.axes
            inside = [i - planned.bases[axis.name] for axis, i in zip(axes, read.indices, strict=True)]
            return Read(read.tensor, stored(planned, inside), read.dtype)

        return with_reads(value, place)


def parameters(state: State) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """The tensors that are given, and the results."""
    expression = state.expression
    inputs = tuple(dense(spec.name, spec.dtype, spec.shape) for spec in expression.tensors)
    stages = [state.stages[name].stage for name in expression.outputs]
    return inputs, tuple(dense(stage.name, stage.dtype, stage.shape) for stage in stages)


def combined(op: str, left: Value, right: Value) -> Value:
    """Two values of a reduction as one."""
    return Binary(_COMBINE[op], left, right)


def dense(name: str, dtype: str, shape: Sequence[int], scope: str = "parameter") -> Buffer:
    strides = tuple(prod(shape[n + 1 :]) for n in range(len(shape)))
    return Buffer(name, dtype, tuple(shape), strides, scope)


def stored(planned: Planned, places: Sequence[Index]) -> tuple[Index, ...]:
    """Places along the axes as indices of the stage's buffer."""
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
    return Buffer(planned.stage.name, planned.stage.dtype, tuple(sizes), tuple(strides), planned.scope)


def _divided(index: Index, place: LayoutPlace) -> Index:
    whole = index // place.by
    return whole if place.modulo is None else whole % place.modulo


def guarded(guards: tuple[Index, ...], body: Stmt) -> Stmt:
    return If(guards, body) if guards else body
