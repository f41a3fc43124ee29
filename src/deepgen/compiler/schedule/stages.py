"""Implements most steps: split, reorder, fuse and annotate change the loops of one stage; inline, caches and
partial reductions add or remove stages."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from deepgen.compiler.schedule.state import Loop, Planned, State, unplanned
from deepgen.compiler.schedule.steps import (
    BOUND,
    LANES,
    PARALLEL,
    SCAN,
    SCOPES,
    SERIAL,
    UNROLL,
    VECTOR,
    Annotate,
    CacheRead,
    CacheWrite,
    Fuse,
    Inline,
    Reorder,
    Reverse,
    RFactor,
    Split,
    Step,
    fused_name,
    number,
    refused,
    split_names,
)
from deepgen.operators.expr.index import Index, index, iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Place,
    Read,
    Select,
    Stage,
    Value,
    children,
    reads,
    substituted,
    with_children,
    with_reads,
)
from deepgen.vocabulary import dtype

KINDS = (SERIAL, PARALLEL, UNROLL, VECTOR, SCAN, *BOUND)


def find(step: Step, planned: Planned, name: str) -> Loop:
    loop = planned.loop(name)
    if loop is None:
        there = ", ".join(loop.name for loop in planned.loops)
        raise refused(step, f"stage {planned.stage.name} has no loop {name!r}", there or "none")
    return loop


def split(step: Split, planned: Planned) -> Planned:
    loop = find(step, planned, step.loop)
    factors = [number(step, factor) for factor in step.factors]
    if not factors or min(factors) < 1:
        raise refused(step, f"loop {loop.name} cannot be split by {step.factors}", "1 or more")
    inner = prod(factors)
    extents = (-(-loop.extent // inner), *factors)
    names, variables = (split_names(name, len(extents)) for name in (loop.name, loop.variable))
    parts = tuple(
        replace(loop, name=name, variable=variable, extent=extent, kind=SERIAL)
        for name, variable, extent in zip(names, variables, extents, strict=True)
    )
    whole, step_of_part = Index(), prod(extents)
    for part in parts:
        step_of_part //= part.extent
        whole = whole + iterator(part.variable) * step_of_part
    changed = _with_variables(planned, {loop.variable: whole})
    guards = changed.guards if loop.extent % inner == 0 else (*changed.guards, loop.extent - 1 - whole)
    at = planned.loops.index(loop)
    return replace(changed, loops=(*planned.loops[:at], *parts, *planned.loops[at + 1 :]), guards=guards)


def reverse(step: Reverse, planned: Planned) -> Planned:
    loop = find(step, planned, step.loop)
    if planned.stage.scan in loop.axes:
        raise refused(step, f"loop {loop.name} is scanned: its iterations run in order")
    return _with_variables(planned, {loop.variable: loop.extent - 1 - iterator(loop.variable)})


def reorder(step: Reorder, planned: Planned) -> Planned:
    named = [find(step, planned, name) for name in step.loops]
    if len(set(step.loops)) < len(step.loops):
        raise refused(step, "a loop is named twice")
    waiting = iter(named)
    loops = tuple(next(waiting) if loop in named else loop for loop in planned.loops)
    scan = planned.stage.scan
    along = [loop for loop in loops if scan in loop.axes]
    if along != [loop for loop in planned.loops if scan in loop.axes]:
        raise refused(step, f"the loops along {scan!r} keep their order: it is scanned")
    return replace(planned, loops=loops, touched=True)


def fuse(step: Fuse, planned: Planned) -> Planned:
    named = tuple(find(step, planned, name) for name in step.loops)
    at = planned.loops.index(named[0]) if named else 0
    if len(named) < 2 or planned.loops[at : at + len(named)] != named:
        raise refused(step, "only loops that follow each other can be fused")
    if len({loop.reduced for loop in named}) > 1:
        raise refused(step, "a loop of a reduction and one that is not cannot be fused")
    whole = Loop(
        name=fused_name(loop.name for loop in named),
        variable=fused_name((named[0].variable, *(loop.name for loop in named[1:]))),
        extent=prod(loop.extent for loop in named),
        axes=frozenset().union(*(loop.axes for loop in named)),
        reduced=named[0].reduced,
    )
    by, rest = {}, iterator(whole.variable)
    for loop in reversed(named[1:]):
        by[loop.variable], rest = rest % loop.extent, rest // loop.extent
    by[named[0].variable] = rest
    changed = _with_variables(planned, by)
    return replace(changed, loops=(*planned.loops[:at], whole, *planned.loops[at + len(named) :]))


def annotate(step: Annotate, planned: Planned) -> Planned:
    loop = find(step, planned, step.loop)
    if step.kind not in KINDS:
        raise refused(step, f"{step.kind!r} is not a kind of loop", ", ".join(KINDS))
    together = step.kind in (PARALLEL, VECTOR, *BOUND)
    by_lanes = step.kind == LANES and planned.scope == "warp"
    if together and planned.stage.scan in loop.axes and not by_lanes:
        raise refused(step, f"loop {loop.name} is scanned: its iterations run in order")
    if step.kind == SCAN and [one for one in planned.loops if planned.stage.scan in one.axes][-1:] != [loop]:
        raise refused(step, f"loop {loop.name} is not the innermost of those that are scanned")
    if loop.reduced and step.kind in (PARALLEL, *BOUND) and step.kind != LANES:
        raise refused(
            step,
            f"loop {loop.name} is reduced: threads would write the same elements",
            f"make partial results of it with RFactor, or join threads along {LANES}",
        )
    return _with_kind(planned, loop, step.kind)


def _with_kind(planned: Planned, loop: Loop, kind: str) -> Planned:
    return replace(planned, loops=tuple(replace(one, kind=kind) if one == loop else one for one in planned.loops))


def _with_variables(planned: Planned, by: dict[str, Index]) -> Planned:
    return replace(
        planned,
        places={axis: place.substitute(by) for axis, place in planned.places.items()},
        guards=tuple(index(guard).substitute(by) for guard in planned.guards),
        touched=True,
    )


def identity(op: str, of: str) -> Const:
    """The initial value of a reduction."""
    if op in ("sum", "prod"):
        return Const(int(op == "prod"), of)
    if not dtype(of).integer:
        return Const(float("-inf") if op == "max" else float("inf"), of)
    return Const(dtype(of).whole[0 if op == "max" else 1], of)


def combined(op: str, left: Value, right: Value) -> Binary:
    """Two values of a reduction combined."""
    return Binary({"sum": "add", "prod": "mul"}.get(op, op), left, right)


def inline(step: Inline, state: State) -> State:
    planned = _untouched(step, state, step.stage)
    stage = planned.stage
    if stage.reduce is not None:
        raise refused(step, f"stage {stage.name} is a reduction: it cannot be inlined")
    if stage.name in state.expression.outputs:
        raise refused(step, f"stage {stage.name} is a result: it cannot be inlined")

    def put(read: Read) -> Value:
        if read.tensor != stage.name:
            return read
        return substituted(stage.value, {axis.name: i for axis, i in zip(stage.axes, read.indices, strict=True)})

    rest = {name: _with_value(p, with_reads(p.stage.value, put)) for name, p in state.stages.items() if p != planned}
    return replace(state, stages=rest)


def cache_read(step: CacheRead, state: State) -> State:
    _new(step, state, step.name, step.scope)
    existing = {spec.name for spec in state.expression.tensors} | set(state.stages)
    strange = [name for name in step.readers if name not in state.stages]
    if step.tensor not in existing or strange or not step.readers:
        raise refused(step, f"there is no {(strange or [step.tensor])[0]!r}", ", ".join(existing))
    axes = tuple(Axis(f"a{n}", size) for n, size in enumerate(state.shape_of(step.tensor)))
    read = Read(step.tensor, tuple(iterator(axis.name) for axis in axes), state.dtype_of(step.tensor))
    value: Value = read if step.dtype is None else Cast(read, dtype(step.dtype).name)
    copy = replace(unplanned(Stage(step.name, axes, value)), scope=step.scope)
    changed = dict(state.stages)
    for name in step.readers:
        before = changed[name].stage.value
        changed[name] = _with_value(changed[name], _from_copy(before, step, value.dtype))
        if changed[name].stage.value == before:
            raise refused(step, f"stage {name} does not read {step.tensor}")
        if step.dtype is not None and any(r.tensor == step.tensor for r in reads(changed[name].stage.value)):
            raise refused(step, f"stage {name} does not cast all that it reads of {step.tensor} to {step.dtype}")
    early = step.scope == "warp" and step.tensor not in state.stages
    # What threads keep of a tensor they load before anything else, so that there is one wait for all of it.
    first = next(name for name, one in changed.items() if (one.scope != "warp" if early else name in step.readers))
    return replace(state, stages=_inserted(changed, copy, first))


def _from_copy(value: Value, step: CacheRead, kept: str) -> Value:
    """A value in which reads of the copy replace those of the tensor, or those under a cast."""
    read = value.value if step.dtype is not None and isinstance(value, Cast) and value.dtype == kept else value
    if isinstance(read, Read) and read.tensor == step.tensor and (step.dtype is None or read is not value):
        return Read(step.name, read.indices, kept)
    return with_children(value, [_from_copy(child, step, kept) for child in children(value)])


def cache_write(step: CacheWrite, state: State) -> State:
    planned = _untouched(step, state, step.stage)
    _new(step, state, step.name, step.scope)
    stage = planned.stage
    places = tuple(iterator(axis.name) for axis in stage.axes)
    copy = Stage(stage.name, stage.axes, Read(step.name, places, stage.dtype))
    computed = replace(unplanned(replace(stage, name=step.name)), scope=step.scope)
    written = replace(unplanned(copy), scope=planned.scope, order=planned.order, aligned=planned.aligned)
    return replace(state, stages=_inserted({**state.stages, stage.name: written}, computed, stage.name))


def rfactor(step: RFactor, state: State) -> State:
    planned = _stage(step, state, step.stage)
    _new(step, state, step.name, "global")
    stage, loop = planned.stage, find(step, planned, step.loop)
    others = [one for one in planned.loops if not one.reduced and one.name not in planned.places]
    if stage.reduce is None or not loop.reduced or others or planned.at or _hosts(state, stage.name):
        what = f"loop {loop.name} of stage {stage.name} cannot be reduced apart"
        raise refused(step, what, "a loop of a reduction, before any step but splits of reductions")
    by = {one.variable: iterator(one.name) for one in planned.loops}
    places = {axis.name: planned.places[axis.name].substitute(by) for axis in stage.reduced}
    value = substituted(stage.value, places)
    for guard in planned.guards:
        inside = Compare("le", Const(0, "i64"), Place(guard.substitute(by)))
        value = Select(inside, value, identity(stage.reduce, stage.dtype))
    apart = Axis(loop.name, loop.extent)
    rest = tuple(Axis(one.name, one.extent) for one in planned.loops if one.reduced and one != loop)
    op = stage.reduce if rest else None
    partial = Stage(step.name, (apart, *stage.axes), value, op, rest)
    indices = tuple(iterator(axis.name) for axis in partial.axes)
    whole = replace(stage, value=Read(step.name, indices, stage.dtype), reduced=(apart,))
    written = replace(unplanned(whole), scope=planned.scope, order=planned.order, aligned=planned.aligned)
    return replace(state, stages=_inserted({**state.stages, stage.name: written}, unplanned(partial), stage.name))


def _stage(step: Step, state: State, name: str) -> Planned:
    if name not in state.stages:
        raise refused(step, f"there is no stage {name!r}", ", ".join(state.stages))
    return state.stages[name]


def _untouched(step: Step, state: State, name: str) -> Planned:
    planned = _stage(step, state, name)
    if planned.touched or planned.at or _hosts(state, name):
        raise refused(step, f"the loops of stage {name} are already arranged", "do this first")
    return planned


def _hosts(state: State, name: str) -> bool:
    return any(p.at is not None and p.at[0] == name for p in state.stages.values())


def _new(step: Step, state: State, name: str, scope: str) -> None:
    existing = {spec.name for spec in state.expression.tensors} | set(state.stages)
    if name in existing:
        raise refused(step, f"there is a {name!r} already")
    if scope not in SCOPES:
        raise refused(step, f"{scope!r} is not a scope", ", ".join(SCOPES))


def _with_value(planned: Planned, value: Value) -> Planned:
    return replace(planned, stage=replace(planned.stage, value=value))


def _inserted(stages: dict[str, Planned], new: Planned, before: str) -> dict[str, Planned]:
    out: dict[str, Planned] = {}
    for name, planned in stages.items():
        if name == before:
            out[new.stage.name] = new
        out[name] = planned
    return out
