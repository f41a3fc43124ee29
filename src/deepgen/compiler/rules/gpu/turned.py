"""An operand in another order, by a launch of its own: a block copies a part of it to shared memory as it lies, and
stores it with the new innermost dimension in runs of 16 bytes."""

from __future__ import annotations

from math import prod

from deepgen.compiler.rules.gpu.plan import WIDEST, Plan, powers, product_of
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Expression, Stage, reads
from deepgen.vocabulary.dtypes import dtype

_LARGE = 1 << 20  # elements: what has fewer is cut finer, so that there are blocks for many multiprocessors
_PLACES = 64  # of the other dimensions that a block has, about
_RUNS = 256  # of 16 bytes that a block has of a filter, about


def tile(expression: Expression, tensor: str, packed: str) -> tuple[s.Step, ...]:
    """The step that makes the copy in shared memory; none where what is packed is more than copied from a tensor."""
    stages = {stage.name: stage for stage in expression.stages}
    sources = {read.tensor for read in reads(stages[tensor].value)} if tensor in stages else {tensor}
    inputs = {one.name for one in expression.tensors}
    if len(sources) != 1 or not sources <= inputs:
        return ()
    (source,) = sources
    return (s.CacheRead(source, tile_name(packed), "shared", (packed,)),)


def tile_name(packed: str) -> str:
    return f"{packed}.tile"


def by_tiles(plan: Plan, packed: Stage, along: int, source: Stage) -> None:
    """The steps of the launch. `along` is the dimension that becomes the innermost one."""
    name, axes = packed.name, [axis.name for axis in packed.axes]
    size = dtype(packed.dtype).bytes
    plan.names.append("packed")
    channels = packed.axes[along]
    between = prod(axis.extent for axis in packed.axes[along + 1 :])
    # An odd number of places inside, as of a filter: they follow each other in memory, and lie on different banks.
    odd = between % 2 == 1 and between < _PLACES and source.shape == packed.shape
    width = WIDEST // size
    usual = 64 if prod(packed.shape) >= _LARGE else 16
    deep = plan.knob(f"{name}_deep", [n for n in (16, 32, 64, 128) if n < 2 * channels.extent], usual)
    # The same for all operands, so that one launch packs them.
    threads = plan.shared_knob("packed_threads", powers(512, 64), 256)
    blocks: list[str] = []
    inner: list[str] = []
    places = 1
    for n in reversed(range(len(axes))):
        part = deep if n == along else _part(packed.axes[n].extent, places)
        if odd and n < along and places == between:
            part = min(packed.axes[n].extent, max(1, _RUNS * width // (between * 16)))  # a run for each thread
        places *= part if n != along and isinstance(part, int) else 1
        outer, own = plan.split(name, axes[n], part)
        blocks.insert(0, outer)
        if n == along:
            runs = own
        elif part == 1:
            blocks.insert(1, own)
        else:
            inner.insert(0, own)
    plan.step(s.Reorder(name, (*blocks, *inner, runs)))
    block = plan.fuse(name, blocks)
    _, by_thread, run = plan.split(name, plan.fuse(name, [*inner, runs]), threads, width)
    plan.bind(name, "block.x", block)
    plan.bind(name, "thread.x", by_thread)
    plan.bind(name, "vector", run)
    copy = source.name
    side_by_side = channels.extent * between if odd else source.axes[-1].extent
    plan.step(s.ComputeAt(copy, name, block))
    own = plan.fuse(copy, [axis.name for axis in source.axes])
    _, by_thread, run = plan.split(copy, own, threads, min(width, side_by_side & -side_by_side))
    plan.bind(copy, "thread.x", by_thread)
    plan.bind(copy, "vector", run)
    if not odd:
        # Rows an odd number of words apart lie on different banks.
        words = max(1, 4 // size)
        plan.step(s.StorageAlign(copy, along, 2 * words, words))
    plan.require(product_of(deep, places, 2, size) <= plan.gpu.shared_per_block, f"a part of {name} in shared memory")


def _part(extent: int, places: int) -> int:
    """How much of a dimension a block has, given how many places it has of those inside of it."""
    if places >= _PLACES // 2:
        return 1
    if extent <= 2 * _PLACES and places == 1:
        return extent
    return min(extent, 1 << (_PLACES // places).bit_length() - 1)
