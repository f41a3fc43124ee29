"""Reductions and scans: the threads of a block reduce a row together, and each stores its own columns; or each thread
reduces columns of its own. If there are few results, several blocks reduce parts of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.groups import StageGroup, groups, with_operands
from deepgen.compiler.rules.gpu.plan import BORDER, WIDEST, Plan, powers
from deepgen.compiler.rules.gpu.threads import STREAMS, result, shareable
from deepgen.compiler.rules.template import Extent, covered, plus, text, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import Axis, Expression, Place, Read, Stage, reads, walk, with_reads
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_MOST_THREADS, _USUAL_THREADS = 1024, 128

_FEW = 256  # results: with fewer, threads share a reduction
_NEIGHBOURS = 32  # columns: a warp's lanes
_SHORT = 9  # rows of a column: threads load these at once in any case
_BLOCKS = 8  # per multiprocessor, when blocks share reductions along rows
_LEAST_ROWS, _LEAST_PART = 32, 4096  # least rows of a column, and least elements of a row, per part
_MOST_PARTS = 1024
_TEAMS, _TEAM_COLUMNS, _SECTOR = 8, 64, 32  # threads per column of a block, its columns, and bytes of memory's sectors
_LEAST_OF_ROWS = 8  # parts, if a single launch could reduce and store whole rows
_LONGEST_AT_ONCE = 1 << 17  # elements of a row that is reduced again and again, which one block does in one launch
_MOST_KEPT, _BESIDE_KEPT, _USUALLY_KEPT = 88, 24, 40  # registers of threads that keep their elements of a row
_SHORTEST_ROW, _SHORT_ROW, _MEDIUM_ROW, _LONG_ROW = 16, 64, 1024, 16384  # elements


class LongRows:
    """With few results, or a long reduction for each, it comes before other rules."""

    name, exclusive, targets = "Long-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        return _why_no_rows(plan) or (None if _is_few(plan.part) else "there are many results of short reductions")

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        kept = _kept(plan.part)
        ways = [lambda way: by_rows(way, way.part, kept)] if kept else []
        return plan.tried(*ways, *(() if plan.part.once else [lambda way: by_rows(way, way.part)]))


class ShortRows(LongRows):
    """Otherwise it comes after them."""

    name, exclusive, targets = "Short-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        return _why_no_rows(plan) or ("Long-Rows handles it" if _is_few(plan.part) else None)


def _why_no_rows(plan: Plan) -> str | None:
    part = plan.part
    if plan.reads_kept:
        return BORDER
    if part.scan:
        return "it is scanned"
    reductions = part.sums or (part.last,)
    if any(stage.reduce is None or not stage.reduced for stage in reductions):
        return "there is no reduction for threads to share"
    return None if part.last.axes else "there are no rows to start from"


def _is_few(part: StageGroup) -> bool:
    sums = part.reduction or part.last
    long = prod(sums.shape) < _FEW or _extent(sums) >= _FEW
    return part.rows or (long and not (part.reduction and shareable(sums)))


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
        if longest(sums).extent < _TEAMS * _LEAST_ROWS:
            return plan.tried(by_columns)
        return plan.tried(*((by_teams, by_columns) if _straddles(plan.expression, sums) else (by_columns, by_teams)))


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
    threads, each = _columns(plan, out, sums, 64, 256)
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
    name, along = plan.added_up(part.reduction, "register"), longest(part.reduction)
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
        few = inner.extent > _SHORT_ROW or _extent(stage) < inner.extent * _LEAST_ROWS
        if few or shapes != {(own.extent, inner.extent)} or both != 2 * len(streams):
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


def longest(stage: Stage) -> Axis:
    return max(stage.reduced, key=lambda axis: axis.extent)


def parts_of_reductions(plain: Expression, gpu: Gpu) -> list[dict[str, int]] | str:
    """The reductions that blocks should share, with the number of parts of each; or the reason why there are none.

    If one reads the result of another, as a variance does, each is split, in its own launches.
    """
    sums = [stage for stage in plain.stages if stage.reduce is not None]
    if not sums or any(stage.scan or not stage.axes or shareable(stage) for stage in sums):
        return "it has no reductions, or reads their elements more than once"
    several = any(group.rows for group in groups(plain))  # rows are read again after they are reduced
    if several and max(map(_extent, sums)) < _LONGEST_AT_ONCE:
        return "a block reduces a row faster than several launches do"
    wanted = {stage.name: n for stage in sums if (n := _wanted_parts(stage, gpu)) >= (_LEAST_OF_ROWS if several else 2)}
    if not wanted:
        return "there is work for all multiprocessors, or its reductions are short"
    by_name = {stage.name: stage for stage in sums}
    return [
        {name: _even(by_name[name], n // by) for name, n in wanted.items() if n // by >= 2}
        for by in (1, 4)
        if any(n // by >= 2 for n in wanted.values())
    ]


def _wanted_parts(stage: Stage, gpu: Gpu) -> int:
    """The number of parts to split a reduction into: a power of two."""
    elements, results = _extent(stage), prod(stage.shape)
    if why_no_columns(stage) is None:
        width = max(WIDEST // dtype(read.dtype).bytes for read in reads(stage.value))
        lacking = gpu.multiprocessors * STREAMS // -(-results // width)
        most = longest(stage).extent // _LEAST_ROWS
    else:
        lacking = gpu.multiprocessors * _BLOCKS // results
        most = min(longest(stage).extent, elements // _LEAST_PART)
    return 1 << max(0, min(lacking, most, _MOST_PARTS).bit_length() - 1)


def _even(stage: Stage, parts: int) -> int:
    """This number of parts, or a similar number: of parts along rows whose runs of elements are aligned, of others that
    divide the extent evenly, as uneven parts need guards."""
    extent = longest(stage).extent
    near = range(-(-2 * parts // 3), 4 * parts // 3 + 1)
    even = [n for n in near if extent % n == 0]
    if why_no_columns(stage) is not None:
        aligned = [n for n in near if -(-extent // n) % WIDEST == 0 and -(-extent // n) * (n - 1) < extent]
        even = [n for n in aligned if n in even] or aligned or even
    return min(even, key=lambda n: abs(n - parts), default=parts)


def by_rows(plan: Plan, group: StageGroup, kept: Sequence[str] = ()) -> None:
    """For `kept` tensors, threads load their elements of a row once and keep them in registers."""
    out = group.last
    plan.names += ("kept",) if kept else ("rows",)
    reductions = (*group.sums, *((out,) if out.reduce is not None else ()))
    row = (*group.sums, *group.once, out)
    early = _early(plan, group, kept)
    readers = {t: tuple(one.name for one in row if facts.reads_of(one, t)) for t in (*kept, *early)}
    plan.restructure(*(s.CacheRead(t, f"{t}.row", "warp", names) for t, names in readers.items()))
    longest, count = max(_extent(stage) for stage in reductions), _rows(out, group)
    each_usual = _usual_run(reductions, longest)
    if count > 1 and (kept or group.rows):  # runs that no row begins in the middle of are loaded at once
        each_usual = min(each_usual, *(_aligned(plan, one, read) for one in reductions for read in _streams(one)))
    usual = _usual_team(longest, each_usual, kept) if kept or not group.rows or longest <= _LONG_ROW else _MOST_THREADS
    least = 1 if longest <= _SHORTEST_ROW and count >= plan.target.multiprocessors * _USUAL_THREADS else 2
    if least == 1:  # there are rows for all threads: each takes one, in runs that divide it
        usual = 1
    room = plan.target.multiprocessors * _MOST_THREADS // count
    while least == 2 and usual * each_usual < longest and usual < _MOST_THREADS // 2 and 2 * usual <= room:
        usual *= 2  # there are few rows: with more threads for each, none waits for a second load
    team = plan.knob("team", powers(min(_MOST_THREADS, longest), least), usual)
    several = [n for n in powers(256 if least == 1 else 64) if n <= count]
    most = _USUAL_THREADS // 2 if kept and longest > _MEDIUM_ROW else _USUAL_THREADS * (2 if least == 1 else 1)
    blocks = plan.target.multiprocessors * _BLOCKS
    enough = [n for n in several if n * usual <= (most if count // n >= blocks else plan.target.warp)]
    beside = plan.knob("rows", several, max(enough, default=1))
    each = plan.knob("each", (1, 2, 4, 8), each_usual)
    plan.require(times([team, beside]) <= plan.target.threads_per_block, "threads of a block")
    plan.derive("threads", times([team, beside]))
    own = [a.name for a in out.axes]
    rows = [*group.across] or (own if not group.rows else own[: len(group.sums[0].axes)])
    if not rows:
        if out.reduce is not None:
            _shared_out(plan, out, team, each)
        return
    columns = [name for name in own if name not in rows]
    if group.across:
        plan.reorder(out.name, (*rows, *columns))
    block, by_y = plan.deal(out.name, rows, ("thread.y", beside))
    plan.annotate(out.name, "block.x", block)
    if columns:
        plan.deal(out.name, columns, ("thread.x", team), ("vector", each))
    if out.reduce is not None:
        _shared_out(plan, out, team, each)
    last = len(rows)

    def keep(name: str, along: str, last: int = last) -> None:
        own_places = (s.LayoutPlace[s.Number](last, 1, text(each)), s.LayoutPlace(last, text(each), text(team)))
        order = (*s.whole(*range(last)), s.LayoutPlace(last, text(times([team, each]))), *own_places)
        plan.step(s.SetScope(name, "warp"), s.Layout(name, order), s.ComputeAt(name, out.name, by_y))
        plan.deal(name, [along], ("thread.x", team), ("vector", each))

    for stage in reversed([one for one in plan.expression.stages if one.name in {one.name for one in row[:-1]}]):
        if stage.reduce is None:
            keep(stage.name, stage.axes[-1].name)
            continue
        plan.step(s.SetScope(stage.name, "register"), s.ComputeAt(stage.name, out.name, by_y))
        _shared_out(plan, stage, team, each)
    rounds = covered(longest, times([team, each]))
    if kept:
        words = sum(max(1, dtype(plan.expression.dtype_of(tensor)).bytes // 4) for tensor in (*kept, *early))
        held = plus([times([words, rounds, each]), _BESIDE_KEPT])
        plan.require(times([team, beside, held]) <= plan.target.registers_per_sm, "rows fit in registers")
        plan.require(held <= _MOST_KEPT, "what a thread keeps of a row fits in its registers")
    for tensor in kept:
        keep(f"{tensor}.row", f"a{last}")
    for tensor in early:
        keep(f"{tensor}.row", "a0", 0)


def _early(plan: Plan, group: StageGroup, kept: Sequence[str]) -> list[str]:
    """Tensors of one number a column, such as weights, that short rows load before they are reduced: a wait less."""
    out = group.last
    columns = kept and out.reduce is None and len(out.axes) > len(group.sums[0].axes)
    if not columns or out.axes[-1].extent > _MEDIUM_ROW:
        return []
    alone = [read for read in reads(out.value) if [facts.plain(index) for index in read.indices] == [out.axes[-1].name]]
    elsewhere = {read.tensor for stage in (*group.sums, *group.once) for read in reads(stage.value)}
    inputs = {tensor.name for tensor in plan.expression.tensors} - elsewhere
    return [*dict.fromkeys(read.tensor for read in alone if read.tensor in inputs)]


def _kept(group: StageGroup) -> list[str]:
    """The tensors of which several stages of a row read the same elements, each in the same order."""
    if not group.rows or any(
        len(stage.reduced) != 1 for stage in (*group.sums, group.last) if stage.reduce is not None
    ):
        return []
    rows = len(group.sums[0].axes)
    if not rows or len(group.last.axes) > rows + 1 or group.across:
        return []
    readers: dict[str, set[str]] = {}
    elsewhere = {stage.name for stage in group.once}
    for stage in (*group.sums, *group.once, group.last):
        own = [axis.name for axis in (*stage.axes[:rows], *(stage.reduced or stage.axes[rows:]))]
        for read in reads(stage.value):
            same = [facts.plain(index) for index in read.indices] == own and len(own) == rows + 1
            (readers.setdefault(read.tensor, set()) if same else elsewhere).add(stage.name if same else read.tensor)
    return [tensor for tensor, names in readers.items() if len(names) > 1 and tensor not in elsewhere]


def _shared_out(plan: Plan, stage: Stage, team: Extent, each: Extent) -> None:
    """The loops of a reduction: each thread takes contiguous elements, then all threads move on to the next ones."""
    plan.deal(stage.name, [a.name for a in stage.reduced], ("thread.x", team), ("vector", each))


def _extent(stage: Stage) -> int:
    return prod(axis.extent for axis in stage.reduced)


def _rows(out: Stage, group: StageGroup) -> int:
    if group.across:
        return prod(axis.extent for axis in out.axes if axis.name in group.across)
    return prod(axis.extent for axis in out.axes[: len(group.sums[0].axes) if group.rows else None])


def _usual_run(reductions: Sequence[Stage], longest: int) -> int:
    """How many contiguous elements a thread loads at once: 16 bytes, but no more than four elements of the shortest
    rows."""
    sizes = (dtype(read.dtype).bytes for stage in reductions for read in _streams(stage))
    widest = WIDEST // max(2, min(sizes, default=WIDEST))  # rows of constants read nothing
    return min(widest, 4) if longest <= _SHORTEST_ROW else widest


def _streams(stage: Stage) -> list[Read]:
    """The reads along the reduced axes: others are one number per row."""
    over, every = {axis.name for axis in stage.reduced}, reads(stage.value)
    return [read for read in every if any(index.iterators & over for index in read.indices)] or [*every]


def _aligned(plan: Plan, stage: Stage, read: Read) -> int:
    """The longest run of elements, a power of two, that divides all distances but those within a row."""
    apart = [facts.stride(plan.expression, read, a.name) or 0 for a in (*stage.axes, *stage.reduced) if a.extent > 1]
    return min((step & -step for step in map(abs, apart) if step > 1), default=WIDEST)


def _usual_team(longest: int, each: int, kept: Sequence[str] = ()) -> int:
    """Threads with about two loads of 16 bytes each; for short rows as many as cover them. With `kept` tensors, as many
    as have registers for these."""
    if kept and longest > _SHORT_ROW:
        few = _USUALLY_KEPT if longest > _MEDIUM_ROW else _USUALLY_KEPT // 2
        able = [n for n in powers(_MOST_THREADS, 2) if len(kept) * -(-longest // (n * each)) * each <= few]
        return able[0] if able else _MOST_THREADS // 2
    if longest <= _SHORT_ROW:
        return max(2, 1 << (-(-longest // each) - 1).bit_length())
    return min(256, max(32, 1 << max(0, (longest // 16).bit_length() - 1)))
