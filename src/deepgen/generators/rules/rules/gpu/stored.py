"""Results on their way to memory: lanes put what they have in shared memory, and all threads store runs of 16 bytes."""

from __future__ import annotations

from math import prod

from deepgen.generators.rules.rules import facts
from deepgen.generators.rules.rules.gpu.contraction import Contraction
from deepgen.generators.rules.rules.gpu.flat import LINE, Flat
from deepgen.generators.rules.rules.gpu.plan import WIDEST, Plan, product_of
from deepgen.generators.rules.rules.numbers import Extent
from deepgen.generators.rules.schedule import steps as s
from deepgen.operators.expr.nodes import Stage
from deepgen.space import divides
from deepgen.vocabulary.dtypes import dtype

SPARE = 4096  # bytes of shared memory for alignment
_BANKS = 8  # elements of two bytes by which rows that lanes write are apart


def axes_of(out: Stage, c: Contraction) -> dict[str, str]:
    """The axes of what is stored, by those of the sums."""
    same = facts.same_places(out, c.stage)
    assert same is not None, "what is stored has the places of the sums"
    return dict(zip((a.name for a in c.stage.axes), same, strict=True))


def in_runs(
    plan: Plan,
    c: Contraction,
    out: Stage,
    staged: Stage,
    block: dict[str, Extent],
    threads_y: Extent,
    flat: Flat | None,
) -> None:
    """The loops of what is stored from shared memory, and its place there."""
    name, axis_of = out.name, axes_of(staged, c)
    part = {axis_of[a]: size for a, size in block.items()}
    order, run = [a.name for a in out.axes], out.axes[-1].extent
    if flat:
        column = next(a for a in order if a not in flat.rows)
        plan.step(s.Reorder(name, (*flat.rows, column)))
        rows = plan.fuse(name, flat.rows)
        part = {rows: block[c.rows[0].name], column: part[column]}
        if order[-1] != column:
            run = prod(a.extent for a in out.axes[order.index(column) + 1 :])
        order = [rows, column] if order[-1] == column else [column, rows]
    width = min(WIDEST // dtype(out.dtype).bytes, run & -run)
    last = part.get(order[-1], 1)
    plan.require(divides(width, last) if not isinstance(last, int) else last % width == 0,
                 f"rows of {name} in shared memory are whole runs")  # fmt: skip
    level = {loop: plan.split(name, loop, size) for loop, size in part.items()}
    blocks = [loop for loop in order if loop not in part] + [level[loop][0] for loop in part]
    inside = [level[loop][1] for loop in order if loop in part]
    plan.step(s.Reorder(name, (*blocks, *inside)))
    whole = plan.fuse(name, blocks)
    _, by_y, by_x, by_run = plan.split(name, plan.fuse(name, inside), threads_y, 32, width)
    plan.bind(name, "block.x", whole)
    plan.bind(name, "thread.y", by_y)
    plan.bind(name, "thread.x", by_x)
    plan.bind(name, "vector", by_run)
    plan.step(s.ComputeAt(staged.name, name, whole))
    # Lanes hold eight rows and four pairs of columns: these lie on different banks.
    places = [a.name for a in staged.axes]
    column_at = places.index(axis_of[c.columns[-1].name])
    if flat and order[-1] != column:
        plan.step(s.Layout(staged.name, ("1", "0")))
        column_at = 0
    if column_at == len(places) - 1:
        plan.step(s.StorageAlign(staged.name, len(places) - 2, LINE, _BANKS))
    else:
        plan.step(s.StorageAlign(staged.name, column_at, LINE // 2, _BANKS))
    # With what the alignment adds, at most half of a short line.
    bytes_ = product_of(dtype(out.dtype).bytes, *block.values(), 3)
    plan.require(bytes_ <= 2 * (plan.gpu.shared_per_block - SPARE), f"{name} fits in shared memory")
