"""What a block on matrix units needs and does: its limits, and counts for an estimate of its time."""

from __future__ import annotations

from math import prod

from deepgen.compiler.intrinsics.matrix import MatrixProduct
from deepgen.compiler.rules.gpu.contraction import Contraction, turned_along
from deepgen.compiler.rules.gpu.counts import Counts
from deepgen.compiler.rules.gpu.plan import Plan, product_of, total_of
from deepgen.compiler.rules.gpu.stored import SPARE
from deepgen.compiler.rules.numbers import Extent, covered
from deepgen.operators.expr.nodes import Stage
from deepgen.space import divides
from deepgen.targets.gpu import Gpu

_SECTOR = 32  # bytes of memory that are written together
_RESERVED = 48  # registers for addresses and the like


def limits(plan: Plan, c: Contraction, tiles: dict[str, Extent], warps: Extent, shared: Extent) -> None:
    gpu = plan.gpu
    rows = product_of(*(tiles[a.name] for a in c.rows))
    columns = product_of(*(tiles[a.name] for a in c.columns))
    if c.columns and not c.intrinsic.own:
        plan.require(divides(2, tiles[c.columns[-1].name]), "an even number of products along columns")
    registers = _registers(c.intrinsic, rows, columns)
    plan.require(registers <= min(gpu.registers_per_thread, 255), "a thread's sums and operands fit in its registers")
    threads = product_of(warps, c.intrinsic.lanes)
    plan.require(threads <= gpu.threads_per_block, "threads of a block")
    if c.intrinsic.lanes < gpu.warp:
        plan.require(divides(gpu.warp, threads), "whole warps")
    plan.require(product_of(threads, registers) <= gpu.registers_per_sm, "a block's registers fit in a multiprocessor")
    plan.require(
        shared <= gpu.shared_per_block - (SPARE if c.intrinsic.warps > 1 else 1024), "copies fit in shared memory"
    )
    plan.derive("shared_bytes", shared)
    plan.derive("threads", threads)
    plan.derive("registers", registers)


def beside(out: Stage, c: Contraction, runs: dict[str, Extent]) -> Extent:
    """How many elements are written for each result: those between results, and those of the same sectors."""
    between = covered(prod(out.shape), prod(c.stage.shape))
    return product_of(between, covered(_SECTOR // 2, runs.get(c.stage.axes[-1].name, 1)))


def counts(
    gpu: Gpu,
    c: Contraction,
    inner: dict[str, Extent],
    tiles: dict[str, Extent],
    warps: Extent,
    block: dict[str, Extent],
    depth: Extent,
    turns: Extent,
    copied: Extent,
    held: Extent,
    stored: Extent,
    late: Extent,
) -> Counts:
    """What a block does, for an estimate of its time."""
    mma, places = c.intrinsic, (*c.rows, *c.columns)
    rows, columns = (product_of(*(tiles[a.name] for a in side)) for side in (c.rows, c.columns))
    steps = prod((c.along.extent // mma.k, *(tap.extent for tap in c.taps)))
    peak = (gpu.peak(mma.operand) or 1.0) * 1e9
    return Counts(
        blocks=product_of(*(a.extent for a in c.both), *(covered(a.extent, block[a.name]) for a in places)),
        threads=product_of(warps, mma.lanes),
        registers=_registers(mma, rows, columns),
        shared_bytes=held,
        operations=product_of(2 * mma.m * mma.n * mma.k * steps, rows, columns, warps),
        # Rows of a matrix that do not follow each other in memory may lie on the same banks.
        loads=product_of(
            steps,
            warps,
            total_of(
                product_of(rows, 3 + covered(8, inner[c.rows[-1].name])), 0 if mma.warps > 1 else product_of(columns, 2)
            ),
        ),
        turns=turns,
        copied=copied,
        depth=depth,
        late=late,
        stored=stored,
        packed=0,
        turned=0,
        rate=peak * mma.share_of_peak(gpu.arch, late=False),
        rate_late=peak * mma.share_of_peak(gpu.arch, late=True),
    )


def late(c: Contraction, tiles: dict[str, Extent], chunk: Extent, all_taps: bool) -> Extent:
    """1 where matrix units read rows from lines of shared memory. Rows of several axes may lie so too."""
    if (
        c.intrinsic.warps == 1
        or len(c.rows) > 1
        or turned_along(c.left, c)
        or (all_taps and any(tap.extent > 1 for tap in c.taps))
    ):
        return 0
    return (tiles[c.rows[0].name] == 1) & (product_of(chunk, c.intrinsic.k) == c.intrinsic.line)


def _registers(mma: MatrixProduct, rows: Extent, columns: Extent) -> Extent:
    """Of a thread: its sums, operands, addresses and the like."""
    operands = product_of(rows, mma.words(mma.m)), product_of(columns, mma.words(mma.n))
    return total_of(product_of(rows, columns, mma.fragment.sums), *operands, _RESERVED)
