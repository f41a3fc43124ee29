"""Software pipelining: copies into a ring of buffers, one being read while the others are filled; and barriers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from deepgen.compiler.intrinsics.matrix import WARPGROUP, Signal, WideProduct
from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Barrier,
    Buffer,
    Call,
    For,
    If,
    Seq,
    Stmt,
    Store,
    accesses,
    calls,
    children,
    guarded,
    held_in,
    read_in,
    sequence,
    unguarded,
    used,
    walk,
    with_accesses,
    with_children,
    with_indices_in,
)
from deepgen.compiler.schedule.steps import BOUND, SERIAL, UNROLL, VECTOR
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import reads
from deepgen.vocabulary import BadInput

COMMIT, WAIT = Signal("copy_commit"), "copy_wait"
_CHUNK = 128  # bytes: the buffers of a ring begin at multiples of it, so that all are swizzled alike


def pipeline(body: Stmt, around: Around) -> Stmt:
    written = set(around.whole.buffers) - {buffer.name for buffer in around.whole.inputs}
    return _piped(body, written)


def _piped(statement: Stmt, written: Set[str]) -> Stmt:
    """`written`: tensors that earlier launches may have written."""
    statement = with_children(statement, lambda s: _piped(s, written))
    copies: dict[Buffer, Stmt] = {}
    if not isinstance(statement, For):
        return statement
    body, beside = _taken(statement.body, copies), _computed_at(statement.body)
    if not copies:
        return statement
    depths = {buffer.ahead for buffer in copies}
    if statement.kind in BOUND or len(depths) > 1:
        what = f"stages are prefetched at loop {statement.variable}"
        raise BadInput(what, allowed="use one depth for all, and a serial loop")
    for buffer, copy in copies.items():
        if any(isinstance(s, Alloc) for s in walk(copy)) or beside & used(copy) - {buffer.name}:
            what = f"stage {buffer.name} needs others that are computed in the same iteration: it cannot be prefetched"
            raise BadInput(what, allowed="prefetch only copies of tensors that exist before the loop")
    ordered = _in_order({buffer.name: copy for buffer, copy in copies.items()}, written)
    filled = _filled_ahead(statement, depths.pop(), ordered, body)
    for buffer in reversed(copies):
        filled = Alloc(_several(buffer, min(buffer.ahead, statement.extent)), filled)
    return filled


def _taken(statement: Stmt, copies: dict[Buffer, Stmt]) -> Stmt:
    """What a loop does besides the copies that are to be filled ahead, which are added to `copies`."""
    if isinstance(statement, Seq):
        return sequence(*statement.body[:-1], _taken(statement.body[-1], copies))
    if not isinstance(statement, Alloc):
        return statement
    if statement.buffer.ahead == 1:
        return replace(statement, body=_taken(statement.body, copies))
    assert isinstance(statement.body, Seq)
    copies[statement.buffer] = statement.body.body[0]
    return _taken(sequence(*statement.body.body[1:]), copies)


def _computed_at(statement: Stmt) -> set[str]:
    """The stages that are computed within a loop's iteration."""
    if isinstance(statement, Seq):
        return _computed_at(statement.body[-1])
    return {statement.buffer.name} | _computed_at(statement.body) if isinstance(statement, Alloc) else set()


def _in_order(copies: dict[str, Stmt], written: Set[str]) -> dict[str, Stmt]:
    """Synchronous copies come last, or just before copies of tensors that another launch may still be writing."""
    late = {name for name, copy in copies.items() if written & used(copy)}
    if not late:
        return dict(sorted(copies.items(), key=lambda one: _is_transposed(one[1])))
    return dict(sorted(copies.items(), key=lambda one: (one[0] in late, not _is_transposed(one[1]))))


def _several(buffer: Buffer, depth: int) -> Buffer:
    """A ring of buffers."""
    apart = buffer.elements + -buffer.elements % _CHUNK
    return replace(buffer, sizes=(depth, *buffer.sizes), strides=(apart, *buffer.strides), ahead=1)


def _filled_ahead(loop: For, depth: int, copies: Mapping[str, Stmt], body: Stmt) -> Stmt:
    """The loop with copies `depth - 1` iterations ahead. `copies` are statements over the loop's variable, by buffer.

    If matrix units read the copies directly, a fence precedes their reads. If they read both operands, products of one
    iteration still run while the next one begins: their operands are overwritten one iteration later, by copies that
    are one iteration less ahead.
    """
    now, first = iterator(loop.variable), f"{loop.variable}.ahead"
    for name in copies:
        body = _in_ring(body, name, now % depth)
    waits, signals = Call(WARPGROUP.waits()), [Call(WARPGROUP.ready)] if _is_read_by_units(body) else []
    last = isinstance(body, Seq) and body.body[-1] == waits  # products run asynchronously until then
    late = last and depth > 2 and _in_lines(body)
    ahead = depth - 2 if late else depth - 1
    before = For(first, ahead, UNROLL, _asked(loop, copies, iterator(first), depth))
    ready: list[Stmt] = [Call(Signal(WAIT, ahead - 1)), *signals, Barrier()]
    asked = _asked(loop, copies, now + ahead, depth)
    ends: list[Stmt] = [Call(Signal(WAIT, 0))]
    if isinstance(body, Seq) and last:
        pending = Call(WARPGROUP.waits(_groups(body))) if late else waits
        iterations = sequence(*ready, *body.body[:-1], asked, pending)
        ends += [waits] if late else []
    else:
        iterations = sequence(*ready, asked, body)
    # The first threads to reach the copies must not overwrite what others still read.
    return sequence(Barrier(), before, replace(loop, kind=SERIAL, body=iterations, limits=()), *ends)


def _is_read_by_units(body: Stmt) -> bool:
    """Whether products of four warps are accumulated over iterations: those within one iteration have their sums
    there."""
    own = {s.buffer.name for s in walk(body) if isinstance(s, Alloc)}
    return any(places[0].tensor not in own for _, places in calls(body, WideProduct))


def _in_lines(body: Stmt) -> bool:
    """Whether matrix units read both operands of all products directly from shared memory."""
    apart = [product.apart for product, _ in calls(body, WideProduct)]
    return bool(apart) and all(apart)


def _groups(body: Stmt) -> int:
    """The number of product groups per iteration."""
    if isinstance(body, Call):
        return int(body.what == WARPGROUP.commit)
    return (body.extent if isinstance(body, For) else 1) * sum(map(_groups, children(body)))


def _asked(loop: For, copies: Mapping[str, Stmt], iteration: Index, depth: int) -> Stmt:
    """The copies of an iteration, if it exists; they are committed as one group, even if it is empty."""
    parts = [_in_ring(_ahead(copy), name, iterator(loop.variable) % depth) for name, copy in copies.items()]
    moved = with_indices_in(sequence(*parts), lambda i: i.substitute({loop.variable: iteration}))
    return sequence(If((loop.extent - 1 - iteration,), moved), Call(COMMIT))


def _is_transposed(copy: Stmt) -> bool:
    """Whether elements that are contiguous in the destination are strided in the source: such copies are
    synchronous."""
    runs = [s for s in walk(copy) if isinstance(s, For) and s.kind == VECTOR]
    stores = [(run.variable, s) for run in runs for s in walk(run) if isinstance(s, Store)]
    pairs = [(variable, read) for variable, s in stores for read in reads(s.value)]
    inmost = [(variable, [i for i in read.indices if i.iterators][-1:]) for variable, read in pairs]
    return any(variable not in i.iterators for variable, last in inmost for i in last)


def _ahead(statement: Stmt) -> Stmt:
    if isinstance(statement, Store):
        return replace(statement, ahead=True)
    return with_children(statement, _ahead)


def _in_ring(statement: Stmt, name: str, slot: Index) -> Stmt:
    inner = with_children(statement, lambda s: _in_ring(s, name, slot))
    return with_accesses(inner, lambda tensor, indices: (slot, *indices) if tensor == name else indices)


def barriers(body: Stmt, _: Around) -> Stmt:
    return _placed(body, _Since(), held_in(body, ("shared",)))[0]


@dataclass(frozen=True)
class _Since:
    """Accesses to shared memory since the last barrier."""

    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def __or__(self, other: _Since) -> _Since:
        return _Since(self.written | other.written, self.read | other.read)


def _placed(statement: Stmt, since: _Since, shared: frozenset[str]) -> tuple[Stmt, _Since]:
    if isinstance(statement, Barrier):
        return statement, _Since()
    if isinstance(statement, If) or not _composite(statement):
        done = _done(statement, shared)
        clash = done.read - done.written & since.written or done.written & since.read
        return (sequence(Barrier(), statement), done) if clash else (statement, since | done)
    if isinstance(statement, Seq):
        parts = []
        for one in statement.body:
            placed, since = _placed(one, since, shared)
            parts.append(placed)
        return sequence(*parts), since
    if isinstance(statement, For):
        # What is pending at the end of an iteration is still pending when the next one begins.
        _, after = _placed(statement.body, since, shared)
        body, after = _placed(statement.body, since | after, shared)
        return replace(statement, body=body), since | after
    assert isinstance(statement, Alloc)
    body, since = _placed(statement.body, since, shared)
    return replace(statement, body=body), since


def _composite(statement: Stmt) -> bool:
    """Whether threads synchronize in it, so that barriers can be placed inside."""
    inside = list(walk(statement))
    return (
        any(isinstance(s, Barrier) or (isinstance(s, Alloc) and s.buffer.scope == "shared") for s in inside)
        or (isinstance(statement, (Seq, Alloc, For)) and any(isinstance(s, Store) and s.joined for s in inside))
        or isinstance(statement, Seq)
    )


def _done(statement: Stmt, shared: frozenset[str]) -> _Since:
    stored = {s.buffer for s in walk(statement) if isinstance(s, Store) and not s.ahead}
    return _Since(shared & stored, shared & read_in(statement))


_MOST_SCANNED, _AT_ONCE = 128, 8  # numbers of a lane that registers have room for; its loads at the same time


def streams(body: Stmt, around: Around) -> Stmt:
    """Rows that lanes scan, but have no room for, are loaded, scanned and stored a few runs at a time."""
    body = with_children(body, lambda one: streams(one, around))
    if not isinstance(body, Alloc) or body.buffer.scope != "warp" or body.buffer.sizes[0] <= _MOST_SCANNED:
        return body
    match body.body:
        case Seq((For() as load, Alloc(carry, Seq((Store() as start, For() as scan))), store)):
            asked, last = unguarded(store)
            loops = [load, scan, last]
            each = body.buffer.sizes[0] // load.extent
            if all(_by_runs(loop, body.buffer.name, load.extent, each) for loop in loops):
                count = max(n for n in range(1, _AT_ONCE + 1) if load.extent % n == 0)
                part = f"{body.buffer.name}.part"
                *first, end = (_of_part(loop, body.buffer.name, part, count, each) for loop in loops)
                rows = For(part, load.extent // count, SERIAL, sequence(*first, guarded(asked, end)))
                held = replace(body.buffer, sizes=(count * each, *body.buffer.sizes[1:]))
                return Alloc(held, Alloc(carry, sequence(start, rows)))
    return body


def _by_runs(loop: Stmt, buffer: str, extent: int, each: int) -> bool:
    """Whether each iteration of a loop uses its own run of a buffer."""
    if not isinstance(loop, For) or loop.extent != extent or loop.limits or loop.kind in BOUND:
        return False
    ranges = {s.variable: (0, s.extent - 1) for s in walk(loop) if isinstance(s, For)}
    places = [read.indices[0] - iterator(loop.variable) * each for s in walk(loop) for read in accesses(s)
              if read.tensor == buffer]  # fmt: skip
    own = [place.bounds(ranges) for place in places if place.iterators <= {*ranges} - {loop.variable}]
    return bool(own) and len(own) == len(places) and all(low >= 0 and high < each for low, high in own)


def _of_part(loop: Stmt, buffer: str, part: str, count: int, each: int) -> Stmt:
    """The iterations of a loop that belong to a part, with the part's numbers at the beginning of the buffer."""
    assert isinstance(loop, For)
    moved = {loop.variable: iterator(part) * count + iterator(loop.variable)}
    body = with_indices_in(loop.body, lambda index: index.substitute(moved))

    def own(name: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        return (indices[0] - iterator(part) * (count * each), *indices[1:]) if name == buffer else indices

    def within(statement: Stmt) -> Stmt:
        return with_accesses(with_children(statement, within), own)

    return replace(loop, extent=count, kind=UNROLL, body=within(body))
