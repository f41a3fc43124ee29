"""What a GPU is asked to do: launches, one for each stage that is computed on its own, with all that is computed in it.

Loops that are bound to blocks and threads are no loops any more: their variables are the indices of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from deepgen.compiler.intrinsics.matrix import WARPGROUP
from deepgen.compiler.passes.bounds import IndexBounds
from deepgen.compiler.passes.build import Builder, buffer_of, guarded, parameters
from deepgen.compiler.passes.ir import (
    Alloc,
    Buffer,
    Call,
    For,
    Launch,
    Program,
    Seq,
    Stmt,
    Store,
    sequence,
    with_children,
    with_indices_in,
)
from deepgen.compiler.passes.lanes import held_by_lanes, in_lane, is_by_lanes, scanned_by_lanes
from deepgen.compiler.passes.matrices import fragments_of, in_fragment, is_tile, is_wide, tile, zeroed
from deepgen.compiler.passes.pipeline import filled_ahead, is_transposed, several
from deepgen.compiler.passes.simplify import all_of
from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.schedule.state import Loop, Planned, State
from deepgen.compiler.schedule.steps import BLOCKS, BOUND, LANES, THREADS, UNROLL
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Const, Read, Select, Stage, Value, reads, substituted, with_reads
from deepgen.vocabulary import BadInput

_MOST_CARRIED = 32  # numbers of a thread
_OWN = ("shared", "global")  # scopes in which each element has one thread that writes it


def build(state: State, warp: int) -> Program:
    inputs, outputs = parameters(state)
    roots = [p for p in state.stages.values() if p.at is None]
    scratch = tuple(buffer_of(p) for p in roots if p.stage.name not in state.expression.outputs)
    outside = [p.stage.name for p in roots if p.scope != "global"]
    if outside:
        raise BadInput(f"stage {outside[0]} is not computed inside of a launch", allowed="the scope global there")
    launches = tuple(_launch(state, root, warp) for root in roots)
    return Program(state.expression.name, inputs, outputs, scratch, launches)


def _launch(state: State, root: Planned, warp: int) -> Launch:
    members = [p for p in state.stages.values() if _root(state, p) == root.stage.name]
    for planned in members:
        _check(state, planned, root)
    extents = {
        tag: max((loop.extent for p in members for loop in p.loops if loop.kind == tag), default=1) for tag in BOUND
    }
    if any(loop.reduced and loop.kind in THREADS for p in members for loop in p.loops) or any(
        map(is_by_lanes, members)
    ):
        extents |= _whole_warps(extents, warp)
    inside = {p.stage.name: _guarded_by_threads(state, p, extents) for p in members}
    builder = _GpuBuilder(replace(state, stages={**state.stages, **inside}))
    body = builder.nest(inside[root.stage.name], root.loops)
    bound = {loop.variable: iterator(loop.kind) for p in members for loop in p.loops if loop.kind in BOUND}
    bound |= {f"{variable}.start": tag for variable, tag in bound.items()}
    body = with_indices_in(_without_bound(body), lambda i: i.substitute(bound))
    blocks, threads = ((extents[x], extents[y], extents[z]) for x, y, z in (BLOCKS, THREADS))
    return Launch(root.stage.name, blocks, threads, body)


def _whole_warps(extents: Mapping[str, int], warp: int) -> dict[str, int]:
    """As many threads along x and y as lanes need that join what they reduced: two by two, then warp by warp."""
    x, y = (extents[tag] for tag in THREADS[:2])
    x = 1 << (x - 1).bit_length() if x < warp else -(-x // warp) * warp
    beside = max(1, warp // x)
    return dict(zip(THREADS, (x, -(-y // beside) * beside), strict=False))


def _root(state: State, planned: Planned) -> str:
    return planned.stage.name if planned.at is None else _root(state, state.stages[planned.at[0]])


def _check(state: State, planned: Planned, root: Planned) -> None:
    name, tags = planned.stage.name, [loop.kind for loop in planned.loops if loop.kind in BOUND]
    around = [loop.kind for loop in state.around(planned)]
    joined = [loop for loop in planned.loops if loop.reduced and loop.kind in BOUND]
    if len(set(tags)) < len(tags):
        raise BadInput(f"two loops of stage {name} are bound to one index of the grid")
    if planned is root:
        return
    if planned.scope == "global":
        raise BadInput(f"stage {name} is computed inside of a launch", allowed="the scope shared, warp or register")
    if set(tags) & set(BLOCKS):
        raise BadInput(f"stage {name} is computed by one block", allowed=f"loops of {root.stage.name} bound to blocks")
    own_lanes = planned.scope == "warp" and is_by_lanes(planned)
    if planned.scope != "shared" and len(tags) > len(joined) + own_lanes:
        raise BadInput(f"stage {name} is in registers, which other threads cannot read", allowed="the scope shared")
    if joined and planned.scope != "shared" and LANES in around:
        raise BadInput(f"threads along {LANES} compute different elements of stage {name}, and cannot join them")


def _guarded_by_threads(state: State, planned: Planned, extents: Mapping[str, int]) -> Planned:
    """The stage with guards for threads that have nothing to do, and without those that nobody needs."""
    own = list(planned.loops)
    inherited = [] if planned.scope in _OWN else list(_taking_part(state, planned))
    guards = list(_needed_guards(state, planned))
    guards += [
        loop.extent - 1 - iterator(loop.variable)
        for loop in (*own, *inherited)
        if loop.kind in THREADS and loop.extent < extents[loop.kind]
    ]
    if planned.scope in _OWN:
        bound = {loop.kind for loop in own}
        guards += [-iterator(tag) for tag in THREADS if extents[tag] > 1 and tag not in bound]
    filled = _filled_with_zeros(state, planned)
    return replace(planned, stage=filled or planned.stage, guards=tuple(guards))


def _taking_part(state: State, planned: Planned) -> Iterator[Loop]:
    """The loops around a stage in registers that say which threads need it: what is shared is computed by all."""
    if planned.at is None:
        return
    host = state.stages[planned.at[0]]
    if host.scope not in _OWN:
        yield from _taking_part(state, host)
    yield from host.loops[: host.depth(planned.at[1])]


def _needed_guards(state: State, planned: Planned) -> tuple[Index, ...]:
    """Without guards of what may be computed beyond the edges, where nobody reads it and its operands are there."""
    region = 2 * sum(bool(base.terms or base.constant) for base in planned.bases.values())
    if planned.tensorized:
        kept = {loop.variable for loop in planned.loops if not loop.reduced}
        if any(g.iterators & kept for g in planned.guards[region:]):
            raise BadInput(f"the tiles of stage {planned.stage.name} do not cover what is read of it exactly")
        return ()
    inside = _reads_inside(state, planned) if planned.scope == "register" else _reads_sums(state, planned)
    if _filled_with_zeros(state, planned) or inside:
        return planned.guards[region:]
    return planned.guards


def _reads_sums(state: State, planned: Planned) -> bool:
    """Whether it is in shared memory, and reads nothing but sums of the same block."""
    stages = [state.stages.get(read.tensor) for read in reads(planned.stage.value)]
    return planned.scope == "shared" and bool(stages) and all(p is not None and p.scope == "warp" for p in stages)


def _reads_inside(state: State, planned: Planned) -> bool:
    """Whether all that a stage reads, beyond its edges too, lies in buffers of the same launch."""
    bounds = IndexBounds({loop.variable: (0, loop.extent - 1) for p in state.stages.values() for loop in p.loops})
    places = planned.absolute()
    for read in reads(planned.stage.value):
        source = state.stages.get(read.tensor)
        if source is None or source.at is None:
            return False
        for axis, i in zip(source.stage.axes, read.indices, strict=True):
            low, high = bounds.simple(i.substitute(places) - source.bases[axis.name]).bounds(bounds.ranges)
            if low < 0 or high >= source.extents[axis.name]:
                return False
    return True


def _filled_with_zeros(state: State, planned: Planned) -> Stage | None:
    """A stage whose region may reach beyond its tensor, with zeros there: products of matrices have no edges."""
    readers = state.readers(planned.stage.name)
    if planned.scope != "shared" or planned.stage.reduce or not any(p.tensorized for p in readers):
        return None
    inside: list[Index] = []
    for axis in planned.stage.axes:
        if planned.bases[axis.name].terms or planned.bases[axis.name].constant:
            inside += [iterator(axis.name), axis.extent - 1 - iterator(axis.name)]
    if not inside:
        return planned.stage
    zero = Const(0, planned.stage.dtype)
    return replace(planned.stage, value=Select(all_of(inside), planned.stage.value, zero))


def _without_bound(statement: Stmt) -> Stmt:
    statement = with_children(statement, _without_bound)
    return statement.body if isinstance(statement, For) and statement.kind in BOUND else statement


class _GpuBuilder(Builder):
    """Beside loops and stores: reductions that threads share, copies ahead of their use, products of matrices."""

    def nest(self, planned: Planned, loops: Sequence[Loop], started: bool = False) -> Stmt:
        begins = bool(loops) and loops[0].reduced and not started
        if begins and any(loop.kind == LANES for loop in loops if loop.reduced):
            return self.joined(planned, loops)
        if begins:
            return super().nest(planned, loops, started)
        if planned.scope == "warp" and is_by_lanes(planned) and not started:
            return scanned_by_lanes(planned, self.written(planned), self.nest(planned, loops, started=True))
        if planned.stage.scan and loops and planned.stage.scan in loops[0].axes and not started:
            return self.carried(planned, loops)
        if planned.tensorized and started and is_tile(self.state, planned, loops):
            return tile(self.state, planned, loops, self.read_from_buffers)
        if loops and (ahead := [p for p in self.inner(planned, loops[0]) if p.depth_of_pipeline > 1]):
            return self.pipelined(planned, loops, started, ahead)
        nested = super().nest(planned, loops, started)
        if not (len(loops) > 1 and loops[0].reduced and started and is_wide(planned)):
            return nested
        return _waited_for(nested, is_tile(self.state, planned, loops[1:]))

    def inner(self, planned: Planned, loop: Loop) -> list[Planned]:
        return self.state.computed_at(planned.stage.name, loop.name)

    def computed(self, planned: Planned, rest: Stmt) -> Stmt:
        return Alloc(place_of(planned), sequence(self.nest(planned, planned.loops), rest))

    def start(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        return zeroed(planned) if planned.tensorized else super().start(planned, loops)

    def written(self, planned: Planned) -> tuple[Index, ...]:
        indices = super().written(planned)
        return _in_warp(planned, indices) if planned.scope == "warp" else indices

    def store(self, planned: Planned) -> Stmt:
        if planned.scope != "warp" or not is_by_lanes(planned):
            return super().store(planned)
        # Each lane has something for all to meet: where there is nothing to scan, what changes nothing.
        assert planned.stage.reduce
        value = self.read_from_buffers(substituted(planned.stage.value, planned.absolute()))
        if planned.guards:
            value = Select(all_of(planned.guards), value, identity(planned.stage.reduce, planned.stage.dtype))
        return Store(planned.stage.name, self.written(planned), value)

    def read_from_buffers(self, value: Value) -> Value:
        def place(read: Read) -> Value:
            planned = self.state.stages.get(read.tensor)
            in_warp = planned is not None and planned.scope == "warp"
            return replace(read, indices=_in_warp(planned, read.indices)) if in_warp and planned else read

        return with_reads(super().read_from_buffers(value), place)

    def joined(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """Each thread reduces its part, and then all together."""
        stage = planned.stage
        assert stage.reduce
        if not all(loop.reduced for loop in loops):
            what = f"loops inside of those that threads reduce together, in stage {stage.name}"
            raise BadInput(what, allowed="such loops outside")
        part = Buffer(f"{stage.name}.part", stage.dtype, (1,), (1,), "register")
        at = (Index(),)
        own = Read(part.name, at, stage.dtype)
        value = self.read_from_buffers(substituted(stage.value, planned.absolute()))
        body = guarded(planned.guards, Store(part.name, at, value, stage.reduce))
        for loop in reversed(loops):
            for inner in reversed(self.inner(planned, loop)):
                body = self.computed(inner, body)
            body = For(loop.variable, loop.extent, loop.kind, body)
        reduced = {loop.variable for loop in loops}
        guards = tuple(g for g in planned.guards if not g.iterators & reduced)
        if planned.scope in _OWN:
            guards += (-iterator(LANES),)
        steps = (
            Store(part.name, at, identity(stage.reduce, stage.dtype)),
            body,
            Store(part.name, at, own, joined=stage.reduce),
            guarded(guards, Store(stage.name, self.written(planned), own)),
        )
        return Alloc(part, Seq(steps))

    def carried(self, planned: Planned, loops: Sequence[Loop]) -> Stmt:
        """A scan from its first loop on: what it has come to stays in registers, one for each iteration of others."""
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

    def in_order(self, copies: dict[str, Stmt]) -> dict[str, Stmt]:
        """Copies that are waited for come last, but before those of what another launch may still be writing."""
        others = {name for name, planned in self.state.stages.items() if planned.at is None}
        late = {name for name in copies if others & {r.tensor for r in reads(self.state.stages[name].stage.value)}}
        if not late:
            return dict(sorted(copies.items(), key=lambda one: is_transposed(one[1])))
        return dict(sorted(copies.items(), key=lambda one: (one[0] in late, not is_transposed(one[1]))))

    def pipelined(self, planned: Planned, loops: Sequence[Loop], started: bool, ahead: list[Planned]) -> Stmt:
        """A loop whose stages are filled some iterations before they are read."""
        loop = loops[0]
        if loop.kind in BOUND or len({p.depth_of_pipeline for p in ahead}) > 1:
            raise BadInput(f"stages are filled ahead at loop {loop.name}", allowed="one depth for all, a serial loop")
        beside = {p.stage.name for p in self.inner(planned, loop)}
        for p in ahead:
            hosts = any(other.at and other.at[0] == p.stage.name for other in self.state.stages.values())
            if hosts or any(read.tensor in beside for read in reads(p.stage.value)):
                what = (
                    f"stage {p.stage.name} needs others that are computed in the same turn: it cannot be filled ahead"
                )
                raise BadInput(what, allowed="copies of what is there before")
        body = self.nest(planned, loops[1:], started)
        for inner in reversed(self.inner(planned, loop)):
            if inner not in ahead:
                body = self.computed(inner, body)
        copies = self.in_order({p.stage.name: self.nest(p, p.loops) for p in ahead})
        filled = filled_ahead(loop, ahead[0].depth_of_pipeline, copies, body, signalled=is_wide(planned))
        for p in reversed(ahead):
            filled = Alloc(several(place_of(p), min(p.depth_of_pipeline, loop.extent)), filled)
        return filled


def _waited_for(filled: Stmt, products: bool) -> Stmt:
    """A loop around products of four warps, which are waited for after the outermost one that is written out: until
    then no register of theirs is used again."""
    waits = Call(WARPGROUP.waits())
    if products:
        return sequence(filled, waits)
    if (
        isinstance(filled, For)
        and filled.kind == UNROLL
        and isinstance(filled.body, Seq)
        and filled.body.body[-1] == waits
    ):
        return sequence(replace(filled, body=sequence(*filled.body.body[:-1])), waits)
    return filled


def _with_carry(statement: Stmt, name: str, carry: Buffer, at: Index) -> Stmt:
    """What a scan reads of itself is what it carries along."""
    if not isinstance(statement, Store):
        return with_children(statement, lambda s: _with_carry(s, name, carry, at))
    if statement.buffer != name:
        return statement
    kept = Read(carry.name, (at,), carry.dtype)
    value = with_reads(statement.value, lambda read: kept if read.tensor == name else read)
    return Seq((Store(carry.name, (at,), value), replace(statement, value=kept)))


def place_of(planned: Planned) -> Buffer:
    """The buffer of a stage that a launch computes for itself."""
    if planned.scope == "warp":
        return fragments_of(planned) if planned.tensorized else held_by_lanes(buffer_of(planned))
    return replace(buffer_of(planned), swizzle=planned.swizzle)


def _in_warp(planned: Planned, indices: Sequence[Index]) -> tuple[Index, Index]:
    return in_fragment(planned, indices) if planned.tensorized else in_lane(buffer_of(planned), indices)
