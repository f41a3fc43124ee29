"""Stores of results through shared memory: lanes write their elements there, and then all threads store runs of 16
bytes."""

from __future__ import annotations

from math import prod

from deepgen.compiler.intrinsics.matrix import LINE_BYTES
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.contraction import MatrixContraction
from deepgen.compiler.rules.gpu.groups import place_in
from deepgen.compiler.rules.gpu.operands import Flat
from deepgen.compiler.rules.gpu.plan import WIDEST, Plan
from deepgen.compiler.rules.template import Extent, divided, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Stage, reads
from deepgen.vocabulary import dtype

SPARE = 4096  # bytes of shared memory for alignment
_BANKS = 16  # bytes of padding between rows that lanes write


def in_runs(
    plan: Plan, c: MatrixContraction, out: Stage, staged: Stage, block: dict[str, Extent], threads_y: Extent
) -> None:
    """The loops that store from shared memory, and the layout there.

    If the results have strides between them, a block also stores the elements in between or, if residues are separate
    axes, only one of these.
    """
    axis_of, name = facts.places_in(staged, c.stage), out.name
    placed = place_in(out, reads(out.value)[0])
    assert placed is not None, "it stores what it reads"
    at = dict(zip((a.name for a in staged.axes), placed, strict=True))
    part_of = {at[axis_of[a]][0]: part for a, part in block.items()}
    stride_of = {axis: by for axis, by, _ in placed}
    apart = {axis for axis, _, residue in placed if residue}
    last = out.axes[-1]
    width = min(WIDEST // dtype(out.dtype).bytes, last.extent & -last.extent)
    run = times([part_of.get(last.name, 1), stride_of[last.name]])
    plan.require(divided(run, width), f"rows of {name} in shared memory are whole runs")
    level: dict[str, list[str]] = {}
    for a in out.axes:
        if a.name in part_of:
            by = stride_of[a.name]
            level[a.name] = plan.split(name, a.name, (part_of[a.name], *([by] if by > 1 else [])))
    blocks = [level[axis][2] if residue else axis for axis, _, residue in (at[axis_of[a.name]] for a in c.both)]
    blocks += [level[at[axis_of[a.name]][0]][0] for a in (*c.rows, *c.columns)]
    inner = [loop for a in out.axes if a.name in level for loop in level[a.name][1 : 2 if a.name in apart else 3]]
    plan.step(s.Reorder(name, (*blocks, *inner)))
    _bound(plan, name, staged, blocks, inner, threads_y, c.intrinsic.lanes, width)
    axes = [a.name for a in staged.axes]
    _placed(plan, staged, axes.index(axis_of[c.columns[-1].name]), len(axes), block)


def flat_in_runs(
    plan: Plan, c: MatrixContraction, out: Stage, staged: Stage, block: dict[str, Extent], threads_y: Extent, flat: Flat
) -> None:
    """The same if several stored axes are fused into one axis of rows: they are one loop."""
    name, order = out.name, [a.name for a in out.axes]
    column = next(a for a in order if a not in flat.rows)
    last = order[-1] == column
    run = out.axes[-1].extent if last else prod(a.extent for a in out.axes[order.index(column) + 1 :])
    width = min(WIDEST // dtype(out.dtype).bytes, run & -run)
    plan.step(s.Reorder(name, (*flat.rows, column)))
    rows = plan.fuse(name, flat.rows)
    level = {rows: plan.split(name, rows, (block[c.rows[0].name],))}
    level[column] = plan.split(name, column, (block[c.columns[0].name],))
    inner = [level[loop][1] for loop in ((rows, column) if last else (column, rows))]
    blocks = [level[rows][0], level[column][0]]
    plan.step(s.Reorder(name, (*blocks, *inner)))
    _bound(plan, name, staged, blocks, inner, threads_y, c.intrinsic.lanes, width)
    if not last:
        plan.step(s.Layout(staged.name, s.whole(1, 0)))
    _placed(plan, staged, 1 if last else 0, 2, block)


def _bound(
    plan: Plan, name: str, staged: Stage, blocks: list[str], inner: list[str], threads_y: Extent, lanes: int, width: int
) -> None:
    """Divides what is stored among blocks and threads, and places the computation of the stage in shared memory."""
    whole = plan.fuse(name, blocks)
    plan.annotate(name, "block.x", whole)
    plan.deal(name, inner, ("thread.y", threads_y), ("thread.x", lanes), ("vector", width))
    plan.step(s.ComputeAt(staged.name, name, whole))


def _placed(plan: Plan, staged: Stage, column: int, dimensions: int, block: dict[str, Extent]) -> None:
    """Lanes hold eight rows and four pairs of columns: these must fall on different banks."""
    size = dtype(staged.dtype).bytes
    if column == dimensions - 1:
        plan.step(s.StorageAlign(staged.name, dimensions - 2, LINE_BYTES // size, _BANKS // size))
    else:
        plan.step(s.StorageAlign(staged.name, column, LINE_BYTES // 2 // size, _BANKS // size))
    # Alignment adds at most half of a short line.
    bytes_ = times([size, *block.values(), 3])
    plan.require(bytes_ <= 2 * (plan.target.shared_per_block - SPARE), f"{staged.name} fits in shared memory")
