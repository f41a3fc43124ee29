"""Rows: the threads of a block reduce a row together, and each has its columns of what is stored."""

from __future__ import annotations

from deepgen.compiler.rules.gpu.groups import Group
from deepgen.compiler.rules.gpu.plan import WIDEST, Plan, powers, product_of
from deepgen.compiler.rules.numbers import Extent
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Stage
from deepgen.vocabulary.dtypes import dtype

_MOST_THREADS = 1024


def by_rows(plan: Plan, group: Group) -> None:
    out = group.last
    plan.names.append("rows")
    reductions = group.sums or (out,)
    longest = max(_extent(stage) for stage in reductions)
    team = plan.knob("team", powers(min(_MOST_THREADS, longest), 2), _usual_team(longest))
    beside = plan.knob("rows", [n for n in (1, 2, 4, 8, 16) if n <= _rows(out, group)], 1)
    each = plan.knob("each", (1, 2, 4, 8), max(1, WIDEST // max(dtype(out.dtype).bytes, 2)))
    plan.require(product_of(team, beside) <= plan.gpu.threads_per_block, "threads of a block")
    plan.derive("threads", product_of(team, beside))
    own = [a.name for a in out.axes]
    rows = own if not group.rows else own[: len(group.sums[0].axes)]
    if not rows:
        if out.reduce is not None:
            _shared_out(plan, out, team, each)
        return
    columns = own[len(rows) :]
    whole = plan.fuse(out.name, rows)
    block, by_y = plan.split(out.name, whole, beside)
    plan.bind(out.name, "block.x", block)
    plan.bind(out.name, "thread.y", by_y)
    if columns:
        _, by_x, run = plan.split(out.name, plan.fuse(out.name, columns), team, each)
        plan.bind(out.name, "thread.x", by_x)
        plan.bind(out.name, "vector", run)
    if out.reduce is not None:
        _shared_out(plan, out, team, each)
    for stage in reversed(group.sums):
        plan.step(s.SetScope(stage.name, "register"), s.ComputeAt(stage.name, out.name, by_y))
        _shared_out(plan, stage, team, each)


def serves(group: Group) -> bool:
    """Whether there are reductions for threads to share, and rows to start from."""
    reductions = group.sums or (group.last,)
    plain = all(stage.reduce is not None and not stage.scan and stage.reduced for stage in reductions)
    return plain and (group.last.reduce is None or not group.sums) and len(group.last.axes) > 0


def _shared_out(plan: Plan, stage: Stage, team: Extent, each: Extent) -> None:
    """The loops of a reduction: each thread takes neighbours, then all take the next ones."""
    whole = plan.fuse(stage.name, [a.name for a in stage.reduced])
    _, by_x, run = plan.split(stage.name, whole, team, each)
    plan.bind(stage.name, "thread.x", by_x)
    plan.bind(stage.name, "vector", run)


def _extent(stage: Stage) -> int:
    total = 1
    for axis in stage.reduced:
        total *= axis.extent
    return total


def _rows(out: Stage, group: Group) -> int:
    total = 1
    for axis in out.axes[: len(group.sums[0].axes) if group.rows else None]:
        total *= axis.extent
    return total


def _usual_team(longest: int) -> int:
    """Threads with about two loads of 16 bytes each."""
    return min(256, max(32, 1 << max(0, (longest // 16).bit_length() - 1)))
