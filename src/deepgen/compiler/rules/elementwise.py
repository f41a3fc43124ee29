"""Place-by-Place: threads divide the outer axes of a stage, vectors lie along its last.

Every stage can be scheduled so; other rules know better for some. Scans run along their axis inside of a thread's part.
"""

from __future__ import annotations

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.candidates import up_to
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.loops import UNROLLED, in_vectors
from deepgen.compiler.rules.reduction import ReductionSplit
from deepgen.compiler.rules.tiling import MultiLevelTiling, summed
from deepgen.compiler.schedule.steps import PARALLEL, SCAN, UNROLL
from deepgen.operators.expr.index import Remainder
from deepgen.operators.expr.nodes import Stage, reads
from deepgen.vocabulary import dtype

_MOST_RESIDUES = 8


class PlaceByPlace:
    name, exclusive = "Place-by-Place", True

    def applies(self, draft: Draft, stage: Stage) -> bool:
        """Where no other rule knows better."""
        return not MultiLevelTiling().applies(draft, stage) and not ReductionSplit().applies(draft, stage)

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
            if outer:
                way.annotate(stage.name, PARALLEL, way.fuse(stage.name, outer))
        if stage.name not in way.expression.outputs:
            way.scoped(stage.name, "global")
        way.finish(stage.name)
        return [way]


def _by_residues(draft: Draft, stage: Stage) -> bool:
    """A step for each residue of the last axis, written out, where that tells from where an element is read.

    Compilers then find the vectors that are interleaved.
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
    """Sums that cannot be read in vectors, one by one."""
    axes = [axis.name for axis in stage.axes]
    inner = draft.fuse(stage.name, axes)
    draft.annotate(stage.name, PARALLEL, inner)
    draft.compute_at(sums.name, stage.name, inner, "register")
    draft.finish(sums.name)


def _scan(draft: Draft, stage: Stage) -> None:
    """Along other axes than the scanned one turns do not wait for each other: threads divide the first of these."""
    others = [axis.name for axis in stage.axes if axis.name != stage.scan]
    assert stage.scan is not None
    last = stage.axes[-1].name
    if vectorised := in_vectors(draft, stage):
        others = [*(name for name in others if name != last), vectorised[0]]
    elif others:
        others = _together(draft, stage, others, stage.scan)
    if others:
        draft.annotate(stage.name, PARALLEL, draft.fuse(stage.name, others))


def _together(draft: Draft, stage: Stage, others: list[str], scan: str) -> list[str]:
    """Several scans turn by turn, each of which waits for its own last sum only; in vectors where elements lie so."""
    extent = draft.extents[stage.name][others[-1]]
    values = up_to(UNROLLED, extent if isinstance(extent, int) else 1)
    together = draft.knob(draft.free_name(stage.name, f"{others[-1]}_1"), values, values[-1])
    outer, inner = draft.split(stage.name, others[-1], (together,))
    turns, of = [scan], dtype(draft.expression.dtype_of(stage.name))
    lanes = draft.target.vector_bytes // (of.bytes if of.integer else max(of.bytes, 4))  # small floats are widened
    if scan == stage.axes[-1].name and lanes > 1 and stage.axes[-1].extent >= 2 * lanes:
        turns = draft.split(stage.name, scan, (lanes,))
        draft.annotate(stage.name, SCAN, turns[-1])
    draft.reorder(stage.name, [*others[:-1], outer, turns[0], inner, *turns[1:]])
    draft.annotate(stage.name, UNROLL, inner)
    return [*others[:-1], outer]
