"""Windows: sums over the taps of a filter alone, as in a depthwise convolution, with all operands in registers.

Neighbouring results read mostly the same elements: a thread loads the window of a few results once, in runs of up to 16
bytes, and its filter. Other threads' loads of these elements hit the L1 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from math import gcd, prod

from deepgen.compiler.passes.simplify import all_of
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu import threads
from deepgen.compiler.rules.gpu.groups import with_operands
from deepgen.compiler.rules.gpu.plan import WIDEST, Plan, powers
from deepgen.compiler.rules.template import Extent, plus, span, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.index import Index, Quotient, Remainder, iterator
from deepgen.operators.expr.nodes import Axis, Expression, Logic, Read, Select, Stage, reads, substituted, with_reads
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_MOST_TAPS = 49
_MOST_HELD = 176  # elements held by a thread
_USUAL_THREADS = 256
_USUAL_ROWS, _PAIR = 4, 2  # results of a thread along the outermost axis that taps shift, and along others
_MOST_ROWS = 8  # if it has few others: each row of a window is read by as many rows of results as the filter has
_BUSY = 1024  # threads of a multiprocessor that hide its loads
_BEYOND = 8  # the share of results beyond the end that a thread may compute


def why_not(sums: Stage) -> str | None:
    """None if it sums over taps alone: each shifts a read along an axis of the results."""
    taps = {a.name for a in sums.reduced if a.extent > 1}
    if sums.reduce != "sum" or not taps or not facts.shareable(sums):
        return "it is not a sum whose neighbours read the same elements"
    moving = {tap for read in facts.operands(sums) for i in read.indices for tap in _moved(sums, i.iterators) & taps}
    if moving != taps:
        return "it sums over more than the taps of a filter"
    return None if prod(a.extent for a in sums.reduced) <= _MOST_TAPS else f"there are more than {_MOST_TAPS} taps"


def _moved(sums: Stage, iterators: Set[str]) -> Set[str]:
    """The iterators of an index, if one of them is an axis of the results."""
    return iterators if iterators & {a.name for a in sums.axes} else frozenset()


def in_runs(expression: Expression, padded: Set[str]) -> Expression:
    """The expression with padded copies of tensors divided into runs that are aligned with loads from these tensors.

    The innermost dimension of such a stage is divided into runs that start at multiples of the run length in the
    tensor.
    """
    stages = {stage.name: stage for stage in expression.stages}
    for name in sorted(padded):
        in_parts = _divided(expression, stages[name])
        if in_parts is None or any(why_not(reader) for reader in facts.readers(expression, name)):
            continue
        divided, shift, run = in_parts

        def place(read: Read, name: str = name, shift: int = shift, run: int = run) -> Read:
            if read.tensor != name:
                return read
            at = read.indices[-1] + shift
            return replace(read, indices=(*read.indices[:-1], at // run, at % run))

        stages = {n: replace(stage, value=with_reads(stage.value, place)) for n, stage in stages.items()}
        stages[name] = divided
    return replace(expression, stages=tuple(stages.values()))


def _divided(expression: Expression, padded: Stage) -> tuple[Stage, int, int] | None:
    """The stage with its last dimension divided into runs, the shift of its elements, and the run length."""
    value, last = padded.value, padded.axes[-1]
    if not isinstance(value, Select) or not isinstance(value.then, Read) or not padded.axes:
        return None
    source, at = expression.shape_of(value.then.tensor), value.then.indices[-1]
    run = gcd(source[-1], WIDEST // dtype(padded.dtype).bytes)
    if at - at.constant != iterator(last.name) or run == 1:
        return None
    if all(facts.plain(r.indices[-1]) for s_ in expression.stages for r in facts.reads_of(s_, padded.name)):
        return None
    shift = at.constant % run
    runs, inside = f"{last.name}_run", f"{last.name}_in"
    by = {last.name: iterator(runs) * run + iterator(inside) - shift}
    there = at.substitute(by)
    moved = substituted(value, by)
    assert isinstance(moved, Select)
    bounded = Logic("and", moved.condition, all_of([there, source[-1] - 1 - there]))
    axes = (*padded.axes[:-1], Axis(runs, -(-(last.extent + shift) // run)), Axis(inside, run))
    return replace(padded, axes=axes, value=replace(moved, condition=bounded)), shift, run


def _window(tensor: str) -> str:
    return f"{tensor}.window"


class Windows:
    name, exclusive, targets = "Windows", True, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        sums = plan.part.reduction
        return "it has no reduction of its own" if sums is None else why_not(sums)

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(by_window)


def by_window(plan: Plan) -> None:
    """The steps of a launch. Operands that are stages are computed in registers."""
    whole_sums, kept = plan.part.reduction, plan.form.kept
    assert whole_sums is not None
    name = plan.added_up(whole_sums, "register")
    copied = (read.tensor for read in facts.operands(whole_sums) if read.tensor not in kept)
    plan.restructure(*(s.CacheRead(tensor, _window(tensor), "register", (name,)) for tensor in copied))
    out, sums = plan.stage(plan.part.last.name), with_operands(plan.stage(name), whole_sums)
    plan.names += ("window",)
    axis_of = facts.places_in(out, sums)
    moved = {axis_of[a.name] for a in sums.axes if any(len(i.iterators) > 1 and a.name in i.iterators
             for read in facts.operands(sums) for i in read.indices)}  # fmt: skip
    taps_of = {a.name for a in sums.reduced if a.extent > 1}
    shared = {axis_of[a.name] for a in sums.axes if any(i.iterators & taps_of and a.name in i.iterators
              for read in facts.operands(sums) for i in read.indices)}  # fmt: skip

    def held(each: Mapping[str, Extent]) -> Extent:
        """The elements that a thread with so many results along each axis has in registers."""
        extents: dict[str, Extent] = {a.name: each.get(axis_of[a.name], 1) for a in sums.axes}
        extents |= {a.name: a.extent for a in sums.reduced}
        windows = (times(span(i, extents) for i in _undivided(read)) for read in facts.operands(sums))
        return plus([times(each.values()), *windows])

    by_threads, inner = _sizes(plan, out, moved, shared, held)
    whole = times(by_threads.values())
    plan.require(whole <= plan.target.threads_per_block, "threads of a block")
    plan.derive("threads", whole)
    loop = threads.result(plan, out, by_threads, inner)
    plan.step(s.SetScope(sums.name, "register"), s.ComputeAt(sums.name, out.name, loop))
    own, taps = [a.name for a in sums.axes], [a.name for a in sums.reduced]
    plan.step(s.Reorder(sums.name, (*taps, *own)))
    plan.annotate(sums.name, "unroll", *taps, *own[:-1])
    plan.annotate(sums.name, "vector", own[-1])
    for read in facts.operands(sums):
        if read.tensor in kept:
            name, axes = read.tensor, [a.name for a in plan.base.stage(read.tensor).axes]
            plan.step(s.SetScope(name, "register"))
        else:
            name, axes = _window(read.tensor), [f"a{n}" for n in range(len(read.indices))]
        plan.step(s.ComputeAt(name, out.name, loop))
        plan.annotate(name, "unroll", *axes[:-1])
        plan.annotate(name, "vector", axes[-1])
    plan.require(held(inner) <= _MOST_HELD, "windows, filters and sums fit in a thread's registers")
    plan.derive("held", held(inner))


_MOST_ROW = 32 << 10  # bytes of a row in shared memory: several blocks have room for one


def summed_rows(expression: Expression, gpu: Gpu) -> frozenset[str]:
    """The stages that reduce along other axes than the last, and whose rows are then only reduced in windows along
    it: sums over the windows of an image, taken apart."""
    names: set[str] = set()
    for sums in expression.stages:
        read = sums.value
        if sums.reduce is None or sums.scan or not isinstance(read, Read) or len(sums.axes) < 2:
            continue
        rows = next((stage for stage in expression.stages if stage.name == read.tensor), None)
        if rows is None or rows.reduce is None or rows.scan or rows.name in expression.outputs:
            continue
        *others, last = sums.axes
        within = {last.name, *(axis.name for axis in sums.reduced)}
        together = [facts.plain(i) for i in read.indices[:-1]] == [axis.name for axis in others]
        beside = all(r.indices and facts.plain(r.indices[-1]) == rows.axes[-1].name for r in reads(rows.value))
        fits = rows.axes[-1].extent * dtype(rows.dtype).bytes <= _MOST_ROW
        many = prod(axis.extent for axis in others) >= gpu.multiprocessors
        alone = facts.readers(expression, rows.name) == (sums,)
        if together and read.indices[-1].iterators == within and beside and fits and many and alone:
            names.add(rows.name)
    return frozenset(names)


class RowWindows:
    """A block reduces rows of an image to one, keeps it in shared memory, and reduces that in windows."""

    name, exclusive, targets = "Row-Windows", True, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        sums, last = plan.part.reduction, plan.part.last
        if sums is None or not plan.reads_kept:
            return "it reduces no rows of sums"
        own = tuple(axis.name for axis in last.axes)
        return None if sums == last or facts.same_places(last, sums) == own else "it is stored in another order"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(by_row_windows)


def by_row_windows(plan: Plan) -> None:
    whole_sums = plan.part.reduction
    assert whole_sums is not None
    (kept,) = plan.form.kept & {read.tensor for read in reads(whole_sums.value)}
    name, own = plan.added_up(whole_sums, "register"), f"{kept}.own"
    plan.restructure(s.CacheWrite(kept, own, "register"))
    plan.names += ("row_windows",)
    out, rows, first = plan.stage(plan.part.last.name), plan.stage(kept), plan.stage(own)
    length, size = rows.axes[-1].extent, dtype(rows.dtype).bytes
    threads = plan.knob("team", powers(512, 32), min(_USUAL_THREADS, max(32, 1 << (length // 4).bit_length() - 1)))
    *others, last = [axis.name for axis in out.axes]
    block = plan.fuse(out.name, others)
    plan.annotate(out.name, "block.x", block)
    _, lanes = plan.split(out.name, last, (threads,))
    plan.annotate(out.name, "thread.x", lanes)
    plan.step(s.SetScope(name, "register"), s.ComputeAt(name, out.name, lanes))
    plan.step(s.Reorder(name, (*(a.name for a in whole_sums.reduced), *(a.name for a in whole_sums.axes))))
    plan.step(s.SetScope(kept, "shared"), s.ComputeAt(kept, out.name, block))
    each = plan.knob("each", [n for n in powers(WIDEST // size) if length % n == 0], WIDEST // size)
    _, lanes, _ = plan.deal(kept, [rows.axes[-1].name], ("thread.x", threads), ("vector", each))
    plan.step(s.ComputeAt(own, kept, lanes))
    taps = [axis.name for axis in first.reduced]
    plan.step(s.Reorder(own, (*taps, *(axis.name for axis in first.axes))))
    if prod(axis.extent for axis in first.reduced) <= _MOST_TAPS:
        plan.annotate(own, "unroll", *taps)
    plan.annotate(own, "vector", first.axes[-1].name)
    plan.derive("threads", threads)
    plan.derive("shared_bytes", length * size)


def _undivided(read: Read) -> Iterator[Index]:
    """The indices of a read without the division into runs: unused elements of a run need no register."""
    for i in read.indices:
        atoms = [atom for atom, _ in i.terms]
        if isinstance(atoms[0] if atoms else None, Remainder):
            continue
        yield atoms[0].of if atoms and isinstance(atoms[0], Quotient) else i


def _sizes(
    plan: Plan,
    out: Stage,
    moved: Set[str],
    shared: Set[str],
    held: Callable[[Mapping[str, Extent]], Extent],
) -> tuple[dict[str, Extent], dict[str, Extent]]:
    """For each axis, how many threads share a block's part of it, and how many elements each of them has. Neighbours
    along `shared` axes read the same elements."""
    by_threads: dict[str, Extent] = {}
    inner: dict[str, Extent] = {}
    usually: dict[str, int] = {}
    run, room, first = WIDEST // dtype(out.dtype).bytes, _USUAL_THREADS, True
    rows, columns = next((a.name for a in out.axes if a.name in moved), ""), 1
    # So many results of a thread leave enough threads for the chip.
    enough = prod(a.extent for a in out.axes) // (plan.target.multiprocessors * _BUSY)
    for axis in reversed(out.axes):
        several = [n for n in powers(8) if n <= axis.extent] if first or axis.name in moved else [1]
        wanted = (run if axis.name in moved else _PAIR) if first else _PAIR
        if axis.name == rows and not first:
            wanted = _USUAL_ROWS
        each = max((n for n in several if n <= wanted and axis.extent % n == 0), default=1)
        if columns <= _PAIR:
            wanted = _MOST_ROWS
        some = [n for n in several if n <= wanted and n * columns <= enough and _fits(axis.extent, n)]
        overhanging = [n for n in some if held({**usually, axis.name: n}) <= _MOST_HELD]
        if first and axis.name in shared and each == 1 and _PAIR in overhanging:
            each = _PAIR  # of single elements: more columns would tear neighbours' loads apart
        elif axis.name == rows and axis.name in shared and not first:
            each = max([each, *overhanging])
        columns *= each
        usually[axis.name] = each
        inner[axis.name] = plan.knob(f"{axis.name}_each", several, each)
        covering = -(-axis.extent // each)
        usual = covering if covering <= room else 1 << room.bit_length() - 1
        if axis.name in moved:  # evenly divided among blocks
            usual = -(-covering // -(-covering // room))
        room //= usual
        several = sorted({*powers(min(axis.extent, 256 if first else 32)), usual})
        by_threads[axis.name] = plan.knob(f"{axis.name}_threads", several, usual)
        first = False
    return by_threads, inner


def _fits(extent: int, each: int) -> bool:
    """Whether few of a last thread's elements lie beyond the end."""
    return -(-extent // each) * each - extent <= extent // _BEYOND
