"""Plain arithmetic: each thread computes a few elements of the result, and reads its operands from memory or from tiles
that the block copied to shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.facts import operands, shareable
from deepgen.compiler.rules.gpu.groups import with_operands
from deepgen.compiler.rules.gpu.plan import BORDER, WIDEST, Plan, powers
from deepgen.compiler.rules.template import Extent, plus, span, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Axis, Read, Stage, reads
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_MOST_INNER = 8
_MOST_HELD = 96  # registers for a thread's sums
_USUAL_THREADS, _FEW_THREADS = 128, 32
_MANY = 16  # threads along an axis, some of whose last may be beyond its end
MOST_TAPS = 9  # that are unrolled
_FEW_TAPS = 16  # with more taps, the operands of large tiles leave no room for a second block
_WIDE_SIDE, _OTHER_SIDE = (
    (4, 16),
    (8, 8),
)  # for a sum of products: elements per thread, and threads, along each operand's axes
STREAMS = 512  # threads that keep a multiprocessor's memory busy
_SQUARE, _TILE = 32, 4096  # least extent of a transposed tile along each side; its size, if one side is shorter


class SharedTiles:
    """Operands of a sum in shared memory, including their border of zeros, if any."""

    name, exclusive, targets = "Shared-Tiles", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        sums = plan.part.reduction
        if sums is None:
            return "it has no reduction of its own"
        return None if plan.reads_kept or shareable(sums) else "a block reads no element of all operands twice"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(lambda way: _added_up(way, shared=True))


class ByThreads:
    """Each thread computes a few elements, and reads its operands from memory."""

    name, exclusive, targets = "Threads", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        if plan.reads_kept:
            return BORDER
        if plan.part.rows:
            return "its rows need reductions, which threads of a block share"
        return "lanes of a warp scan its rows, or a thread each" if plan.part.sums and plan.part.scan else None

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(lambda way: _added_up(way, shared=False))


class Transposed:
    """A tensor that is read along another axis than it is stored: a block copies a square of it to shared memory
    unchanged."""

    name, exclusive, targets = "Transposed", False, (Gpu,)

    def declines(self, plan: Plan, stage: Stage) -> str | None:
        last = plan.part.last
        if plan.part.sums or last.reduce is not None or last.scan:
            return "it reduces or scans"
        return None if _crosswise(plan, last) else "it reads no large tensor along another axis than its last one"

    def apply(self, plan: Plan, stage: Stage) -> list[Plan]:
        return plan.tried(_by_squares)


def _crosswise(plan: Plan, out: Stage) -> Read | None:
    """The only read of a tensor that is contiguous along another axis than the result."""
    extents = {axis.name: axis.extent for axis in out.axes}
    tensors = {tensor.name for tensor in plan.expression.tensors}
    across = [r for r in operands(out) if r.indices and facts.plain(r.indices[-1]) != out.axes[-1].name]
    across = [r for r in across if out.axes[-1].name in {facts.plain(i) for i in r.indices}]
    if len(across) != 1 or across[0].tensor not in tensors or not all(map(facts.plain, across[0].indices)):
        return None
    once = sum(read.tensor == across[0].tensor for read in reads(out.value)) == 1
    other = extents.get(facts.plain(across[0].indices[-1]) or "", 0)
    return across[0] if once and other > 1 and out.axes[-1].extent >= _SQUARE else None


def _by_squares(plan: Plan) -> None:
    out, read = plan.part.last, _crosswise(plan, plan.part.last)
    assert read is not None
    copy = f"{read.tensor}.shared"
    plan.cache_read(read.tensor, copy, (out.name,))
    plan.names += ("transposed",)
    last, across = out.axes[-1].name, facts.plain(read.indices[-1])
    assert across is not None
    size, words = dtype(read.dtype).bytes, max(1, 4 // dtype(read.dtype).bytes)
    threads = plan.knob("team", powers(1024, 128), 256)
    short = next(axis.extent for axis in out.axes if axis.name == across)
    down: Extent
    along: Extent
    if short < _SQUARE:  # cover all of it, and more along the other side
        usual = min(1024, 1 << (_TILE // short).bit_length() - 1)
        down, along = short, plan.knob("along", (64, 128, 256, 512, 1024), usual)
    else:
        down, along = (plan.knob(name, (32, 64, 128), _SQUARE * words) for name in ("down", "along"))
    width = plan.knob("each", powers(WIDEST // dtype(out.dtype).bytes), words)
    outer, inner = plan.split(out.name, across, (down,))
    others = [axis.name for axis in out.axes[:-1] if axis.name != across]
    beside, own = plan.split(out.name, last, (along,))
    plan.step(s.Reorder(out.name, (*others, outer, beside, inner, own)))
    block = plan.fuse(out.name, [*others, outer, beside])
    plan.annotate(out.name, "block.x", block)
    plan.deal(out.name, [inner, own], ("thread.x", threads), ("vector", width))
    plan.step(s.ComputeAt(copy, out.name, block))
    length = plan.expression.shape_of(read.tensor)[-1]
    run = min(WIDEST // size, length & -length)
    plan.deal(copy, [f"a{n}" for n in range(len(read.indices))], ("thread.x", threads), ("vector", run))
    # Lines an odd number of words apart fall on different banks.
    line = next(n for n, index in enumerate(read.indices) if facts.plain(index) == last)
    plan.step(s.StorageAlign(copy, line, 2 * words, words))
    bytes_ = times([plus([down, words]), along, size])
    plan.require(bytes_ <= plan.target.shared_per_block - 1024, "a square fits in shared memory")
    plan.derive("threads", threads)
    plan.derive("shared_bytes", bytes_)


def _added_up(plan: Plan, *, shared: bool) -> None:
    part = plan.part
    sums = part.reduction
    if sums is None or sums.scan:
        by_threads(plan, plan.stage(part.last.name), None, shared=False)
        return
    name = plan.added_up(sums, "register")
    if shared:
        copied = [r.tensor for r in operands(sums) if r.tensor not in plan.form.kept]
        plan.restructure(*(s.CacheRead(tensor, f"{tensor}.shared", "shared", (name,)) for tensor in copied))
    by_threads(plan, plan.stage(part.last.name), with_operands(plan.stage(name), sums), shared=shared)


def by_threads(plan: Plan, out: Stage, sums: Stage | None, *, shared: bool) -> None:
    """The steps of a launch. With `shared`, the operands of its sum are copied to shared memory in chunks.

    Operands that are stages are computed directly in shared memory.
    """
    plan.names += ("shared" if shared else "threads",)
    if sums is None and out.reduce is None:
        _place_by_place(plan, out)
        return
    threads, inner = _sizes(plan, out, sums, _tile(plan, out, sums) if shared and sums is not None else {})
    loops = result(plan, out, threads, inner)
    whole = times(threads.values())
    plan.require(whole <= plan.target.threads_per_block, "threads of a block")
    plan.derive("threads", whole)
    if sums is None:
        return
    held = times(inner.values())
    plan.require(held <= _MOST_HELD, "what a thread adds up fits in its registers")
    plan.step(s.SetScope(sums.name, "register"), s.ComputeAt(sums.name, out.name, loops))
    same = facts.same_places(out, sums)
    assert same is not None
    own = [a.name for a in sums.axes]
    if not shared:
        plan.step(s.Reorder(sums.name, (*(a.name for a in sums.reduced), *own)))
        plan.annotate(sums.name, "unroll", *_few(list(sums.reduced)), *own[:-1])
        plan.annotate(sums.name, "vector", own[-1])
        return
    along = max(sums.reduced, key=lambda a: a.extent)
    chunk = plan.knob("chunk", [n for n in (4, 8, 16, 32, 64) if along.extent % n == 0] or [along.extent], 16)
    outer, steps = plan.split(sums.name, along.name, (chunk,))
    rest = [a.name for a in sums.reduced if a != along]
    plan.step(s.Reorder(sums.name, (outer, *rest, steps, *own)))
    few = _few([a for a in sums.reduced if a != along])
    plan.annotate(sums.name, "unroll", *few, *([steps] if along.extent <= MOST_TAPS else []), *own)
    tile = {a.name: times([threads[o], inner[o]]) for a, o in zip(sums.axes, same, strict=True)}
    extents: dict[str, Extent] = {**tile, along.name: chunk, **{a.name: a.extent for a in sums.reduced if a != along}}
    total: list[Extent] = []
    for read in operands(sums):
        total.append(_copied(plan, sums, read, extents, outer, whole))
    plan.require(plus(total) <= plan.target.shared_per_block - 1024, "copies fit in shared memory")
    plan.derive("shared_bytes", plus(total))


def _few(axes: list[Axis]) -> list[str]:
    """The innermost axes with few elements together: when they are unrolled, loads that several results share are
    executed once."""
    names: list[str] = []
    places = 1
    for axis in reversed(axes):
        places *= axis.extent
        if places > MOST_TAPS:
            break
        names.insert(0, axis.name)
    return names


def _place_by_place(plan: Plan, out: Stage) -> None:
    """All elements in order, a few contiguous ones per thread."""
    count = prod(out.shape)
    threads = plan.knob(f"{out.name}_threads", [n for n in powers(1024, 32) if n < 2 * count] or [32], 256)
    run = WIDEST // dtype(out.dtype).bytes  # if rows start within a vector, this many loads are in flight
    enough = plan.target.multiprocessors * (STREAMS if _torn(plan, out, run) else _USUAL_THREADS)
    while run > 1 and count // run < enough:
        run //= 2  # of few elements each has a thread: the sooner they are done
    each = plan.knob(f"{out.name}_each", powers(2 * run), run)
    blocks, *_ = plan.deal(out.name, [a.name for a in out.axes], ("thread.x", threads), ("vector", each))
    plan.annotate(out.name, "block.x", blocks)


def _torn(plan: Plan, out: Stage, run: int) -> bool:
    """Whether it reads a tensor from within a run of elements on: each of them is a load."""
    for read in reads(out.value):
        sizes = plan.expression.shape_of(read.tensor)
        first = sum(i.constant * prod(sizes[n + 1 :]) for n, i in enumerate(read.indices))
        if first % run:
            return True
    return False


def _tile(plan: Plan, out: Stage, sums: Stage) -> dict[str, tuple[int, int]]:
    """The usual tile of a sum of products, for each axis: elements per thread, and threads.

    What a thread reads of an operand serves all its elements along axes on which the operand does not depend: a thread
    has several elements along the axes of a single operand, and one along those on which both depend. Empty for other
    sums.
    """
    read, same = operands(sums), facts.same_places(out, sums)
    if len(read) != 2 or same is None:
        return {}
    of = {o: tuple(facts.depends(r, a.name) for r in read) for a, o in zip(sums.axes, same, strict=True)}
    sides = [[a for a in reversed(out.axes) if of[a.name] == side] for side in ((True, False), (False, True))]
    if not all(sides):
        return {}
    tile = {a.name: (1, 1) for a in out.axes}
    blocks = prod(a.extent for a in out.axes)
    for side in sides:
        each, threads = _WIDE_SIDE if out.axes[-1] in side else _OTHER_SIDE
        for axis in side:
            own = max(k for k in powers(each) if axis.extent % k == 0)
            shared = min(threads, _power_below(max(1, axis.extent // own)))
            if axis != out.axes[-1] and axis.extent % (own * shared):
                return {}  # partial tiles cost more than they save
            tile[axis.name] = own, shared
            each, threads = each // own, threads // shared
            blocks //= own * shared
        if threads > 1 or each > 1:
            return {}
    taps = prod(sorted(a.extent for a in sums.reduced)[:-1])
    return tile if blocks >= 2 * plan.target.multiprocessors and taps <= _FEW_TAPS else {}


def _sizes(
    plan: Plan, out: Stage, sums: Stage | None, tile: dict[str, tuple[int, int]]
) -> tuple[dict[str, Extent], dict[str, Extent]]:
    """For each axis, how many threads share a block's part of it, and how many elements each of them has."""
    threads: dict[str, Extent] = {}
    inner: dict[str, Extent] = {}
    free = [a for a in out.axes if a.name != out.scan]
    run = WIDEST // dtype(out.dtype).bytes
    if out.scan:  # each thread reads its own lines in sequence, so many threads are needed
        run = max(1, min(run, prod(a.extent for a in free) // (plan.target.multiprocessors * STREAMS)))
    wide = free[-1] if free else None
    room = _USUAL_THREADS
    few = prod(out.shape) <= plan.target.multiprocessors * 4 * STREAMS
    alone = few and sums is not None and len(operands(sums)) == 1  # a thread each: guards of tiles take longer
    shared = sums is not None and shareable(sums)
    if sums is not None and (steps := _windows(out, sums)):
        return _of_windows(plan, out, steps)
    for n, axis in enumerate(reversed(free)):
        last = axis == wide
        several = [k for k in powers(_MOST_INNER) if k <= axis.extent] if last or sums is not None else [1]
        most = run if last else _neighbours(n, len(free)) if sums is not None else 1
        each = max((k for k in several if axis.extent % k == 0 and k <= most), default=1)
        each = tile[axis.name][0] if tile else 1 if alone else each
        inner[axis.name] = plan.knob(f"{axis.name}_each", several, each)
        covering, highest = _power_below(max(1, axis.extent // each)), 256 if last else 32
        usual = min(covering, room, 16 if shared else highest)
        while n and usual > 1 and axis.extent % (usual * each):
            usual //= 2
        if not tile and n == len(free) - 1 and sums is not None and _USUAL_THREADS // room * usual < _FEW_THREADS:
            usual = min(covering, room, 32)  # otherwise a block would have hardly any threads
        usual = tile[axis.name][1] if tile else usual
        room //= usual
        threads[axis.name] = plan.knob(f"{axis.name}_threads", powers(min(axis.extent, highest)), usual)
    return threads, inner


def _windows(out: Stage, sums: Stage) -> dict[str, int]:
    """How far windows of a single tensor, if it reduces such, move per step along each axis of the result."""
    read, places = operands(sums), facts.places_in(out, sums)
    taps = {axis.name for axis in sums.reduced if axis.extent > 1}
    if len(read) != 1 or sums.scan:
        return {}
    moved = [i for i in read[0].indices if i.iterators & taps and len(i.iterators) > 1]
    return {places[name]: abs(i.step(name) or 1) for i in moved for name in i.iterators - taps if name in places}


def _of_windows(plan: Plan, out: Stage, steps: Mapping[str, int]) -> tuple[dict[str, Extent], dict[str, Extent]]:
    """The sizes for windows: neighbouring threads load neighbouring elements, each those of windows that overlap."""
    threads: dict[str, Extent] = {}
    inner: dict[str, Extent] = {}
    few = prod(out.shape) <= plan.target.multiprocessors * 8 * STREAMS  # a thread each
    run, room = WIDEST // dtype(out.dtype).bytes, _USUAL_THREADS
    for n, axis in enumerate(reversed(out.axes)):
        extent, last = axis.extent, n == 0
        most = _neighbours(n, len(out.axes))  # which share loads, or at least the places of these
        if last:
            most = run if steps.get(axis.name, 1) == 1 else 1
        several = [k for k in powers(_MOST_INNER) if k <= extent]
        each = max(k for k in several if k <= most and (extent % k == 0 or (extent >= _MANY * k and not last)))
        each = 1 if few else each
        inner[axis.name] = plan.knob(f"{axis.name}_each", several, each)
        places, highest = -(-extent // each), 256 if last else 32
        covering = powers(places)[-1]
        usual = min(covering if 4 * places >= 3 * covering else _power_below(places), room, highest)
        while n and usual > 1 and extent % (usual * each) and extent < _MANY * usual * each:
            usual //= 2
        if n == len(out.axes) - 1 and _USUAL_THREADS // room * usual < _FEW_THREADS:
            usual = min(_power_below(places), room, 32)  # otherwise a block would have hardly any threads
        room //= usual
        threads[axis.name] = plan.knob(f"{axis.name}_threads", powers(min(extent, highest)), usual)
    return threads, inner


def _neighbours(n: int, axes: int) -> int:
    """The usual elements per thread along the n-th axis from the last: they share what they read."""
    return 4 if axes < 3 else 2 if n < 3 else 1


def _power_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def result(plan: Plan, out: Stage, threads: dict[str, Extent], inner: dict[str, Extent]) -> str:
    """The loops of the stored stage. Returns that of its threads."""
    name, free = out.name, [a for a in out.axes if a.name in threads]
    if not free:
        # One element, or one scanned row: work for one thread.
        return out.axes[0].name
    level = [plan.split(name, a.name, (threads[a.name], inner[a.name])) for a in free]
    kept = [a.name for a in out.axes if a.name not in threads] + [a.name for a in out.reduced]
    blocks, by_threads, own = ([one[n] for one in level] for n in range(3))
    plan.step(s.Reorder(name, (*blocks, *by_threads, *kept, *own)))
    plan.annotate(name, "block.x", plan.fuse(name, blocks))
    loop = plan.fuse(name, by_threads)
    plan.annotate(name, "thread.x", loop)
    plan.annotate(name, "unroll", *own[:-1])
    plan.annotate(name, "vector", own[-1])
    return loop


def _copied(plan: Plan, sums: Stage, read: Read, extents: dict[str, Extent], loop: str, threads: Extent) -> Extent:
    name, axes = f"{read.tensor}.shared", [f"a{n}" for n in range(len(read.indices))]
    if read.tensor in plan.form.kept:
        name, axes = read.tensor, [a.name for a in plan.base.stage(read.tensor).axes]
        plan.step(s.SetScope(name, "shared"))
    sizes = [span(i, extents) for i in read.indices]
    size = dtype(read.dtype).bytes
    plan.step(s.ComputeAt(name, sums.name, loop))
    # If taps shift the innermost dimension, runs can start anywhere: then neighbouring threads load neighbouring
    # elements.
    usual = WIDEST // size if facts.plain(read.indices[-1]) else 1
    width = plan.knob(f"run_{read.tensor}", powers(WIDEST // size), usual)
    plan.deal(name, axes, ("thread.x", threads), ("vector", width))
    return times([size, *sizes])
