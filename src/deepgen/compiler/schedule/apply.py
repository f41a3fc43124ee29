"""Applies a schedule to an expression, step by step; a step that is not legal is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.matrix import PRODUCTS
from deepgen.compiler.intrinsics.tiles import DOUBLE_BUFFER, GROUPS, MOST_ROWS, REGISTERS, TILES
from deepgen.compiler.schedule import stages
from deepgen.compiler.schedule.bounds import region
from deepgen.compiler.schedule.state import Loop, Planned, State, unplanned
from deepgen.compiler.schedule.steps import (
    LANES,
    SCOPES,
    THREADS,
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Layout,
    LayoutPlace,
    Pipeline,
    Reorder,
    Reverse,
    RFactor,
    Schedule,
    SetScope,
    Split,
    Step,
    StorageAlign,
    Swizzle,
    Tensorize,
    number,
    refused,
)
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Expression, reads


def apply(expression: Expression, schedule: Schedule) -> State:
    """The stages and loops of an expression under a concrete schedule."""
    state = State(expression, {stage.name: unplanned(stage) for stage in expression.stages})
    for step in schedule:
        state = applied(step, state)
    for name, planned in state.stages.items():
        if planned.at is not None:
            _check_place(ComputeAt(name, *planned.at), state)
    return state


def applied(step: Step, state: State) -> State:
    if type(step) in _STAGES:
        return _STAGES[type(step)](step, state)
    name: str = step.stage  # type: ignore[union-attr]
    if name not in state.stages:
        raise refused(step, f"there is no stage {name!r}", ", ".join(state.stages))
    if isinstance(step, (SetScope, StorageAlign, Layout)) and name in state.expression.outputs:
        raise refused(step, f"stage {name} is a result, which lies in memory as the caller asks")
    hosts = any(planned.at and planned.at[0] == name for planned in state.stages.values())
    if isinstance(step, (Split, Reverse, Reorder, Fuse)) and hosts:
        raise refused(step, f"stages are computed at loops of {name}", "arrange these first")
    return replace(state, stages={**state.stages, name: _ONE[type(step)](step, state.stages[name])})


def _compute_at(step: ComputeAt, state: State) -> State:
    if step.stage not in state.stages or step.consumer not in state.stages or step.stage == step.consumer:
        raise refused(step, "there are no two such stages", ", ".join(state.stages))
    planned, consumer = state.stages[step.stage], state.stages[step.consumer]
    stages.find(step, consumer, step.loop)
    if planned.touched or planned.at:
        raise refused(step, f"the loops of stage {step.stage} are already arranged", "place it first")
    if step.stage in state.expression.outputs:
        raise refused(step, f"stage {step.stage} is a result, which is computed whole")
    _check_readers(step, state)
    placed = replace(planned, at=(step.consumer, step.loop))
    bases, extents = {**planned.bases}, {**planned.extents}
    guards: list[Index] = []
    for axis, (base, extent) in zip(planned.stage.axes, _regions(step, state), strict=True):
        bases[axis.name], extents[axis.name] = base, extent
        if base.terms or base.constant:
            whole = base + iterator(f"{step.stage}.{axis.name}")
            guards += [whole, axis.extent - 1 - whole]
    shortened = tuple(replace(loop, extent=extents[loop.name]) for loop in planned.loops)
    placed = replace(placed, loops=shortened, bases=bases, extents=extents, guards=tuple(guards))
    return replace(state, stages={**state.stages, step.stage: placed})


def _check_place(step: ComputeAt, state: State) -> None:
    """Later steps may have changed which stages read this one, and where."""
    _check_readers(step, state)
    planned = state.stages[step.stage]
    wanted = [(planned.bases[axis.name], planned.extents[axis.name]) for axis in planned.stage.axes]
    if wanted != _regions(step, state):
        raise refused(step, f"what is read of stage {step.stage} changed after it was placed")


def _check_readers(step: ComputeAt, state: State) -> None:
    readers = state.readers(step.stage)
    outside = [p.stage.name for p in readers if not _inside(p, step, state)]
    if outside or not readers:
        what = f"stage {outside[0]}, outside of that loop, reads it" if outside else "nothing reads it"
        raise refused(step, what)


def _inside(planned: Planned, step: ComputeAt, state: State) -> bool:
    if planned.stage.name == step.consumer:
        return True
    if planned.at is None:
        return False
    host = state.stages[planned.at[0]]
    if planned.at[0] == step.consumer:
        return host.depth(planned.at[1]) >= host.depth(step.loop)
    return _inside(host, step, state)


def _regions(step: ComputeAt, state: State) -> list[tuple[Index, int]]:
    """For each axis of the stage: where the part that is read begins, and its length."""
    stage, consumer = state.stages[step.stage].stage, state.stages[step.consumer]
    around = [*state.around(consumer), *consumer.loops[: consumer.depth(step.loop)]]
    together = _TOGETHER.get(state.stages[step.stage].scope, ())
    outer = {loop.variable for loop in around if loop.kind not in together}
    inner = {
        loop.variable: loop.extent for p in state.stages.values() for loop in p.loops if loop.variable not in outer
    }
    regions: list[list[Index]] = [[] for _ in stage.axes]
    for reader in state.readers(stage.name):
        places = reader.absolute()
        for read in reads(reader.stage.value):
            if read.tensor == stage.name:
                for at, i in zip(regions, read.indices, strict=True):
                    at.append(i.substitute(places))
    whole = [(Index(), axis.extent) for axis in stage.axes]
    return [
        whole[n] if axis.name == stage.scan else region(regions[n], inner, axis.extent)
        for n, axis in enumerate(stage.axes)
    ]


def _set_scope(step: SetScope, planned: Planned) -> Planned:
    if step.scope not in SCOPES:
        raise refused(step, f"{step.scope!r} is not a scope", ", ".join(SCOPES))
    return replace(planned, scope=step.scope)


def _storage_align(step: StorageAlign, planned: Planned) -> Planned:
    factor, offset = number(step, step.factor), number(step, step.offset)
    if not 0 <= offset < factor or not 0 <= step.dimension < len(planned.order or planned.stage.axes):
        raise refused(step, "no buffer can be aligned this way", "0 <= offset < factor, a dimension")
    return replace(planned, aligned=(*planned.aligned, step))


def _pipeline(step: Pipeline, planned: Planned) -> Planned:
    depth = number(step, step.depth)
    if depth < 1 or planned.scope != "shared" or planned.at is None or planned.stage.reduce:
        what = "a copy in shared memory that is computed at a loop; a depth of at least 1"
        raise refused(step, f"stage {step.stage} cannot be prefetched", what)
    return replace(planned, depth_of_pipeline=depth)


def _swizzle(step: Swizzle, planned: Planned) -> Planned:
    if planned.scope != "shared" or number(step, step.mode) < 0:
        raise refused(step, f"stage {step.stage} cannot be swizzled", "a stage in shared memory")
    return replace(planned, swizzle=number(step, step.mode))


def _tensorize(step: Tensorize, planned: Planned) -> Planned:
    first, dot = stages.find(step, planned, step.loop), DOTS.get(step.intrinsic)
    if step.intrinsic in PRODUCTS:
        return replace(planned, tensorized=(step.loop, step.intrinsic))
    inner = planned.loops[planned.loops.index(first) :]
    if step.intrinsic in TILES:
        return _by_tiles(step, planned, inner)
    if dot is None:
        raise refused(step, f"{step.intrinsic!r} is not a known instruction", ", ".join((*DOTS, *TILES, *PRODUCTS)))
    extents = {(loop.reduced, loop.extent) for loop in inner}
    if len(inner) != 2 or extents != {(False, dot.lanes), (True, dot.depth)}:
        what = f"the loops from {step.loop} inwards are not {dot.lanes} sums of {dot.depth} products"
        raise refused(step, what)
    kept = planned.loops[: len(planned.loops) - len(inner)]
    return replace(planned, loops=(*kept, *(replace(loop, kind=dot.name) for loop in inner)))


def _by_tiles(step: Tensorize, planned: Planned, inner: tuple[Loop, ...]) -> Planned:
    tile = TILES[step.intrinsic]
    kept, fixed = [not loop.reduced for loop in inner], [loop.extent for loop in inner[3:]]
    right = kept == [True] * 4 + [False] * 2 and fixed == [tile.lanes, GROUPS, tile.depth]
    down, rows, across = [loop.extent for loop in inner[:3]] if right else (0, 0, 0)
    held = down * across + min(down, DOUBLE_BUFFER) + across
    if not right or rows > MOST_ROWS or held > REGISTERS or planned.scope != "register":
        what = (
            f"the loops from {step.loop} inwards are not tiles in registers, rows of one, tiles, {tile.lanes} columns, "
        )
        raise refused(step, f"{what}{GROUPS} groups and {tile.depth} products")
    outer = planned.loops[: len(planned.loops) - len(inner)]
    return replace(planned, loops=(*outer, *(replace(loop, kind=tile.name) for loop in inner)))


def _layout(step: Layout, planned: Planned) -> Planned:
    wanted = [
        LayoutPlace(p.dimension, number(step, p.by), None if p.modulo is None else number(step, p.modulo))
        for p in step.order
    ]
    for place in wanted:
        if place.by < 1 or (place.modulo is not None and place.modulo < 1):
            raise refused(step, f"{place} is not a dimension", "such as 0, 1/8, 1%8 or 1/8%4")
    for dimension in range(len(planned.stage.axes)):
        # The parts of a dimension are nested: each begins where the next larger one ends. One of size 1 has no effect.
        parts = sorted((p for p in wanted if p.dimension == dimension and p.modulo != 1), key=lambda p: -p.by)
        ends = [p.by for p in parts]
        starts = [None, *ends[:-1]]
        sizes = [p.by * p.modulo if p.modulo else None for p in parts]
        if not parts or ends[-1] != 1 or sizes != starts:
            what = f"dimension {dimension} is not covered exactly once"
            raise refused(step, what, "such as 0, 1/8, 1%8")
    if any(p.dimension >= len(planned.stage.axes) for p in wanted):
        raise refused(step, f"stage {step.stage} has {len(planned.stage.axes)} dimensions")
    return replace(planned, order=tuple(wanted))


_ONE: Mapping[type[Any], Callable[[Any, Planned], Planned]] = {
    Split: stages.split,
    Reverse: stages.reverse,
    Reorder: stages.reorder,
    Fuse: stages.fuse,
    Annotate: stages.annotate,
    SetScope: _set_scope,
    StorageAlign: _storage_align,
    Layout: _layout,
    Pipeline: _pipeline,
    Swizzle: _swizzle,
    Tensorize: _tensorize,
}
# Loops over which a stage is computed as a whole, because all threads of a block, or of a warp, read it.
_TOGETHER: Mapping[str, tuple[str, ...]] = {"shared": THREADS, "warp": (LANES,)}
_STAGES: Mapping[type[Any], Callable[[Any, State], State]] = {
    ComputeAt: _compute_at,
    Inline: stages.inline,
    CacheRead: stages.cache_read,
    CacheWrite: stages.cache_write,
    RFactor: stages.rfactor,
}
