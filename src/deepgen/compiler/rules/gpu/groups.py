"""Splits an expression into launches: each has one stored stage and the stages that are computed with it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.schedule.apply import apply
from deepgen.compiler.schedule.steps import Inline, Step
from deepgen.operators.expr.index import Quotient, Remainder, iterator
from deepgen.operators.expr.nodes import Binary, Expression, Read, Stage, reads
from deepgen.vocabulary import dtype

_HELD = 16 << 10  # bytes of a row that a warp keeps in registers
_COLUMN = 512  # elements of columns that few threads keep
_COLUMN_EACH, _SMALL = 64, 1 << 20  # as many as a thread can keep; elements that are soon read, however they lie
_OFTEN = 16  # reads per element above which storing it is better


@dataclass(frozen=True)
class StageGroup:
    """`last` is stored. `sums` are reductions that are computed with it: one that it reads elementwise, or those of its
    rows, in order of computation; `once` are elements of rows that several of these read. If `spread` is set, that
    stage stores `last`, in other places. `across`: the axes of `last` that say which row it is of, if these are not its
    first, as the channels of a batch norm."""

    last: Stage
    sums: tuple[Stage, ...] = ()
    rows: bool = False
    spread: Stage | None = None
    once: tuple[Stage, ...] = ()
    across: tuple[str, ...] = ()

    @property
    def stored(self) -> Stage:
        return self.spread or self.last

    @property
    def reduction(self) -> Stage | None:
        """The reduction that loops are arranged for; None if the group has row reductions or scans."""
        if self.sums and not self.rows:
            return self.sums[0]
        return self.last if self.last.reduce is not None and not self.last.scan else None

    @property
    def scan(self) -> Stage | None:
        """The scan that it stores, directly or after elementwise operations."""
        return self.sums[0] if self.sums and self.sums[0].scan else self.last if self.last.scan else None


def inlined(expression: Expression, keep: frozenset[str] = frozenset()) -> tuple[tuple[Step, ...], Expression]:
    """The steps that inline stages without reductions into their readers, and the resulting expression."""
    steps = tuple(
        Inline(stage.name)
        for stage in expression.stages
        if stage.reduce is None and stage.name not in expression.outputs and stage.name not in keep
        if not _stored_first(expression, stage) and not _of_several(expression, stage)
    )
    return steps, changed(expression, steps)


def _stored_first(expression: Expression, stage: Stage) -> bool:
    """Whether it is computed from reductions and each element is multiplied many times, as the weights of attention
    are. A product reads them best from memory, and the rows that they depend on are then computed once."""
    sums = {one.name for one in expression.stages if one.reduce is not None and not one.scan}
    if not sums & {read.tensor for read in reads(stage.value)} or len(stage.axes) < 2:
        return False
    uses = facts.readers(expression, stage.name)
    return bool(uses) and all(_times(one, stage.name) >= _OFTEN for one in uses)


def _of_several(expression: Expression, stage: Stage) -> bool:
    """Whether it has a value for each row, of several reductions of the row, and is reduced itself: with all of them in
    one launch, a row is read once."""
    sums = {one.name for one in expression.stages if one.reduce is not None and not one.scan}
    own = [axis.name for axis in stage.axes]
    read = [one for one in reads(stage.value) if one.tensor in sums]
    rows = all([facts.plain(index) for index in one.indices] == own for one in read)
    uses = facts.readers(expression, stage.name)
    whole = all(isinstance(one.value, Read) and one.reduce and len(one.reduced) == len(own) for one in uses)
    return len({one.tensor for one in read}) > 1 and rows and bool(uses) and whole


def _times(reader: Stage, name: str) -> int:
    """How often a sum of products reads each element of a stage."""
    if reader.reduce != "sum" or reader.scan or not isinstance(reader.value, Binary) or reader.value.op != "mul":
        return 0
    places = [{index.plain for index in read.indices} for read in facts.reads_of(reader, name)]
    return min(prod(axis.extent for axis in reader.axes if axis.name not in at) for at in places)


def _is_product(stage: Stage) -> bool:
    """Whether it is a matrix product, which is not fused with rows: elements of both operands are read many times."""
    return all(_times(stage, read.tensor) >= _OFTEN for read in reads(stage.value))


def with_operands(stage: Stage, like: Stage) -> Stage:
    """A stage with the operands that it had before these were copied."""
    return Stage(stage.name, stage.axes, like.value, stage.reduce, stage.reduced, stage.scan)


def changed(expression: Expression, steps: tuple[Step, ...]) -> Expression:
    """The expression after steps that change stages but not loops."""
    state = apply(expression, steps)
    stages = tuple(planned.stage for planned in state.stages.values())
    return Expression(expression.name, expression.tensors, stages, expression.outputs)


def groups(expression: Expression, split: bool = False, once: Set[str] = frozenset()) -> list[StageGroup]:
    """The groups of an expression without stages that could be inlined, in launch order.

    `split`: reductions are split because there are too few rows for a launch that reduces and stores whole ones.
    `once`: stages that may belong to rows.
    """
    parts: list[StageGroup] = []
    taken: set[str] = set()
    for stage in reversed(expression.stages):
        if stage.name in taken:
            continue
        group = (
            _spread(expression, stage)
            or _with_its_sum(expression, stage)
            or (_with_its_rows(expression, stage, taken, once) if not split or _stores_few(expression, stage) else None)
            or _with_its_column(expression, stage)
            or StageGroup(stage)
        )
        taken |= {stage.name, group.last.name, *(one.name for one in (*group.sums, *group.once))}
        parts.append(group)
    return parts[::-1]


def _stores_few(expression: Expression, stage: Stage) -> bool:
    """Whether it stores a number or two for each row that it reads reductions of."""
    sums = _read_reductions(expression, stage)
    several = len(sums) > 1 or any(map(_of_pairs, sums))
    return stage.reduce is None and several and prod(stage.shape) <= 2 * min(prod(one.shape) for one in sums)


def _of_pairs(stage: Stage) -> bool:
    """Whether it reduces one of two numbers that are stored together."""
    over = [axis.name for axis in stage.reduced]
    several = [read for read in reads(stage.value) if any(facts.depends(read, name) for name in over)]
    return any(not read.indices[-1].terms and len(read.indices) > len(stage.axes) + 1 for read in several)


def spread_parts(expression: Expression) -> frozenset[str]:
    """The stages that others store elementwise, but with strides between the elements."""
    return frozenset(
        read.tensor for stage in expression.stages for read in reads(stage.value) if spreads(expression, stage, read)
    )


def spreads(expression: Expression, stage: Stage, read: Read) -> bool:
    """Whether a stage only scatters what it reads into its elements, some of which may stay empty."""
    parts = {one.name: one for one in expression.stages}.get(read.tensor)
    if parts is None or parts.reduce is not None or stage.reduce is not None or len(reads(stage.value)) != 1:
        return False
    if read.tensor in expression.outputs or facts.readers(expression, read.tensor) != (stage,):
        return False
    divided = [atom.by for i in read.indices for atom, _ in i.terms if isinstance(atom, Quotient)]
    return bool(divided) and place_in(stage, read) is not None


def place_in(stage: Stage, read: Read) -> tuple[tuple[str, int, bool], ...] | None:
    """For each dimension of what is read: the axis that selects it, its stride, and whether the dimension is the
    remainder by that stride or the quotient; None if a dimension is selected in another way."""
    matches: list[tuple[str, int, bool]] = []
    for i in read.indices:
        atom = i.terms[0][0] if len(i.terms) == 1 and i.terms[0][1] == 1 and not i.constant else None
        if isinstance(atom, (Quotient, Remainder)) and (axis := facts.plain(atom.of)):
            matches.append((axis, atom.by, isinstance(atom, Remainder)))
        elif axis := facts.plain(i):
            matches.append((axis, 1, False))
        else:
            return None
    whole = [axis for axis, _, residue in matches if not residue]
    return tuple(matches) if sorted(whole) == sorted(a.name for a in stage.axes) else None


def _spread(expression: Expression, stage: Stage) -> StageGroup | None:
    operands = reads(stage.value)
    if len(operands) != 1 or not spreads(expression, stage, operands[0]):
        return None
    group = _with_its_sum(expression, expression.stage(operands[0].tensor))
    return group and replace(group, spread=stage)


def _with_its_sum(expression: Expression, stage: Stage, rows: bool = True) -> StageGroup | None:
    if stage.reduce is not None:
        return None
    every = _read_reductions(expression, stage)
    if pieces := [one for one in every if one.scan and stores_backwards(expression, stage, one) is not None]:
        return StageGroup(stage, tuple(pieces)) if len(pieces) == 1 and scans_rows(pieces[0]) else None
    read = [one for one in every if facts.fusible_consumer(expression, one) == stage and _in_place(stage, one)]
    chained = [one for one in read if _read_reductions(expression, one)]
    if rows and any(_along_rows(one) or short_columns(one) or _of_pairs(one) for one in chained):
        return None  # for example, a variance reads the mean: a row is reduced twice
    return StageGroup(stage, (read[0],)) if len(read) == 1 and (not read[0].scan or scans_rows(read[0])) else None


def _in_place(stage: Stage, sums: Stage) -> bool:
    """Whether a scanned axis is the same one of both stages: a lane stores the elements that it scanned."""
    if not sums.scan:
        return True
    place, same = scanned_place(sums), facts.same_places(stage, sums)
    return same is not None and same[place] == stage.axes[place].name


def stores_backwards(expression: Expression, stage: Stage, scan: Stage) -> bool | None:
    """Whether it stores scanned rows, or pieces of rows one after the other, from the last element to the first; None
    if it does not store all of them in order, or if they are results themselves, which lanes do not keep."""
    own, places = [axis.name for axis in stage.axes], facts.reads_of(stage, scan.name)
    stored = scan.name in expression.outputs
    if stored or len(set(places)) != 1 or facts.readers(expression, scan.name) != (stage,):
        return None
    length, pieces, place = scan.axes[scanned_place(scan)].extent, len(scan.axes) > len(own), scanned_place(scan)
    place -= int(pieces)
    if place >= len(own):
        return None
    along, most = iterator(own[place]), stage.axes[place].extent
    for backwards, here in ((False, along), (True, most - 1 - along)):
        at = (here // length, here % length) if pieces else (here,)
        if places[0].indices == (*map(iterator, own[:place]), *at, *map(iterator, own[place + 1 :])):
            return backwards if pieces or length == most else None
    return None


def scanned_place(scan: Stage) -> int:
    """Which of its axes is scanned."""
    return next(n for n, axis in enumerate(scan.axes) if axis.name == scan.scan)


def held_numbers(scan: Stage) -> int:
    """How many elements of a row the lanes of a warp can hold."""
    return _HELD // max(dtype(scan.dtype).bytes, 4)


def scans_rows(scan: Stage) -> bool:
    """Whether it scans rows or columns that it reads in order, and that fit in lanes."""
    fits = 1 < scan.axes[scanned_place(scan)].extent <= held_numbers(scan) or facts.streamed(scan)
    return fits and (reads_rows(scan) or reads_columns(scan))


def reads_columns(scan: Stage) -> bool:
    """Whether it scans another axis than its last, and reads each tensor once, along one dimension of it."""
    own, operands = [axis.name for axis in scan.axes], reads(scan.value)

    def along(read: Read) -> bool:
        steps = [index.step(scan.scan or "") for index in read.indices]
        return all(facts.depends(read, name) for name in own) and sorted(map(abs_or, steps))[-2:] in ([1], [0, 1])

    return (
        scan.scan != own[-1]
        and len({read.tensor for read in operands}) == len(operands) > 0
        and all(map(along, operands))
    )


def abs_or(step: int | None) -> int:
    """The size of a step, and more than any of one that varies."""
    return 1 << 31 if step is None else abs(step)


def reads_rows(scan: Stage) -> bool:
    """Whether it scans its last axis, and reads tensors that are contiguous along it, in either direction."""
    own, operands = [axis.name for axis in scan.axes], reads(scan.value)

    def along(read: Read) -> bool:
        *others, last = [index.step(own[-1]) for index in read.indices]
        return all(facts.depends(read, name) for name in own) and not any(others) and last in (1, -1)

    return (
        len(own) > 1
        and scan.scan == own[-1]
        and len({read.tensor for read in operands}) == len(operands) > 0
        and all(map(along, operands))
    )


def _with_its_rows(expression: Expression, stage: Stage, taken: set[str], once: Set[str]) -> StageGroup | None:
    """Reductions over the rows that the stage reads, as in a softmax: all are read by this stage or by each other."""
    if stage.scan or (stage.reduce is not None and not (_along_rows(stage) or short_columns(stage))):
        return None
    stages: list[Stage] = []
    waiting = _read_reductions(expression, stage, once)
    across = _across(stage, waiting)
    while waiting:
        one = waiting.pop()
        if one in stages or (stage.reduce is None and len(one.axes) == len(stage.axes) and _is_product(one)):
            continue
        readers = facts.readers(expression, one.name)
        own = across or tuple(axis.name for axis in stage.axes[: len(one.axes)])
        rows = [axis.extent for axis in one.axes] == [axis.extent for axis in stage.axes if axis.name in own]
        inside = all(r == stage or r.name in {f.name for f in stages} | {w.name for w in waiting} for r in readers)
        plain = all(
            [facts.plain(i) for i in read.indices]
            == (
                [*own]
                if reader == stage and stage.reduce is None
                else [axis.name for axis in (*reader.axes, *reader.reduced)[: len(one.axes)]]
            )
            for reader in readers
            for read in facts.reads_of(reader, one.name)
        )
        whole = stage.reduce is None or len(one.axes) == len(stage.axes)
        if one.scan or one.name in expression.outputs or one.name in taken or not (rows and inside and plain and whole):
            return None
        if across and (one.reduce is None or not (_along_rows(one) or short_columns(one))):
            return None
        stages.append(one)
        waiting += _read_reductions(expression, one, once)
    order = [one for one in expression.stages if one in stages]
    sums = tuple(one for one in order if one.reduce is not None)
    elements = tuple(one for one in order if one.reduce is None)
    group = StageGroup(stage, sums, rows=True, once=elements, across=across)
    columns = any(map(short_columns, (*sums, stage)))
    return None if not sums or (columns and not kept_tensors(group)) else group


def short_columns(stage: Stage) -> bool:
    """Whether it reduces columns that few threads can keep, of which neighbouring ones lie together.

    The more threads share a column, the fewer neighbouring columns a warp reads: of large tensors it reads whole
    sectors of 32 bytes if as many threads share one as an element has bytes.
    """
    streams = [read for read in reads(stage.value) if len(read.indices) > len(stage.axes)]
    if len(stage.reduced) != 1 or stage.scan or not stage.axes or not streams:
        return False
    along = {facts.plain(read.indices[-1]) for read in streams}
    length, least = stage.reduced[0].extent, min(dtype(read.dtype).bytes for read in streams)
    small = length * prod(stage.shape) <= _SMALL
    return length <= (_COLUMN if small else min(_COLUMN, least * _COLUMN_EACH)) and along == {stage.axes[-1].name}


def _with_its_column(expression: Expression, stage: Stage) -> StageGroup | None:
    """The same for a stage that is not computed with its rows, although it could have been."""
    group = _with_its_sum(expression, stage, rows=False)
    return group if group and any(short_columns(one) and not _along_rows(one) for one in group.sums) else None


def place_of_rows(group: StageGroup) -> int:
    """Which dimension of the tensors that a group reads is reduced: the last, but for columns."""
    rows = len((group.sums[0] if group.rows else group.last).axes)
    one = next((stage for stage in (*group.sums, group.last) if short_columns(stage)), None)
    if not group.rows or one is None or _along_rows(one):
        return rows
    read = next(read for read in reads(one.value) if len(read.indices) > len(one.axes))
    names = [facts.plain(index) for index in read.indices]
    over = one.reduced[0].name
    return names.index(over) if over in names else rows


def kept_tensors(group: StageGroup) -> list[str]:
    """The tensors of which several stages of a row read the same elements, each in the same order."""
    if not group.rows or any(
        len(stage.reduced) != 1 for stage in (*group.sums, group.last) if stage.reduce is not None
    ):
        return []
    rows, place = len(group.sums[0].axes), place_of_rows(group)
    if not rows or len(group.last.axes) > rows + 1 or (group.across and place == rows):
        return []
    readers: dict[str, set[str]] = {}
    elsewhere = {stage.name for stage in group.once}
    for stage in (*group.sums, *group.once, group.last):
        first = group.across if stage == group.last and group.across else [axis.name for axis in stage.axes[:rows]]
        own = [*first, *(axis.name for axis in (*stage.reduced, *stage.axes) if axis.name not in first)]
        own.insert(place, own.pop())
        single = own[rows:] if place == rows and prod(group.sums[0].shape) == 1 else own  # of tensors that are one row
        for read in reads(stage.value):
            same = [facts.plain(index) for index in read.indices] in (own, single) and len(own) == rows + 1
            (readers.setdefault(read.tensor, set()) if same else elsewhere).add(stage.name if same else read.tensor)
    return [tensor for tensor, names in readers.items() if len(names) > 1 and tensor not in elsewhere]


def _across(stage: Stage, sums: Sequence[Stage]) -> tuple[str, ...]:
    """The axes by which a stage reads its reductions, if they are not its first ones."""
    own, names = [axis.name for axis in stage.axes], {one.name for one in sums}
    places = {tuple(facts.plain(i) or "" for i in read.indices) for read in reads(stage.value) if read.tensor in names}
    across = next(iter(places)) if len(places) == 1 and stage.reduce is None else ()
    in_order = [*across] == [name for name in own if name in across]
    return across if in_order and [*across] != own[: len(across)] else ()


def _along_rows(stage: Stage) -> bool:
    """Whether it reduces contiguous elements."""
    over = {axis.name for axis in stage.reduced}
    least = len(stage.axes) if prod(stage.shape) > 1 else 0  # dimensions of what has one element for each result
    several = [read for read in reads(stage.value) if len(read.indices) > least]
    along = [read for read in several if any(index.iterators & over for index in read.indices)]
    return not stage.scan and bool(along) and all(read.indices[-1].iterators & over for read in along)


def _read_reductions(expression: Expression, stage: Stage, also: Set[str] = frozenset()) -> list[Stage]:
    names = {read.tensor for read in reads(stage.value)}
    return [one for one in expression.stages if one.name in names and (one.reduce is not None or one.name in also)]
