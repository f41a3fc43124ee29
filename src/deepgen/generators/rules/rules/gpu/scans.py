"""Scans of rows: a block copies some rows to shared memory, a thread scans each, and all store what came of it.

A thread loads runs of 16 bytes of its row at once: one by one, it would wait for each element.
"""

from __future__ import annotations

from math import prod

from deepgen.generators.rules.rules.gpu.groups import Group
from deepgen.generators.rules.rules.gpu.plan import WIDEST, Plan, powers, product_of, total_of
from deepgen.generators.rules.rules.numbers import Extent
from deepgen.generators.rules.schedule import steps as s
from deepgen.operators.expr.nodes import Read, Stage, reads
from deepgen.vocabulary.dtypes import dtype

_MANY = 64  # rows: fewer are all of a tensor in any case


def copies(scan: Stage, reader: str) -> tuple[s.Step, ...]:
    found = reads(scan.value)
    shared = tuple(s.CacheRead(r.tensor, _copy(r), "shared", (reader,)) for r in found)
    runs = tuple(s.CacheRead(_copy(r), _run(r), "register", (reader,)) for r in found if in_runs(scan, r))
    return (*shared, *runs)


def in_runs(scan: Stage, read: Read) -> bool:
    return scan.axes[-1].extent % (WIDEST // dtype(read.dtype).bytes) == 0


def by_rows_of_scans(plan: Plan, group: Group, scan: Stage, operands: tuple[Read, ...]) -> None:
    """`group.last` stores what `scan` gives; `operands` are what it read before these were copied."""
    out, length = group.last, scan.axes[-1].extent
    plan.names.append("scan_rows")
    count = prod(axis.extent for axis in scan.axes[:-1])
    rows = plan.knob("rows", [n for n in powers(256) if n < 2 * count], 64)
    threads = plan.knob("team", powers(256, 32), 128)
    plan.require(rows <= threads, "a thread for each row")
    loops = [axis.name for axis in out.axes]
    block, row = plan.split(out.name, plan.fuse(out.name, loops[:-1]), rows)
    # Few neighbours each: lanes then read words that lie on different banks.
    width = plan.knob("each", powers(WIDEST // dtype(out.dtype).bytes), 2)
    held: Extent = rows
    if count >= _MANY:
        # Turns that reach beyond the rows of a block would count some of all rows as its own.
        whole, turn = product_of(rows, length), product_of(threads, width)
        plan.require(whole % turn == 0, "threads divide the rows of a block evenly")
    else:
        held = count
    _, by_thread, run = plan.split(out.name, plan.fuse(out.name, [row, loops[-1]]), threads, width)
    plan.bind(out.name, "block.x", block)
    plan.bind(out.name, "thread.x", by_thread)
    plan.bind(out.name, "vector", run)
    plan.step(s.SetScope(scan.name, "shared"), s.ComputeAt(scan.name, out.name, block))
    own = [axis.name for axis in scan.axes]
    plan.bind(scan.name, "thread.x", plan.fuse(scan.name, own[:-1]))
    runs = [read for read in operands if in_runs(scan, read)]
    if runs:
        narrowest = max(WIDEST // dtype(read.dtype).bytes for read in runs)
        step, each = plan.split(scan.name, own[-1], narrowest)
        plan.bind(scan.name, "unroll", each)
    for read in runs:
        plan.step(s.ComputeAt(_run(read), scan.name, step))
        plan.bind(_run(read), "vector", f"a{len(own) - 1}")
    bytes_ = [product_of(held, _padded(scan.dtype, length, 4), dtype(scan.dtype).bytes)]
    _aligned(plan, scan.name, len(own), scan.dtype, 4)
    for read in operands:
        name, size = _copy(read), dtype(read.dtype).bytes
        plan.step(s.ComputeAt(name, out.name, block))
        axes = plan.fuse(name, [f"a{n}" for n in range(len(own))])
        _, by_thread, run = plan.split(name, axes, threads, WIDEST // size)
        plan.bind(name, "thread.x", by_thread)
        plan.bind(name, "vector", run)
        unit = WIDEST if in_runs(scan, read) else 4
        _aligned(plan, name, len(own), read.dtype, unit)
        bytes_.append(product_of(held, _padded(read.dtype, length, unit), size))
    plan.require(total_of(*bytes_) <= plan.gpu.shared_per_block - 1024, "rows fit in shared memory")
    plan.derive("shared_bytes", total_of(*bytes_))


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
