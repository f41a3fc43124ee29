"""GPU launches: one for each stage that is computed on its own, including all stages computed inside it.

Loops bound to blocks and threads disappear: their variables become grid indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from deepgen.compiler.intrinsics.matrix import WideProduct
from deepgen.compiler.passes.build import OWNED, Builder, buffer_of, parameters
from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Barrier,
    Call,
    For,
    If,
    Launch,
    Lowered,
    Machine,
    Program,
    Seq,
    Stmt,
    Store,
    calls,
    used,
    walk,
    with_children,
    with_indices_in,
    written_in,
)
from deepgen.compiler.passes.memory import is_by_lanes
from deepgen.compiler.passes.simplify import all_of
from deepgen.compiler.schedule.bounds import IndexBounds
from deepgen.compiler.schedule.state import Loop, Planned, State
from deepgen.compiler.schedule.steps import BLOCKS, BOUND, LANES, THREADS
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Const, Select, Stage, reads
from deepgen.vocabulary import BadInput

MOST_THREADS, CLUSTERED = 1024, 512  # threads of a block, and of each block of a cluster


def build(state: State, machine: Machine) -> Lowered:
    """The initial form: for a CPU one function, for a GPU a launch for each stage that is computed on its own."""
    return replace(_program(state, machine.warp), early=machine.early) if machine.warp else Builder(state).function()


def _program(state: State, warp: int) -> Program:
    inputs, outputs = parameters(state)
    roots = [p for p in state.stages.values() if p.at is None]
    scratch = tuple(buffer_of(p) for p in roots if p.stage.name not in state.expression.outputs)
    outside = [p.stage.name for p in roots if p.scope != "global"]
    if outside:
        raise BadInput(f"stage {outside[0]} is not computed inside of a launch", allowed="the scope global there")
    parts = tuple(_launch(state, root, warp) for root in roots)
    return Program(state.expression.name, inputs, outputs, scratch, parts)


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
    builder = Builder(replace(state, stages={**state.stages, **inside}), gpu=True)
    body = builder.nest(inside[root.stage.name], root.loops)
    blocks, threads = ((extents[x], extents[y], extents[z]) for x, y, z in (BLOCKS, THREADS))
    return Launch(root.stage.name, blocks, threads, body, cluster=_cluster(members, threads))


def _cluster(members: Sequence[Planned], threads: tuple[int, ...]) -> int:
    """The blocks of a cluster, for more threads along x than a block has: they reduce rows together, once each."""
    if threads[0] <= MOST_THREADS:
        return 1
    what = f"{prod(threads)} threads of a block"
    if threads[0] % CLUSTERED or prod(threads) > threads[0]:
        raise BadInput(what, allowed=f"1024, or a multiple of {CLUSTERED} along x in a cluster, and none along y and z")
    if any(planned.scope == "shared" for planned in members):
        raise BadInput(f"{what}, which are those of a cluster, share memory", allowed="stages in registers")
    return threads[0] // CLUSTERED


def _whole_warps(extents: Mapping[str, int], warp: int) -> dict[str, int]:
    """The threads along x and y that lanes need in order to combine reductions: pairwise within a warp, then across
    warps."""
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
    own_lanes = planned.scope == "warp" and LANES in tags  # the pass `lanes` checks that each lane uses its own
    if planned.scope != "shared" and len(tags) > len(joined) + own_lanes:
        raise BadInput(f"stage {name} is in registers, which other threads cannot read", allowed="the scope shared")
    if joined and planned.scope != "shared" and LANES in around:
        raise BadInput(f"threads along {LANES} compute different elements of stage {name}, and cannot join them")


def _guarded_by_threads(state: State, planned: Planned, extents: Mapping[str, int]) -> Planned:
    """The stage with guards for idle threads, and without unnecessary ones."""
    own = list(planned.loops)
    inherited = [] if planned.scope in OWNED else list(_taking_part(state, planned))
    guards = list(_needed_guards(state, planned))
    guards += [
        loop.extent - 1 - iterator(loop.variable)
        for loop in (*own, *inherited)
        if loop.kind in THREADS and loop.extent < extents[loop.kind]
    ]
    if planned.scope in OWNED:
        bound = {loop.kind for loop in own}
        guards += [-iterator(tag) for tag in THREADS if extents[tag] > 1 and tag not in bound]
    filled = _filled_with_zeros(state, planned)
    return replace(planned, stage=filled or planned.stage, guards=tuple(guards))


def _taking_part(state: State, planned: Planned) -> Iterator[Loop]:
    """The loops around a stage in registers that determine which threads need it; shared stages are computed by all."""
    users = list(_users(state, planned))
    while planned.at is not None:
        host = state.stages[planned.at[0]]
        for loop in host.loops[: host.depth(planned.at[1])]:
            # Another stage in shared memory that reads it may be computed by more threads.
            if not any(one.kind == loop.kind and one.extent > loop.extent for p in users for one in p.loops):
                yield loop
        if host.scope in OWNED:
            return
        planned = host


def _users(state: State, planned: Planned) -> Iterator[Planned]:
    """The stages with threads of their own that read a stage in registers, directly or through other such stages."""
    for reader in state.readers(planned.stage.name):
        yield from (reader,) if reader.scope in OWNED else _users(state, reader)


def _needed_guards(state: State, planned: Planned) -> tuple[Index, ...]:
    """The guards without those of elements beyond the edges that may be computed, as nobody reads them and their
    operands exist."""
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
    """Whether it is in shared memory and reads only sums of the same block."""
    stages = [state.stages.get(read.tensor) for read in reads(planned.stage.value)]
    return planned.scope == "shared" and bool(stages) and all(p is not None and p.scope == "warp" for p in stages)


def _reads_inside(state: State, planned: Planned) -> bool:
    """Whether everything that a stage reads, including beyond its edges, is in buffers of the same launch."""
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
    """A stage whose region may reach beyond its tensor, padded with zeros: matrix products have no guards at edges, and
    what lanes scan is loaded without branches, so that all loads are in flight at once."""
    readers = state.readers(planned.stage.name)
    products = planned.scope == "shared" and any(p.tensorized for p in readers)
    scanned = planned.scope == "register" and any(p.scope == "warp" and p.stage.scan for p in readers)
    if planned.stage.reduce or not (products or scanned):
        return None
    inside: list[Index] = []
    for axis in planned.stage.axes:
        if planned.bases[axis.name].terms or planned.bases[axis.name].constant:
            inside += [iterator(axis.name), axis.extent - 1 - iterator(axis.name)]
    if not inside:
        return planned.stage
    zero = Const(0, planned.stage.dtype)
    return replace(planned.stage, value=Select(all_of(inside), planned.stage.value, zero))


def bind(body: Stmt, _: Around) -> Stmt:
    """Loops bound to blocks and threads disappear: their variables become grid indices."""
    bound = {s.variable: iterator(s.kind) for s in walk(body) if isinstance(s, For) and s.kind in BOUND}
    return with_indices_in(_without_bound(body), lambda i: i.substitute(bound))


def _without_bound(statement: Stmt) -> Stmt:
    statement = with_children(statement, _without_bound)
    return statement.body if isinstance(statement, For) and statement.kind in BOUND else statement


def together(program: Lowered, _: Machine) -> Lowered:
    """Merges neighbouring launches with the same threads per block into one grid: the blocks of one, then those of the
    next."""
    assert isinstance(program, Program)
    joined: list[Launch] = []
    for launch in program.launches:
        if joined and all(_apart(one, launch) for one in joined[-1].parts):
            joined[-1] = replace(joined[-1], beside=(*joined[-1].beside, launch))
        else:
            joined.append(launch)
    return replace(program, launches=tuple(joined))


def _apart(one: Launch, other: Launch) -> bool:
    """Whether neither uses what the other writes, and both can be branches of one kernel."""
    (first, writes), (second, written) = _used(one), _used(other)
    plain = not any(
        isinstance(s, Call) or (isinstance(s, Store) and s.joined) for p in (one, other) for s in walk(p.body)
    )
    return (
        (one.threads, one.cluster) == (other.threads, other.cluster)
        and plain
        and not (writes & second)
        and not (written & first)
    )


def _used(launch: Launch) -> tuple[set[str], set[str]]:
    """The buffers that are visible to other launches: all that are used, and those that are written."""
    own = {s.buffer.name for s in walk(launch.body) if isinstance(s, Alloc)}
    return used(launch.body) - own, written_in(launch.body) - own


def overlaps(program: Program, n: int) -> bool:
    """Whether a launch may begin while the one before still runs: then the chip has it ready when that ends."""
    return n > 0 and (program.early or waits_late(program, n))


def waits_late(program: Program, n: int) -> bool:
    """Whether a launch waits for the one before only when it copies what that leaves for it: on chips with products of
    four warps."""
    launch = program.launches[n]
    if not n or launch.beside or not any(calls(launch.body, WideProduct)):
        return False
    return any(copies_of_scratch(program, s) for s in walk(launch.body))


def copies_of_scratch(program: Program, statement: Stmt) -> bool:
    """Whether these loops copy what another launch leaves, and nothing else."""
    scratch, inside = {buffer.name for buffer in program.scratch}, list(walk(statement))
    if not isinstance(statement, (For, If)) or any(isinstance(s, (Seq, Alloc, Barrier, Call)) for s in inside):
        return False
    return any(isinstance(s, Store) and scratch & {read.tensor for read in reads(s.value)} for s in inside)
