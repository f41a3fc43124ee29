"""Vector loops: one store each, of elements that lie beside each other, under conditions that are the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from deepgen.compiler.passes.bounds import conditions
from deepgen.compiler.passes.build import combined
from deepgen.compiler.passes.ir import Alloc, Buffer, Call, For, If, Seq, Stmt, Store, sequence, with_children
from deepgen.compiler.passes.ir import walk as walk_statements
from deepgen.compiler.passes.simplify import all_of
from deepgen.compiler.passes.unroll import HELD
from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.schedule.state import Loop, Planned
from deepgen.compiler.schedule.steps import BOUND, LANES, UNROLL, VECTOR
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import Binary, Place, Read, Select, Value, children, reads, walk
from deepgen.operators.expr.nodes import with_children as with_operands
from deepgen.vocabulary import BadInput

_MOST = 32  # elements of a vector


def with_vectors(body: Stmt) -> Stmt:
    """What cannot be a vector is written out one by one."""
    held = {s.buffer.name for s in walk_statements(body) if isinstance(s, Alloc) and s.buffer.scope in HELD}
    return _with_vectors(body, frozenset(held))


def _with_vectors(statement: Stmt, held: frozenset[str]) -> Stmt:
    statement = with_children(statement, lambda s: _with_vectors(s, held))
    if not isinstance(statement, For) or statement.kind != VECTOR:
        return statement
    parts = _apart(statement)
    if parts:
        return sequence(*(_vector(part, held) or replace(part, kind=UNROLL) for part in parts))
    return _vector(statement, held) or replace(statement, kind=UNROLL)


def _apart(loop: For) -> list[For]:
    """A loop for each store of the body, where none needs what a later one writes; none where that cannot be."""
    asked: tuple[Index, ...] = ()
    body = loop.body
    if isinstance(body, If) and body.otherwise is None:
        asked, body = body.conditions, body.then
    if not isinstance(body, Seq):
        return []
    stores = [s for s in body.body if isinstance(s, Store) and not s.joined and not s.reduce]
    written = [store.buffer for store in stores]
    for n, store in enumerate(stores):
        if {store.buffer, *(read.tensor for read in reads(store.value))} & set(written[n + 1 :]):
            return []
    if len(stores) < len(body.body):
        return []
    return [replace(loop, body=If(asked, store) if asked else store) for store in stores]


def _vector(loop: For, held: frozenset[str]) -> Stmt | None:
    asked: tuple[Index, ...] = ()
    body = loop.body
    if isinstance(body, If) and body.otherwise is None:
        asked, body = body.conditions, body.then
    if loop.limits or loop.extent > _MOST or loop.extent & (loop.extent - 1) or not isinstance(body, Store):
        return None
    if body.joined or (body.reduce and body.buffer not in held):
        return None
    if not body.reduce and not _along(body.indices[0], loop.variable):
        return None
    outside = [_for_all(c, loop) for c in asked]
    value = _with_one_choice(body.value, loop)
    if value is None or any(c is None for c in outside):
        return None
    vector = replace(loop, body=replace(body, value=value))
    return If(tuple(c for c in outside if c is not None), vector) if outside else vector


def _along(offset: Index, variable: str) -> bool:
    return dict(offset.terms).get(Iter(variable)) == 1 and variable not in (offset - iterator(variable)).iterators


def _for_all(condition: Index, loop: For) -> Index | None:
    """The condition that holds for all iterations of the loop or for none; None where there may be others."""
    if loop.variable not in condition.iterators:
        return condition
    times = dict(condition.terms).get(Iter(loop.variable), 0)
    rest = condition - iterator(loop.variable) * times
    whole = all(c % loop.extent == 0 for _, c in rest.terms) and loop.variable not in rest.iterators
    if times == 1 and whole and rest.constant % loop.extent == 0:
        return rest
    if times == -1 and whole and (rest.constant + 1) % loop.extent == 0:
        return rest - (loop.extent - 1)
    return None


def _with_one_choice(value: Value, loop: For) -> Value | None:
    """The value with choices that are the same for the whole vector; None where there are others."""
    if isinstance(value, Select):
        asked = conditions(value.condition)
        if asked is None:
            return value if not _varies(value.condition, loop) else None
        same = [_for_all(c, loop) for c in asked]
        then, otherwise = (_with_one_choice(v, loop) for v in (value.then, value.otherwise))
        if then is None or otherwise is None or any(c is None for c in same):
            return None
        return Select(all_of([c for c in same if c is not None]), then, otherwise)
    parts = [_with_one_choice(child, loop) for child in children(value)]
    if any(child is None for child in parts):
        return None
    return with_operands(value, [child for child in parts if child is not None])


def _varies(value: Value, loop: For) -> bool:
    indices = [i for v in walk(value) for i in ((v.index,) if isinstance(v, Place) else getattr(v, "indices", ()))]
    return any(loop.variable in i.iterators for i in indices) or any(isinstance(v, Read) for v in walk(value))


SCAN = "scan_lanes"


def is_by_lanes(planned: Planned) -> bool:
    scan = planned.stage.scan
    return scan is not None and any(loop.kind == LANES and scan in loop.axes for loop in planned.loops)


def held_by_lanes(whole: Buffer) -> Buffer:
    """The numbers of a lane, of a buffer whose last dimension is the lane."""
    *rest, lanes = whole.sizes
    return replace(whole, sizes=(prod(rest), lanes), strides=(1, 0))


def in_lane(whole: Buffer, indices: Sequence[Index]) -> tuple[Index, Index]:
    """Which of a lane's numbers, and which lane."""
    at = Index()
    for size, i in zip(whole.sizes[:-1], indices[:-1], strict=True):
        at = at * size + i
    return at, indices[-1]


def scanned_by_lanes(planned: Planned, at: tuple[Index, ...], filled: Stmt) -> Stmt:
    """The scan of what `filled` stores; all of that comes first, so that all loads are under way."""
    stage = planned.stage
    assert stage.reduce and stage.scan
    *outer, lanes, each = planned.loops
    if lanes.kind != LANES or stage.scan not in each.axes or any(loop.kind in BOUND for loop in outer):
        allowed = "as its last loops lanes, and the elements of each of them"
        raise BadInput(f"stage {stage.name} is scanned along lanes", allowed=allowed)
    rows = [loop for loop in outer if stage.scan not in loop.axes]
    carry = Buffer(f"{stage.name}.carry", stage.dtype, (prod(loop.extent for loop in rows),), (1,), "register")
    row = Index()
    for loop in rows:
        row = row * loop.extent + iterator(loop.variable)
    joined = combined(stage.reduce, Read("a", (), stage.dtype), Read("b", (), stage.dtype))
    assert isinstance(joined, Binary)
    name = f"{SCAN}<{lanes.extent}, {each.extent}, {stage.dtype}, {joined.op}_{stage.dtype}>"
    first = tuple(i.substitute({each.variable: 0}) for i in at)
    own = Read(stage.name, first, stage.dtype)
    start = _over(rows, Store(carry.name, (row,), identity(stage.reduce, stage.dtype)))
    scanned = _over(outer, Call(name, (own, Read(carry.name, (row,), stage.dtype))))
    return sequence(filled, Alloc(carry, sequence(start, scanned)))


def _over(loops: Sequence[Loop], body: Stmt) -> Stmt:
    for loop in reversed(loops):
        body = For(loop.variable, loop.extent, UNROLL, body)
    return body
