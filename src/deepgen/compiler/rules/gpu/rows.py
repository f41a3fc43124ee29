"""Reductions: the threads of a block reduce a row together, and each has its columns of what is stored; or each thread
reduces columns of its own. Where there are few results, several blocks reduce parts of each."""

from __future__ import annotations

from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.groups import HELD, StageGroup, scans_rows, with_operands
from deepgen.compiler.rules.gpu.plan import BORDER, WIDEST, Plan, powers
from deepgen.compiler.rules.gpu.threads import result, shareable
from deepgen.compiler.rules.template import Extent, covered, plus, text, times
from deepgen.compiler.rules.values import divisors
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Axis, Expression, Read, Stage, reads
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_MOST_THREADS = 1024


_FEW = 256  # results: below that, threads had better share a reduction
_NEIGHBOURS = 32  # columns: as many as a warp has lanes
_SHORT = 9  # rows of a column: threads read these at once in any case
_STREAMS = 512  # threads of a multiprocessor, each with its own columns, that keep its memory busy
_BLOCKS = 8  # of a multiprocessor that do so with rows
_LEAST_ROWS, _LEAST_PART = 32, 4096  # of a column, and elements of a row, that a part has
_MOST_PARTS = 1024


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
    even = [n for n in divisors(longest(sums).extent) if n <= 16]
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
        lacking = gpu.multiprocessors * _STREAMS // -(-results // width)
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
    near = [n for n in divisors(extent) if 2 * parts <= 3 * n <= 4 * parts]
    return min(near, key=lambda n: abs(n - parts), default=parts)


class ScanRows:
    """Lanes of a warp scan a row together in registers; of longer ones a thread scans each, in shared memory."""

    name, exclusive, targets = "Scan-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        scan = plan.part.scan
        if scan is None or plan.reads_kept:
            return "it scans nothing" if scan is None else BORDER
        return None if scans_rows(scan) else "it does not scan rows that lie together and that a block has room for"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(_scanned)


def _scanned(plan: Plan) -> None:
    scan = plan.part.scan
    assert scan is not None
    lanes = 1 < scan.axes[-1].extent <= HELD  # those of a warp can hold a row
    name = plan.added_up(scan, "warp" if lanes else "shared")
    plan.restructure(*(runs if lanes else copies)(scan, name))
    by = by_lanes if lanes else by_rows_of_scans
    by(plan, plan.stage(plan.part.last.name), plan.stage(name), reads(scan.value))


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


_MANY = 64  # rows: fewer are all of a tensor in any case
_WARP = 32
_MOST_HELD = HELD // _WARP  # numbers of a lane
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
    plan.require(held <= _MOST_HELD, "a lane's numbers fit in its registers")
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


def copies(scan: Stage, reader: str) -> tuple[s.Step, ...]:
    operands = reads(scan.value)
    shared = tuple(s.CacheRead(r.tensor, _copy(r), "shared", (reader,)) for r in operands)
    runs = tuple(s.CacheRead(_copy(r), _run(r), "register", (reader,)) for r in operands if in_runs(scan, r))
    return (*shared, *runs)


def in_runs(scan: Stage, read: Read) -> bool:
    return scan.axes[-1].extent % (WIDEST // dtype(read.dtype).bytes) == 0


def by_rows_of_scans(plan: Plan, out: Stage, scan: Stage, operands: tuple[Read, ...]) -> None:
    """`out` stores what `scan` gives; `operands` are what it read before these were copied."""
    length = scan.axes[-1].extent
    plan.names += ("scan_rows",)
    count = prod(axis.extent for axis in scan.axes[:-1])
    rows = plan.knob("rows", [n for n in powers(256) if n < 2 * count], 64)
    threads = plan.knob("team", powers(256, 32), 128)
    plan.require(rows <= threads, "a thread for each row")
    loops = [axis.name for axis in out.axes]
    block, row = plan.split(out.name, plan.fuse(out.name, loops[:-1]), (rows,))
    # Few neighbours each: lanes then read words that lie on different banks.
    width = plan.knob("each", powers(WIDEST // dtype(out.dtype).bytes), 2)
    held: Extent = rows
    if count >= _MANY:
        # Turns that reach beyond the rows of a block would count some of all rows as its own.
        whole, iteration = times([rows, length]), times([threads, width])
        plan.require(whole % iteration == 0, "threads divide the rows of a block evenly")
    else:
        held = count
    plan.annotate(out.name, "block.x", block)
    plan.deal(out.name, [row, loops[-1]], ("thread.x", threads), ("vector", width))
    plan.step(s.SetScope(scan.name, "shared"), s.ComputeAt(scan.name, out.name, block))
    own = [axis.name for axis in scan.axes]
    plan.annotate(scan.name, "thread.x", plan.fuse(scan.name, own[:-1]))
    in_order = [read for read in operands if in_runs(scan, read)]
    if in_order:
        narrowest = max(WIDEST // dtype(read.dtype).bytes for read in in_order)
        step, _ = plan.deal(scan.name, own[-1:], ("unroll", narrowest))
    for read in in_order:
        plan.step(s.ComputeAt(_run(read), scan.name, step))
        plan.annotate(_run(read), "vector", f"a{len(own) - 1}")
    bytes_ = [times([held, _padded(scan.dtype, length, 4), dtype(scan.dtype).bytes])]
    _aligned(plan, scan.name, len(own), scan.dtype, 4)
    for read in operands:
        name, size = _copy(read), dtype(read.dtype).bytes
        plan.step(s.ComputeAt(name, out.name, block))
        plan.deal(name, [f"a{n}" for n in range(len(own))], ("thread.x", threads), ("vector", WIDEST // size))
        unit = WIDEST if in_runs(scan, read) else 4
        _aligned(plan, name, len(own), read.dtype, unit)
        bytes_.append(times([held, _padded(read.dtype, length, unit), size]))
    plan.require(plus(bytes_) <= plan.target.shared_per_block - 1024, "rows fit in shared memory")
    plan.derive("shared_bytes", plus(bytes_))


def _copy(read: Read) -> str:
    return f"{read.tensor}.shared"


def _run(read: Read) -> str:
    return f"{read.tensor}.run"


def _aligned(plan: Plan, name: str, dimensions: int, kind: str, unit: int) -> None:
    """Rows begin an odd number of units apart, in bytes, so that threads of a warp meet different banks."""
    words = max(1, unit // dtype(kind).bytes)
    plan.step(s.StorageAlign(name, dimensions - 2, 2 * words, words))


def _padded(kind: str, length: int, unit: int) -> int:
    words = max(1, unit // dtype(kind).bytes)
    return length + (words - length) % (2 * words)
