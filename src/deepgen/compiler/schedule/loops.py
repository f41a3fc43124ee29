"""Steps that change the loops of one stage: split, reorder, fuse, annotate, unroll."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from deepgen.compiler.schedule.state import Loop, Planned
from deepgen.compiler.schedule.steps import (
    BOUND,
    LANES,
    PARALLEL,
    SCAN,
    SERIAL,
    UNROLL,
    VECTOR,
    Annotate,
    Fuse,
    Reorder,
    Split,
    Step,
    Unroll,
)
from deepgen.compiler.schedule.text import number, refused
from deepgen.operators.expr.index import Index, index, iterator

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
    parts = tuple(
        replace(loop, name=f"{loop.name}.{n}", variable=f"{loop.variable}.{n}", extent=extent, kind=SERIAL)
        for n, extent in enumerate(extents)
    )
    whole, step_of_part = Index(), prod(extents)
    for part in parts:
        step_of_part //= part.extent
        whole = whole + iterator(part.variable) * step_of_part
    changed = _with_variables(planned, {loop.variable: whole})
    guards = changed.guards if loop.extent % inner == 0 else (*changed.guards, loop.extent - 1 - whole)
    at = planned.loops.index(loop)
    return replace(changed, loops=(*planned.loops[:at], *parts, *planned.loops[at + 1 :]), guards=guards)


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
        name="+".join(loop.name for loop in named),
        variable="+".join((named[0].variable, *(loop.name for loop in named[1:]))),
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
        raise refused(step, f"loop {loop.name} is scanned: its turns follow each other")
    if step.kind == SCAN and [one for one in planned.loops if planned.stage.scan in one.axes][-1:] != [loop]:
        raise refused(step, f"loop {loop.name} is not the innermost of those that are scanned")
    if loop.reduced and step.kind in (PARALLEL, *BOUND) and step.kind != LANES:
        raise refused(
            step,
            f"loop {loop.name} is reduced: threads would write the same elements",
            f"make partial results of it with RFactor, or join threads along {LANES}",
        )
    return _with_kind(planned, loop, step.kind)


def unroll(step: Unroll, planned: Planned) -> Planned:
    copies, most = 1, number(step, step.most)
    for loop in reversed(planned.loops):
        copies *= 1 if loop.kind == VECTOR else loop.extent
        if loop.kind not in (SERIAL, UNROLL, VECTOR) or copies > most:
            break
        if loop.kind == SERIAL:
            planned = _with_kind(planned, loop, UNROLL)
    return planned


def _with_kind(planned: Planned, loop: Loop, kind: str) -> Planned:
    return replace(planned, loops=tuple(replace(one, kind=kind) if one == loop else one for one in planned.loops))


def _with_variables(planned: Planned, by: dict[str, Index]) -> Planned:
    return replace(
        planned,
        places={axis: place.substitute(by) for axis, place in planned.places.items()},
        guards=tuple(index(guard).substitute(by) for guard in planned.guards),
        touched=True,
    )
