"""Scans: the lanes of a warp scan a row together; long rows are scanned in pieces, each continuing from the previous
one."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.groups import (
    held_numbers,
    reads_columns,
    reads_rows,
    scanned_place,
    scans_rows,
    stores_backwards,
)
from deepgen.compiler.rules.gpu.plan import BORDER, WIDEST, Plan, powers
from deepgen.compiler.rules.template import Extent, covered, text, times
from deepgen.compiler.schedule import steps as s
from deepgen.compiler.schedule.bounds import conditions
from deepgen.compiler.schedule.stages import combined, identity
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Compare,
    Const,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    Value,
    children,
    reads,
    substituted,
    walk,
    with_children,
    with_reads,
)
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_WARP, _USUAL_THREADS = 32, 128
_LOADED, _LINE, _COLUMN_THREADS = 8, 64, 512  # numbers that a lane of a column loads at once, bytes of a row, threads
_SHORTEST = 64  # least length of pieces of a scanned row
_LEAST_PIECE, _MULTIPLE, _WARPS = 512, 256, 32  # least elements of a piece, and its multiple; warps per multiprocessor
_ROUNDS, _SCATTERED = 4, 2048  # loads of a lane one after the other; elements that a multiprocessor may load scattered


class ScanRows:
    """The lanes of a warp scan a row together in registers."""

    name, exclusive, targets = "Scan-Rows", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        scan = plan.part.scan
        if scan is None or plan.reads_kept:
            return "it has no scan" if scan is None else BORDER
        return None if scans_rows(scan) else "it does not scan rows that lie together and that lanes have room for"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(_scanned)


def _scanned(plan: Plan) -> None:
    scan = plan.part.scan
    assert scan is not None
    name = plan.added_up(scan, "warp")
    plan.restructure(*runs(scan, name))
    by_lanes(plan, plan.stage(plan.part.last.name), plan.stage(name), reads(scan.value))


def runs(scan: Stage, reader: str) -> tuple[s.Step, ...]:
    """The elements of a row that a lane reads at once, in registers."""
    return tuple(s.CacheRead(r.tensor, _run(r), "register", (reader,)) for r in reads(scan.value))


def by_lanes(plan: Plan, out: Stage, scan: Stage, operands: tuple[Read, ...]) -> None:
    """`out` stores the results of `scan`; `operands` are its reads before these were copied."""
    place = scanned_place(scan)
    length, columns = scan.axes[place].extent, place < len(scan.axes) - 1
    plan.names += ("scan_columns" if columns else "scan_lanes",)
    together = length & -length if len(out.axes) < len(scan.axes) else _WARP * _LOADED  # lanes scan whole pieces
    sizes = _of_columns(plan, scan, operands, together) if columns else _of_rows(plan, scan, operands)
    team, each, rows, iterations = sizes
    held = times([iterations, covered(length, times([team, each])), each])
    fits = length > held_numbers(scan) and facts.streamed(scan)  # a few runs at a time
    plan.require(fits or held <= held_numbers(scan) // _WARP, "a lane's numbers fit in its registers")
    plan.require(times([team, rows]) <= plan.target.threads_per_block, "threads of a block")
    plan.derive("threads", times([team, rows]))
    loops = [axis.name for axis in out.axes]
    along = place - (len(scan.axes) - len(loops))
    if backwards := stores_backwards(plan.expression, out, scan):  # a lane stores what it scanned
        plan.step(s.Reverse(out.name, loops[along]))
    if len(loops) < len(scan.axes):  # rows end within a piece
        plan.require(times([team, each]) <= together, "lanes scan whole pieces")
        loops[along : along + 1] = plan.split(out.name, loops[along], (length,))
    loops.append(loops.pop(place))
    run = "unroll" if columns else "vector"  # of columns, a lane's elements lie apart
    if columns:
        plan.reorder(out.name, loops)
    block, by_y, _ = plan.deal(out.name, loops[:-1], ("thread.y", rows), ("unroll", iterations))
    plan.annotate(out.name, "block.x", block)
    *_, vector = plan.deal(out.name, loops[-1:], ("thread.x", team), (run, each))
    if backwards:
        plan.step(s.Reverse(out.name, vector))
    own = [axis.name for axis in scan.axes]
    own_places = [] if isinstance(each, int) and each == 1 else [s.LayoutPlace[s.Number](place, 1, text(each))]
    lane = s.LayoutPlace(place, text(each), text(team))
    whole = s.whole(*(n for n in range(len(own)) if n != place))
    order = (*whole, s.LayoutPlace(place, text(times([team, each]))), *own_places, lane)
    plan.step(s.SetScope(scan.name, "warp"), s.Layout(scan.name, order))
    plan.step(s.ComputeAt(scan.name, out.name, by_y))
    if columns:
        plan.reorder(scan.name, (*own[:place], *own[place + 1 :], own[place]))
    _, lanes, _ = plan.deal(scan.name, [own[place]], ("thread.x", team), ("unroll", each))
    for read in operands:
        plan.step(s.ComputeAt(_run(read), scan.name, lanes))
        dimension = next(n for n, index in enumerate(read.indices) if own[place] in index.iterators)
        plan.annotate(_run(read), run, f"a{dimension}")


def _of_rows(plan: Plan, scan: Stage, operands: tuple[Read, ...]) -> tuple[Extent, Extent, Extent, Extent]:
    """The lanes of a row, the elements that each has at once, the rows of a block, and those of a lane."""
    length, count = scan.axes[-1].extent, prod(axis.extent for axis in scan.axes[:-1])
    widest = max(1, WIDEST // max(dtype(read.dtype).bytes for read in operands))
    widths = [n for n in powers(max(widest, 2), 2) if length % n == 0] or [1]
    each = plan.knob("each", widths, widths[-1])
    teams = [n for n in powers(min(_WARP, -(-length // 2)), 2) if n <= _WARP]
    covering = 1 << (-(-length // widths[-1]) - 1).bit_length()
    long = length > held_numbers(scan)
    team = plan.knob("team", [_WARP] if long else teams, min(_WARP, max(2, covering)))
    usual = _USUAL_THREADS // min(_WARP, max(2, covering))
    rows = plan.knob("rows", [n for n in powers(64) if n < 2 * count], usual)
    several = [n for n in (1, 2, 4) if scan.axes[-2].extent % n == 0 and (n == 1 or not long)]
    return team, each, rows, plan.knob("turns", several, 1)


def _of_columns(
    plan: Plan, scan: Stage, operands: tuple[Read, ...], together: int
) -> tuple[Extent, Extent, Extent, Extent]:
    """The same for columns: as few lanes for each as have room for it, so that a warp reads neighbouring columns. They
    have at most as many elements at once as are `together`."""
    length = scan.axes[scanned_place(scan)].extent
    count = prod(axis.extent for axis in scan.axes) // length
    widths = [n for n in powers(_LOADED, 2) if n < 2 * length]
    teams = [n for n in powers(min(_WARP, -(-length // 2)), 2) if n <= _WARP]
    room = plan.target.multiprocessors * _COLUMN_THREADS // count  # for more threads than those that have room
    rounds = _ROUNDS + (length % (_LOADED * (_ROUNDS + 1)) == 0)  # pieces that divide a column may need one more
    able = [n for n in teams if length <= n * _LOADED * rounds and (length <= n * _LOADED or n >= room)]
    usual = able[0] if able else teams[-1]
    each = plan.knob("each", widths, max(2, min(widths[-1], together // usual)))
    team = plan.knob("team", teams, usual)
    line = _LINE // max(dtype(read.dtype).bytes for read in operands)
    several = [n for n in powers(64) if n < 2 * count]
    beside = min(several[-1], max(_USUAL_THREADS // usual, line))
    while beside * usual > plan.target.warp and count < beside * plan.target.multiprocessors:
        beside //= 2  # of few columns, each multiprocessor has some
    return team, each, plan.knob("rows", several, beside), 1


def _run(read: Read) -> str:
    return f"{read.tensor}.run"


def scan_in_pieces(expression: Expression, gpu: Gpu) -> Expression | None:
    """A scan of rows that are too long for lanes: in pieces, each continuing from the result of the previous one. A
    single row is treated as a matrix with one row, and a row that is stored at other places, such as one place later,
    begins with numbers that change nothing.

    None for other expressions. Tensors may get an additional dimension, with the same elements in the same order.
    """
    scans = [stage for stage in expression.stages if stage.scan]
    out = expression.stages[-1]
    if len(scans) != 1 or expression.outputs != (out.name,) or {*expression.stages} - {out} - {*scans}:
        return None
    (scan,) = scans
    if scan.scan != scan.axes[-1].name:
        return _columns_in_pieces(expression, scan, out, gpu)
    if out.reduce not in (None, scan.reduce if out == scan else None):
        return None
    if len(scan.axes) == 1:
        one = _as_matrix(expression)
        return scan_in_pieces(one, gpu) or one
    if out != scan:
        scan, out = _begun_together(scan, out)
        shifted = replace(expression, stages=(scan, out))
        if stores_backwards(shifted, out, scan) is None:
            return None
        expression = shifted
    names = {stage: [axis.name for axis in stage.axes] for stage in (scan, out)}
    plain = [(stage, read, [facts.plain(i) for i in read.indices]) for stage in names for read in reads(stage.value)]
    if not reads_rows(scan):
        return None
    length, rows = scan.axes[-1].extent, scan.axes[:-1]
    if length <= held_numbers(scan) or facts.streamed(scan):
        return expression
    pieces = [n for n in range(_SHORTEST, held_numbers(scan) // 2 + 1) if length % n == 0]
    same = all(at == names[stage] for stage, _, at in plain) and not any(map(_placed, names))
    if same and pieces and length // pieces[-1] <= held_numbers(scan):
        outer, inner = Axis("piece", length // pieces[-1]), Axis("place", pieces[-1])
        return _in_pieces(expression, scan, out, (*rows, outer, inner))
    return replace(expression, stages=_of_any_length(scan, out, gpu))


def _columns_in_pieces(expression: Expression, scan: Stage, out: Stage, gpu: Gpu) -> Expression | None:
    """The same for columns."""
    stored = out == scan or (out.reduce is None and stores_backwards(expression, out, scan) is not None)
    if not stored or not reads_columns(scan):
        return None
    return replace(expression, stages=_of_any_length(scan, out, gpu)) if _too_long(scan, gpu) else None


def _too_long(scan: Stage, gpu: Gpu) -> bool:
    """Whether its rows are scanned in pieces: lanes have no room for them, or it has many columns of which a warp would
    read few elements of a row."""
    length, place = scan.axes[scanned_place(scan)].extent, scanned_place(scan)
    columns = place < len(scan.axes) - 1 and reads_columns(scan)
    scattered = columns and prod(axis.extent for axis in scan.axes) > gpu.multiprocessors * _SCATTERED
    return length > (_room_beside(scan) * (_ROUNDS + 1) // _ROUNDS if scattered else held_numbers(scan))


def _room_beside(scan: Stage) -> int:
    """The longest columns of which a warp reads whole sectors of 32 bytes in each row: few lanes scan one together."""
    return max(2, *(dtype(read.dtype).bytes for read in reads(scan.value))) * _LOADED * _ROUNDS


def _piece_of_columns(scan: Stage, gpu: Gpu) -> int:
    """The length of pieces of columns: so short that a warp reads neighbouring columns, and that all multiprocessors
    have work. It is a power of two, as are the lanes and what these load, or a similar length which divides the column:
    no loads are inside branches then."""
    length, most = scan.axes[scanned_place(scan)].extent, held_numbers(scan) // 2
    busy = prod(axis.extent for axis in scan.axes) // (gpu.multiprocessors * _COLUMN_THREADS)
    wanted = max(_LOADED * _ROUNDS, min(_room_beside(scan), busy), -(-length // held_numbers(scan)))
    wanted = min(powers(wanted)[-1], powers(most)[-1])
    lanes = wanted // _ROUNDS  # of those that have room, times what each loads
    near = [n for n in range(lanes, (_ROUNDS + 1) * lanes + 1, lanes) if length % n == 0 and 2 * n > wanted]
    return near[-1] if near and length % wanted else wanted


def _begun_together(scan: Stage, out: Stage) -> tuple[Stage, Stage]:
    """A scan of as many elements as the result has, whose first one is the first or the last that the result reads.

    An exclusive scan reads the previous element of an inclusive one: that becomes a scan which reads previous elements,
    because loads that start within 16 bytes cost less than such stores.
    """
    places = {read.indices for read in facts.reads_of(out, scan.name)}
    if len(places) != 1:
        return scan, out
    at, along, most = next(iter(places))[-1], out.axes[-1], scan.axes[-1].extent
    backwards = at + iterator(along.name) if at.step(along.name) == -1 else None
    first = at - iterator(along.name) if backwards is None else backwards - (along.extent - 1)
    if first.terms or first.constant > 0 or (not first.constant and along.extent == most):
        return scan, out
    axis = Axis(scan.axes[-1].name, along.extent)
    place, kind = iterator(axis.name) + first, scan.dtype
    value = substituted(scan.value, {axis.name: place})
    assert scan.reduce is not None
    start = identity(scan.reduce, kind)
    if along.extent + first.constant > most:
        value = Select(Compare("lt", Place(place), Const(most, "i64")), value, start)
    if first.constant:
        value = Select(Compare("le", Const(0, "i64"), Place(place)), value, start)
    moved = replace(scan, axes=(*scan.axes[:-1], axis), value=value)
    return moved, replace(out, value=_unguarded(out.value, scan.name, start, at - first, first))


def _unguarded(value: Value, scan: str, start: Const, at: Index, first: Index) -> Value:
    """A value that reads the moved scan, also where it had the number that the scan now begins with."""
    if isinstance(value, Read) and value.tensor == scan:
        return replace(value, indices=(*value.indices[:-1], at))
    if isinstance(value, Select):
        inside = conditions(value.condition)
        read, outside = value.then, value.otherwise if inside == (at + first,) else None
        if inside == ((at + first) * -1 - 1,):
            read, outside = value.otherwise, value.then
        if outside == start:
            return _unguarded(read, scan, start, at, first)
    return with_children(value, [_unguarded(child, scan, start, at, first) for child in children(value)])


def _as_matrix(expression: Expression) -> Expression:
    """The expression with a leading axis of extent 1."""
    row = Axis("row", 1)

    def within(stage: Stage) -> Stage:
        value = with_reads(stage.value, lambda read: replace(read, indices=(iterator(row.name), *read.indices)))
        return replace(stage, axes=(row, *stage.axes), value=value)

    tensors = tuple(replace(tensor, shape=(1, *tensor.shape)) for tensor in expression.tensors)
    return replace(expression, tensors=tensors, stages=tuple(map(within, expression.stages)))


def _piece_of_rows(scan: Stage, gpu: Gpu) -> int:
    """The same for rows: pieces of a multiple of what a warp loads at once."""
    length, most = scan.axes[-1].extent, held_numbers(scan) // 2
    wanted = prod(axis.extent for axis in scan.axes) // (gpu.multiprocessors * _WARPS)
    count = -(-length // min(most, max(_LEAST_PIECE, wanted)))
    return -(-length // count // _MULTIPLE) * _MULTIPLE


def _of_any_length(scan: Stage, out: Stage, gpu: Gpu, level: str = "") -> tuple[Stage, ...]:
    """The same if the rows cannot be divided into equal pieces: the last one is shorter."""
    n = scanned_place(scan)
    rows, along, columns = scan.axes[:n], scan.axes[n], scan.axes[n + 1 :]
    assert scan.reduce is not None
    length = _piece_of_columns(scan, gpu) if columns else _piece_of_rows(scan, gpu)
    outer, inner = Axis(f"piece{level}", -(-along.extent // length)), Axis(f"place{level}", length)
    at, beside = (tuple(iterator(axis.name) for axis in axes) for axes in (rows, columns))
    first, kind = identity(scan.reduce, scan.dtype), scan.dtype
    piece, place = iterator(outer.name), iterator(inner.name)
    whole = piece * length + place
    inside = Compare("lt", Place(whole), Const(along.extent, "i64"))
    value = substituted(scan.value, {along.name: whole})
    value = Select(inside, value, first) if along.extent % length else value
    descending = all(i.step(along.name) in (0, -1) for read in reads(scan.value) for i in read.indices)
    added = substituted(value, {inner.name: length - 1 - place}) if descending else value  # in the order of memory
    pieces, whole_axes = (*rows, outer, *columns), (*rows, outer, inner, *columns)
    parts = Stage(f"{scan.name}.parts{level}", pieces, added, scan.reduce, (inner,))
    summed = Read(parts.name, (*at, piece, *beside), kind)
    before = Stage(f"{scan.name}.before{level}", pieces, summed, scan.reduce, (), outer.name)
    own = Stage(f"{scan.name}.own{level}", whole_axes, value, scan.reduce, (), inner.name)

    def total(read: Read) -> Value:
        row, here, column = read.indices[:n], read.indices[n], read.indices[n + 1 :]
        later = Compare("lt", Const(0, "i64"), Place(here // length))
        start = Select(later, Read(before.name, (*row, here // length - 1, *column), kind), first)
        assert scan.reduce is not None
        return combined(scan.reduce, Read(own.name, (*row, here // length, here % length, *column), kind), start)

    stored = Read(scan.name, tuple(iterator(axis.name) for axis in out.axes), kind)
    result = total(stored) if out == scan else with_reads(out.value, lambda r: total(r) if r.tensor == scan.name else r)
    earlier = _of_any_length(before, before, gpu, f"{level}_") if _too_long(before, gpu) else (before,)
    return (parts, *earlier, own, Stage(out.name, out.axes, result))


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
