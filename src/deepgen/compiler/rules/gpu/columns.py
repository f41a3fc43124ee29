"""Reductions of columns: neighbouring threads read neighbouring elements, and each reduces columns of its own, alone or
with a few threads of its block."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.facts import shareable
from deepgen.compiler.rules.gpu.groups import with_operands
from deepgen.compiler.rules.gpu.plan import BORDER, LEAST_ROWS, WIDEST, Plan, powers
from deepgen.compiler.rules.gpu.threads import STREAMS, result
from deepgen.compiler.rules.template import Extent, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import Axis, Expression, Place, Read, Stage, reads, walk, with_reads
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_NEIGHBOURS = 32  # columns: a warp's lanes
_SHORT = 9  # rows of a column: threads load these at once in any case
_TEAMS, _TEAM_COLUMNS, _SECTOR = 8, 64, 32  # threads per column of a block, its columns, and bytes of memory's sectors
_SHORT_ROW = 64  # elements
_LINE, _SMALL = 32, 1 << 20  # bytes of a row, and of all that is read, for which one launch is better than two


class Columns:
    """For results whose neighbours reduce neighbouring elements: each thread reduces a few columns."""

    name, exclusive, targets = "Columns", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        if plan.reads_kept:
            return BORDER
        sums = plan.part.reduction
        return "it has no reduction of its own" if sums is None else why_no_columns(sums)

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        sums = plan.part.reduction
        assert sums is not None
        if facts.longest(sums).extent < _TEAMS * LEAST_ROWS:
            return plan.tried(by_columns)
        teams = _straddles(plan.expression, sums) or teams_suffice(sums, plan.target)
        return plan.tried(*((by_teams, by_columns) if teams else (by_columns, by_teams)))


def why_no_columns(sums: Stage) -> str | None:
    if not sums.axes or sums.axes[-1].extent < _NEIGHBOURS or facts.elements(sums) <= _SHORT:
        return "there are few columns, or they are short"
    operands, own = reads(sums.value), {axis.name for axis in sums.axes}
    along = [facts.plain(read.indices[-1]) if read.indices else None for read in operands]
    if sums.axes[-1].name not in along or any(name not in own for name in along):
        return "neighbouring results are not of neighbouring elements"
    return "a block reads elements more than once" if shareable(sums) else None


def by_columns(plan: Plan) -> None:
    part = plan.part
    assert part.reduction is not None
    before, name = part.reduction, plan.added_up(part.reduction, "register")
    out, sums = plan.stage(part.last.name), with_operands(plan.stage(name), before)
    plan.names += ("columns",)
    *others, last = [axis.name for axis in out.axes]
    threads, each = _columns(plan, out, sums, 64, 256)
    even = [n for n in range(1, 17) if facts.longest(sums).extent % n == 0]
    counts = even if len(even) > 2 else powers(16)
    rows = plan.knob("ahead", counts, max(n for n in counts if n <= 8))
    spread, inner = dict.fromkeys(others, 1), dict.fromkeys(others, 1)
    loop = result(plan, out, {**spread, last: threads}, {**inner, last: each})
    plan.derive("threads", threads)
    plan.step(s.SetScope(sums.name, "register"), s.ComputeAt(sums.name, out.name, loop))
    own, along = [axis.name for axis in sums.axes], facts.longest(sums)
    outer, ahead = plan.split(sums.name, along.name, (rows,))
    rest = [axis.name for axis in sums.reduced if axis != along]
    plan.step(s.Reorder(sums.name, (*rest, outer, ahead, *own)))
    plan.annotate(sums.name, "unroll", ahead, *own[:-1])
    plan.annotate(sums.name, "vector", own[-1])


def lacking_threads(sums: Stage, gpu: Gpu) -> int:
    """How many times as many threads as there are runs of columns keep the memory busy."""
    width = max(WIDEST // dtype(read.dtype).bytes for read in reads(sums.value))
    return gpu.multiprocessors * STREAMS // -(-prod(sums.shape) // width)


def teams_suffice(sums: Stage, gpu: Gpu) -> bool:
    """Whether a thread for each run of columns is not enough, but a team is: no further launch has to join parts."""
    return facts.longest(sums).extent >= _TEAMS * LEAST_ROWS and 2 <= lacking_threads(sums, gpu) <= _TEAMS


def _straddles(expression: Expression, sums: Stage) -> bool:
    """Whether rows begin within a sector of memory: neighbouring blocks then read the sectors between their columns
    twice."""
    rows = [expression.shape_of(read.tensor)[-1] * dtype(read.dtype).bytes for read in reads(sums.value)]
    return any(length % _SECTOR for length in rows)


def by_teams(plan: Plan) -> None:
    """The threads of a block share the rows of its columns: blocks end soon, so those that run at the same time read
    neighbouring columns of few matrices, and what neighbouring blocks both read is still in L2."""
    part = plan.part
    assert part.reduction is not None
    name, along = plan.added_up(part.reduction, "register"), facts.longest(part.reduction)
    team, own = f"{name}.team", f"{name}.own"
    parts = s.split_names(along.name, 2)
    plan.restructure(
        s.Split(name, along.name, (_TEAMS,)), s.RFactor(name, parts[1], team), s.CacheWrite(team, own, "register")
    )
    plan.names += ("teams",)
    out = plan.stage(part.last.name)
    *others, last = [axis.name for axis in out.axes]
    threads, each = _columns(plan, out, part.reduction, _TEAM_COLUMNS, 1024 // _TEAMS)
    rows = plan.knob("ahead", powers(16), 8)
    loop = result(plan, out, {**dict.fromkeys(others, 1), last: threads}, {**dict.fromkeys(others, 1), last: each})
    plan.derive("threads", times([threads, _TEAMS]))
    plan.derive("shared_bytes", times([threads, _TEAMS, each, dtype(part.reduction.dtype).bytes]))
    plan.step(s.SetScope(name, "register"), s.ComputeAt(name, out.name, loop))
    kept = [axis.name for axis in plan.stage(name).axes]
    plan.step(s.Reorder(name, (parts[1], *kept)))
    plan.annotate(name, "unroll", parts[1], *kept[:-1])
    plan.annotate(name, "vector", kept[-1])
    block = s.fused_name(s.split_names(axis.name, 3)[0] for axis in out.axes)
    plan.step(s.SetScope(team, "shared"), s.ComputeAt(team, out.name, block))
    *_, lanes, vector = plan.split(team, kept[-1], (threads, each))
    plan.annotate(team, "thread.y", parts[1])
    plan.annotate(team, "thread.x", lanes)
    plan.annotate(team, "vector", vector)
    plan.step(s.ComputeAt(own, team, lanes))
    outer, ahead = plan.split(own, parts[0], (rows,))
    rest = [axis.name for axis in plan.stage(own).reduced if axis.name != parts[0]]
    plan.step(s.Reorder(own, (*rest, outer, ahead, parts[1], *kept)))
    plan.annotate(own, "unroll", ahead, *kept[:-1])
    plan.annotate(own, "vector", kept[-1])


def _columns(plan: Plan, out: Stage, sums: Stage, usual: int, most: int) -> tuple[Extent, Extent]:
    """The threads along a block's columns, and the columns of each."""
    length = out.axes[-1].extent
    widest = max(WIDEST // dtype(read.dtype).bytes for read in reads(sums.value))
    several = [n for n in powers(widest) if length % n == 0 and n <= widest]
    each = plan.knob("each", several, several[-1])
    return plan.knob("columns", [n for n in powers(most, 32) if n < 2 * length], usual), each


def with_columns(expression: Expression) -> Expression:
    """The expression with a reduction over many short rows split in two: columns first, then rows.

    The last two dimensions of the tensors, which no other stage may read, are merged.
    """
    for stage in expression.stages:
        over, streams = {axis.name: axis for axis in stage.reduced}, reads(stage.value)
        last = {tuple(facts.plain(index) for index in read.indices[-2:]) for read in streams}
        if stage.reduce is None or stage.scan or len(over) < 2 or len(last) != 1 or len(*last) != 2:
            continue
        (beside, within), axes = next(iter(last)), {axis.name: axis for axis in stage.axes}
        inner, own = over.get(within or ""), axes.get(beside or "")
        tensors = {read.tensor for read in streams}
        alone = all(facts.readers(expression, tensor) == (stage,) for tensor in tensors)
        placed = any(isinstance(node, Place) for node in walk(stage.value))
        if inner is None or own is None or placed or not alone or not tensors <= {t.name for t in expression.tensors}:
            continue
        shapes = {expression.shape_of(tensor)[-2:] for tensor in tensors}
        both = sum(facts.depends(read, name) for read in streams for name in (own.name, inner.name))
        few = inner.extent > _SHORT_ROW or facts.elements(stage) < inner.extent * LEAST_ROWS
        size = max(dtype(read.dtype).bytes for read in streams)
        lines = inner.extent * size % WIDEST == 0 and inner.extent * size >= _LINE  # which threads read well as rows
        small = facts.elements(stage) * prod(stage.shape) * size <= _SMALL
        if lines or small or few or shapes != {(own.extent, inner.extent)} or both != 2 * len(streams):
            continue
        return _of_columns(expression, stage, own, inner)
    return expression


def _of_columns(expression: Expression, stage: Stage, own: Axis, inner: Axis) -> Expression:
    tensors = {read.tensor for read in reads(stage.value)}
    whole = replace(own, extent=own.extent * inner.extent)
    value = with_reads(stage.value, lambda read: replace(read, indices=read.indices[:-1]))
    rest = tuple(axis for axis in stage.reduced if axis != inner)
    axes = tuple(whole if axis == own else axis for axis in stage.axes)
    columns = Stage(f"{stage.name}.columns", axes, value, stage.reduce, rest)
    at = iterator(own.name) * inner.extent + iterator(inner.name)
    places = tuple(at if axis == own else iterator(axis.name) for axis in stage.axes)
    row = replace(stage, value=Read(columns.name, places, stage.dtype), reduced=(inner,))
    stages = [one for other in expression.stages for one in ([columns, row] if other == stage else [other])]
    flat = [replace(t, shape=(*t.shape[:-2], whole.extent)) if t.name in tensors else t for t in expression.tensors]
    return replace(expression, tensors=tuple(flat), stages=tuple(stages))
