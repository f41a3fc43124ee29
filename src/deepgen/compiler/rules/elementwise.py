"""Place-by-Place: threads divide the outer axes of a stage, vectors run along its last.

Every stage can be scheduled this way; for some, other rules do better. Scans run along their axis within a thread's
part.
"""

from __future__ import annotations

from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.reduction import PartialSums, ReductionSplit, place_partial, split_reduction
from deepgen.compiler.rules.tiling import MultiLevelTiling, summed
from deepgen.compiler.rules.values import up_to
from deepgen.compiler.rules.vectors import UNROLLED, along_reduction, in_vectors
from deepgen.compiler.schedule.steps import PARALLEL, SCAN, UNROLL
from deepgen.operators.expr.index import Remainder
from deepgen.operators.expr.nodes import Stage, reads
from deepgen.targets import Cpu
from deepgen.vocabulary import dtype

_MOST_RESIDUES = 8
_PARTS, _RUN = 8, 256  # parts per thread; contiguous elements of the last axis, if the other axes have too few


class PlaceByPlace:
    """The fallback where no other rule does better."""

    name, exclusive, targets = "Place-by-Place", True, (Cpu,)

    def declines(self, draft: Draft, stage: Stage) -> str | None:
        better = [rule.name for rule in (MultiLevelTiling(), ReductionSplit()) if not rule.declines(draft, stage)]
        return f"{better[0]} does it better" if better else None

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        way = draft.branch()
        sums = summed(way, stage)
        if sums is not None:
            _with_sums(way, stage, sums)
        elif stage.scan is not None:
            _scan(way, stage)
        else:
            outer = [axis.name for axis in stage.axes]
            if vectorised := in_vectors(way, stage):
                outer = [*outer[:-1], vectorised[0]]
            elif _by_residues(way, stage):
                outer = outer[:-1]
            else:
                outer = _apart_from_last(way, stage, outer)
            if outer:
                way.annotate(stage.name, PARALLEL, way.fuse(stage.name, outer))
        if stage.name not in way.expression.outputs:
            way.scoped(stage.name, "global")
        way.finish(stage.name)
        return [way]


def _apart_from_last(draft: Draft, stage: Stage, axes: list[str]) -> list[str]:
    """The axes that threads divide, without the last one or without runs of it: if all were fused, each element would
    need a division.

    Compilers also vectorize a loop over strided elements.
    """
    extents = [axis.extent for axis in stage.axes]
    if prod(extents[:-1]) >= _PARTS * draft.target.cores:
        return axes[:-1]
    if extents[-1] < 2 * _RUN:
        return axes
    return [*axes[:-1], draft.split(stage.name, axes[-1], (_RUN,))[0]]


def _by_residues(draft: Draft, stage: Stage) -> bool:
    """An unrolled step for each residue of the last axis, if the residue determines where an element is read from.

    Compilers then recognize interleaved vectors.
    """
    last = stage.axes[-1].name if stage.axes else ""
    atoms = [atom for read in reads(stage.value) for index in read.indices for atom, _ in index.terms]
    strides = {atom.by for atom in atoms if isinstance(atom, Remainder) and facts.plain(atom.of) == last}
    if len(strides) != 1 or max(strides) > _MOST_RESIDUES:
        return False
    *_, residue = draft.split(stage.name, last, (strides.pop(),))
    draft.annotate(stage.name, UNROLL, residue)
    return True


def _with_sums(draft: Draft, stage: Stage, sums: Stage) -> None:
    """Sums that cannot be read as vectors, one by one."""
    axes = [axis.name for axis in stage.axes]
    inner = draft.fuse(stage.name, axes)
    draft.annotate(stage.name, PARALLEL, inner)
    draft.compute_at(sums.name, stage.name, inner, "register")
    draft.finish(sums.name)


def _scan(draft: Draft, stage: Stage) -> None:
    """Only iterations along the scanned axis depend on each other: threads divide the other axes."""
    others = [axis.name for axis in stage.axes if axis.name != stage.scan]
    assert stage.scan is not None
    last = stage.axes[-1].name
    if vectorised := in_vectors(draft, stage):
        others = [*(name for name in others if name != last), vectorised[0]]
    elif others:
        others = _together(draft, stage, others, stage.scan)
    else:
        _in_steps(draft, stage, stage.scan)
    if others:
        draft.annotate(stage.name, PARALLEL, draft.fuse(stage.name, others))


def _together(draft: Draft, stage: Stage, others: list[str], scan: str) -> list[str]:
    """Several interleaved scans, each of which waits only for its own last sum; in vectors if elements are
    contiguous."""
    extent = draft.extents[stage.name][others[-1]]
    values = up_to(UNROLLED, extent if isinstance(extent, int) else 1)
    together = draft.knob(draft.free_name(stage.name, f"{others[-1]}_1"), values, values[-1])
    outer, inner = draft.split(stage.name, others[-1], (together,))
    iterations = _in_steps(draft, stage, scan)
    draft.reorder(stage.name, [*others[:-1], outer, iterations[0], inner, *iterations[1:]])
    draft.annotate(stage.name, UNROLL, inner)
    return [*others[:-1], outer]


def _in_steps(draft: Draft, stage: Stage, scan: str) -> list[str]:
    """The loops along a scan: if elements are contiguous, vectors are scanned, and the carried value is added."""
    of = dtype(draft.expression.dtype_of(stage.name))
    lanes = draft.target.vector_bytes // (of.bytes if of.integer else max(of.bytes, 4))  # small floats are widened
    if scan != stage.axes[-1].name or lanes == 1 or stage.axes[-1].extent < 2 * lanes:
        return [scan]
    loops = draft.split(stage.name, scan, (lanes,))
    draft.annotate(stage.name, SCAN, loops[-1])
    return loops


class RowFusion:
    name, exclusive, targets = "Row-Fusion", True, (Cpu,)

    def declines(self, draft: Draft, stage: Stage) -> str | None:
        return None if _rows(draft, stage) else "it needs no reductions along its own rows"

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        way = draft.branch("rows")
        rows, before = _rows(way, stage), _before(way, stage)
        partial: dict[str, PartialSums] = {}
        for one in before:
            if one.reduce is not None and along_reduction(way.expression, one, way.lanes(one.name)):
                partial[one.name] = split_reduction(way, one)
        row = _arrange(way, stage, rows, together=not partial)
        for one in reversed(before):
            _place(way, one.name, stage, row, partial.get(one.name))
        way.finish(stage.name)
        if stage.name not in way.expression.outputs:
            way.scoped(stage.name, "global")
        return [way]


def _arrange(draft: Draft, stage: Stage, rows: list[str], *, together: bool) -> str:
    """The loop over rows, or, if `together`, over groups of as many contiguous rows as vectors hold."""
    inner, last = [axis.name for axis in stage.axes if axis.name not in rows], stage.axes[-1].name
    vectorised = in_vectors(draft, stage) if together or last not in rows else []
    if vectorised and last in rows:
        rows, inner = [*(row for row in rows if row != last), vectorised[0]], [*inner, *vectorised[1:]]
    elif vectorised:
        inner = [*(axis for axis in inner if axis != last), *vectorised]
    draft.reorder(stage.name, [*rows, *inner])
    row = draft.fuse(stage.name, rows)
    draft.annotate(stage.name, PARALLEL, row)
    return row


def _place(draft: Draft, name: str, consumer: Stage, row: str, partial: PartialSums | None) -> None:
    if partial is not None:
        place_partial(draft, partial, consumer.name, row, None)
        return
    draft.compute_at(name, consumer.name, row)
    in_vectors(draft, draft.stage(name))
    draft.finish(name)


def _before(draft: Draft, stage: Stage) -> list[Stage]:
    """The stages that are read only by this one and by other such stages, in order."""
    needed = {stage.name}
    for one in reversed(draft.expression.stages):
        read_by = {reader.name for reader in facts.readers(draft.expression, one.name)}
        open_ = one.name not in draft.expression.outputs and one.name not in draft.done and one.scan is None
        if open_ and read_by and read_by <= needed:
            needed.add(one.name)
    return [one for one in draft.expression.stages if one.name in needed and one.name != stage.name]


def _rows(draft: Draft, stage: Stage) -> list[str]:
    """The axes along which every preceding sum has one result per element; none if the stage has no such rows.

    What the sums read must belong to one row: a matrix that all rows are multiplied with is reused between rows.
    """
    if stage.reduce is not None or stage.scan is not None:
        return []
    before = _before(draft, stage)
    sums = [one for one in before if one.reduce is not None]
    if not sums or (len(sums) == 1 and summed(draft, stage) is not None):
        return []
    places = _places(draft, stage, before)
    shared = [axis.name for axis in stage.axes if all(axis.name in places[one.name].values() for one in sums)]
    for one in sums:
        along = [axis for axis, place in places[one.name].items() if place in shared]
        if not all(facts.depends(read, axis) for read in reads(one.value) for axis in along):
            return []
    return shared


def _places(draft: Draft, stage: Stage, before: list[Stage]) -> dict[str, dict[str, str]]:
    """For each preceding stage, the axes that correspond to axes of the last stage, through all its readers."""
    places = {stage.name: {axis.name: axis.name for axis in stage.axes}}
    for one in reversed(before):
        asked: list[set[str | None]] = [set() for _ in one.axes]
        for reader in facts.readers(draft.expression, one.name):
            for read in facts.reads_of(reader, one.name):
                for place, index in enumerate(read.indices):
                    asked[place].add(places[reader.name].get(facts.plain(index) or ""))
        mapped = {axis.name: next(iter(names)) for axis, names in zip(one.axes, asked, strict=True) if len(names) == 1}
        places[one.name] = {axis: name for axis, name in mapped.items() if name is not None}
    return places
