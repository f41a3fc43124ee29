"""Reductions and scans: the threads of a block reduce a row together, and each has its columns of what is stored; or
each thread reduces columns of its own. Where there are few results, several blocks reduce parts of each."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.groups import StageGroup, held_numbers, scans_rows, with_operands
from deepgen.compiler.rules.gpu.plan import BORDER, WIDEST, Plan, powers
from deepgen.compiler.rules.gpu.threads import STREAMS, result, shareable
from deepgen.compiler.rules.template import Extent, covered, text, times
from deepgen.compiler.schedule import steps as s
from deepgen.compiler.schedule.stages import combined, identity
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Compare,
    Const,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    reads,
    walk,
    with_reads,
)
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_MOST_THREADS = 1024


_FEW = 256  # results: below that, threads had better share a reduction
_NEIGHBOURS = 32  # columns: as many as a warp has lanes
_SHORT = 9  # rows of a column: threads read these at once in any case
_BLOCKS = 8  # of a multiprocessor that do so with rows
_LEAST_ROWS, _LEAST_PART = 32, 4096  # of a column, and elements of a row, that a part has
_MOST_PARTS = 1024
_SHORTEST = 64  # of pieces of a row that is scanned


class LongRows:
    """Where there are few results, or long reductions for each of them, it comes before other ways."""

    name, exclusive, targets = "Long-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        return _why_no_rows(plan) or (None if _is_few(plan.part) else "there are many results of short reductions")

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(lambda way: by_rows(way, way.part))


class ShortRows(LongRows):
    """Elsewhere it comes after them."""

    name, exclusive, targets = "Short-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        return _why_no_rows(plan) or ("Long-Rows serves it" if _is_few(plan.part) else None)


def _why_no_rows(plan: Plan) -> str | None:
    part = plan.part
    if plan.reads_kept:
        return BORDER
    if part.scan:
        return "it is scanned"
    reductions = part.sums or (part.last,)
    if any(stage.reduce is None or not stage.reduced for stage in reductions):
        return "there is no reduction for threads to share"
    if part.last.reduce is not None and part.sums:
        return "it reduces what was reduced"
    return None if part.last.axes else "there are no rows to start from"


def _is_few(part: StageGroup) -> bool:
    sums = part.reduction or part.last
    long = prod(sums.shape) < _FEW or _extent(sums) >= _FEW
    return part.rows or (long and not (part.reduction and shareable(sums)))


class Columns:
    """Where neighbouring results are of neighbouring elements: each thread reduces a few columns."""

    name, exclusive, targets = "Columns", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        if plan.reads_kept:
            return BORDER
        sums = plan.part.reduction
        return "it reduces nothing by itself" if sums is None else why_no_columns(sums)

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(by_columns)


def why_no_columns(sums: Stage) -> str | None:
    if not sums.axes or sums.axes[-1].extent < _NEIGHBOURS or _extent(sums) <= _SHORT:
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
    length = out.axes[-1].extent
    widest = max(WIDEST // dtype(read.dtype).bytes for read in reads(sums.value))
    several = [n for n in powers(widest) if length % n == 0 and n <= widest]
    each = plan.knob("each", several, several[-1])
    threads = plan.knob("columns", [n for n in powers(256, 32) if n < 2 * length], 64)
    even = [n for n in range(1, 17) if longest(sums).extent % n == 0]
    counts = even if len(even) > 2 else powers(16)
    rows = plan.knob("ahead", counts, max(n for n in counts if n <= 8))
    spread, inner = dict.fromkeys(others, 1), dict.fromkeys(others, 1)
    loop = result(plan, out, {**spread, last: threads}, {**inner, last: each})
    plan.derive("threads", threads)
    plan.step(s.SetScope(sums.name, "register"), s.ComputeAt(sums.name, out.name, loop))
    own, along = [axis.name for axis in sums.axes], longest(sums)
    outer, ahead = plan.split(sums.name, along.name, (rows,))
    rest = [axis.name for axis in sums.reduced if axis != along]
    plan.step(s.Reorder(sums.name, (*rest, outer, ahead, *own)))
    plan.annotate(sums.name, "unroll", ahead, *own[:-1])
    plan.annotate(sums.name, "vector", own[-1])


def longest(stage: Stage) -> Axis:
    return max(stage.reduced, key=lambda axis: axis.extent)


def parts_of_reduction(plain: Expression, gpu: Gpu) -> tuple[Stage, list[int]] | str:
    """The reduction that blocks had better share, into how many parts; or why there is none."""
    sums = [stage for stage in plain.stages if stage.reduce is not None]
    if len(sums) != 1 or sums[0].scan or not sums[0].axes or shareable(sums[0]):
        return "it has not one reduction whose elements are read once"
    (stage,) = sums
    if stage.name not in plain.outputs and facts.fusible_consumer(plain, stage) is None:
        return "its rows are read again once they are reduced"
    elements, results = _extent(stage), prod(stage.shape)
    if why_no_columns(stage) is None:
        width = max(WIDEST // dtype(read.dtype).bytes for read in reads(stage.value))
        lacking = gpu.multiprocessors * STREAMS // -(-results // width)
        most = longest(stage).extent // _LEAST_ROWS
    else:
        lacking = gpu.multiprocessors * _BLOCKS // results
        most = min(longest(stage).extent, elements // _LEAST_PART)
    wanted = 1 << max(0, min(lacking, most, _MOST_PARTS).bit_length() - 1)
    if wanted < 2:
        return "there is work for all multiprocessors" if lacking < 2 else "its reductions are too short"
    return stage, [_even(longest(stage).extent, n) for n in (wanted, wanted // 4) if n >= 2]


def _even(extent: int, parts: int) -> int:
    """So many parts, or about as many that are equally long: others need guards."""
    near = [n for n in range(-(-2 * parts // 3), 4 * parts // 3 + 1) if extent % n == 0]
    return min(near, key=lambda n: abs(n - parts), default=parts)


class ScanRows:
    """Lanes of a warp scan a row together in registers."""

    name, exclusive, targets = "Scan-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        scan = plan.part.scan
        if scan is None or plan.reads_kept:
            return "it scans nothing" if scan is None else BORDER
        return None if scans_rows(scan) else "it does not scan rows that lie together and that lanes have room for"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(_scanned)


def _scanned(plan: Plan) -> None:
    scan = plan.part.scan
    assert scan is not None
    name = plan.added_up(scan, "warp")
    plan.restructure(*runs(scan, name))
    by_lanes(plan, plan.stage(plan.part.last.name), plan.stage(name), reads(scan.value))


def by_rows(plan: Plan, group: StageGroup) -> None:
    out = group.last
    plan.names += ("rows",)
    reductions = group.sums or (out,)
    longest = max(_extent(stage) for stage in reductions)
    team = plan.knob("team", powers(min(_MOST_THREADS, longest), 2), _usual_team(longest))
    beside = plan.knob("rows", [n for n in (1, 2, 4, 8, 16) if n <= _rows(out, group)], 1)
    each = plan.knob("each", (1, 2, 4, 8), max(1, WIDEST // max(dtype(out.dtype).bytes, 2)))
    plan.require(times([team, beside]) <= plan.target.threads_per_block, "threads of a block")
    plan.derive("threads", times([team, beside]))
    own = [a.name for a in out.axes]
    rows = own if not group.rows else own[: len(group.sums[0].axes)]
    if not rows:
        if out.reduce is not None:
            _shared_out(plan, out, team, each)
        return
    columns = own[len(rows) :]
    block, by_y = plan.deal(out.name, rows, ("thread.y", beside))
    plan.annotate(out.name, "block.x", block)
    if columns:
        plan.deal(out.name, columns, ("thread.x", team), ("vector", each))
    if out.reduce is not None:
        _shared_out(plan, out, team, each)
    for stage in reversed(group.sums):
        plan.step(s.SetScope(stage.name, "register"), s.ComputeAt(stage.name, out.name, by_y))
        _shared_out(plan, stage, team, each)


def _shared_out(plan: Plan, stage: Stage, team: Extent, each: Extent) -> None:
    """The loops of a reduction: each thread takes neighbours, then all take the next ones."""
    plan.deal(stage.name, [a.name for a in stage.reduced], ("thread.x", team), ("vector", each))


def _extent(stage: Stage) -> int:
    return prod(axis.extent for axis in stage.reduced)


def _rows(out: Stage, group: StageGroup) -> int:
    return prod(axis.extent for axis in out.axes[: len(group.sums[0].axes) if group.rows else None])


def _usual_team(longest: int) -> int:
    """Threads with about two loads of 16 bytes each."""
    return min(256, max(32, 1 << max(0, (longest // 16).bit_length() - 1)))


_WARP = 32
_USUAL_THREADS = 128


def runs(scan: Stage, reader: str) -> tuple[s.Step, ...]:
    """What a lane reads of a row at once, in registers."""
    return tuple(s.CacheRead(r.tensor, _run(r), "register", (reader,)) for r in reads(scan.value))


def by_lanes(plan: Plan, out: Stage, scan: Stage, operands: tuple[Read, ...]) -> None:
    """`out` stores what `scan` gives; `operands` are what it read before these were copied."""
    length = scan.axes[-1].extent
    plan.names += ("scan_lanes",)
    count = prod(axis.extent for axis in scan.axes[:-1])
    widest = max(1, WIDEST // max(dtype(read.dtype).bytes for read in operands))
    widths = [n for n in powers(max(widest, 2), 2) if length % n == 0] or [1]
    each = plan.knob("each", widths, widths[-1])
    teams = [n for n in powers(min(_WARP, -(-length // 2)), 2) if n <= _WARP]
    covering = 1 << (-(-length // widths[-1]) - 1).bit_length()
    team = plan.knob("team", teams, min(_WARP, max(2, covering)))
    usual = _USUAL_THREADS // min(_WARP, max(2, covering))
    rows = plan.knob("rows", [n for n in powers(64) if n < 2 * count], usual)
    several = [n for n in (1, 2, 4) if scan.axes[-2].extent % n == 0]
    iterations = plan.knob("turns", several, 1)
    held = times([iterations, covered(length, times([team, each])), each])
    plan.require(held <= held_numbers(scan) // _WARP, "a lane's numbers fit in its registers")
    plan.require(times([team, rows]) <= plan.target.threads_per_block, "threads of a block")
    plan.derive("threads", times([team, rows]))
    loops = [axis.name for axis in out.axes]
    block, by_y, _ = plan.deal(out.name, loops[:-1], ("thread.y", rows), ("unroll", iterations))
    plan.annotate(out.name, "block.x", block)
    plan.deal(out.name, loops[-1:], ("thread.x", team), ("vector", each))
    own, last = [axis.name for axis in scan.axes], len(scan.axes) - 1
    own_places = [s.LayoutPlace[s.Number](last, 1, text(each))] if widths != [1] else []
    lane = s.LayoutPlace(last, text(each), text(team))
    order = (*s.whole(*range(last)), s.LayoutPlace(last, text(times([team, each]))), *own_places, lane)
    plan.step(s.SetScope(scan.name, "warp"), s.Layout(scan.name, order))
    plan.step(s.ComputeAt(scan.name, out.name, by_y))
    _, lanes, _ = plan.deal(scan.name, own[-1:], ("thread.x", team), ("unroll", each))
    for read in operands:
        plan.step(s.ComputeAt(_run(read), scan.name, lanes))
        plan.annotate(_run(read), "vector", f"a{last}")


def _run(read: Read) -> str:
    return f"{read.tensor}.run"


def scan_in_pieces(expression: Expression) -> Expression | None:
    """A scan of rows that are too long for lanes: of pieces, each of which goes on from what those before come to.

    None of other expressions. Tensors have a dimension more, for the same elements in the same order.
    """
    scans = [stage for stage in expression.stages if stage.scan]
    out = expression.stages[-1]
    if len(scans) != 1 or expression.outputs != (out.name,) or {*expression.stages} - {out} - {*scans}:
        return None
    (scan,) = scans
    length, rows = scan.axes[-1].extent, scan.axes[:-1]
    pieces = [n for n in range(_SHORTEST, held_numbers(scan) // 2 + 1) if length % n == 0]
    if scan.scan != scan.axes[-1].name or not rows or length <= held_numbers(scan) or not pieces:
        return None
    if out != scan and facts.fusible_consumer(expression, scan) != out:
        return None
    names = {stage: [axis.name for axis in stage.axes] for stage in (scan, out)}
    plain = [(stage, read, [facts.plain(i) for i in read.indices]) for stage in names for read in reads(stage.value)]
    if any(at != names[stage] for stage, _, at in plain) or any(map(_placed, names)):
        return None
    outer, inner = Axis("piece", length // pieces[-1]), Axis("place", pieces[-1])
    return _in_pieces(expression, scan, out, (*rows, outer, inner))


def _placed(stage: Stage) -> bool:
    return any(isinstance(node, Place) for node in walk(stage.value))


def _in_pieces(expression: Expression, scan: Stage, out: Stage, axes: tuple[Axis, ...]) -> Expression:
    *rows, outer, inner = axes
    assert scan.reduce is not None
    at = tuple(iterator(axis.name) for axis in axes)

    def cut(read: Read) -> Read:
        return replace(read, indices=at)

    value, kind = with_reads(scan.value, cut), scan.dtype
    parts = Stage(f"{scan.name}.parts", (*rows, outer), value, scan.reduce, (inner,))
    before = Stage(f"{scan.name}.before", (*rows, outer), Read(parts.name, at[:-1], kind), scan.reduce, (), outer.name)
    own = Stage(f"{scan.name}.own", axes, value, scan.reduce, (), inner.name)
    later = Compare("lt", Const(0, "i64"), Place(at[-2]))
    start = Select(later, Read(before.name, (*at[:-2], at[-2] - 1), kind), identity(scan.reduce, kind))
    total = combined(scan.reduce, Read(own.name, at, kind), start)
    result = total if out == scan else with_reads(out.value, lambda r: total if r.tensor == scan.name else cut(r))
    last = Stage(out.name, axes, result)
    tensors = tuple(replace(t, shape=(*t.shape[:-1], outer.extent, inner.extent)) for t in expression.tensors)
    return replace(expression, tensors=tensors, stages=(parts, before, own, last))
