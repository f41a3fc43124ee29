"""Hoists guards: a guard that does not depend on a loop is tested before it, and one that does becomes a loop bound. A
vector's guard is tested once for all its elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import TypeGuard

from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    For,
    If,
    Inside,
    Seq,
    Stmt,
    Store,
    guarded,
    sequence,
    unguarded,
    walk,
    with_children,
    with_indices_in,
)
from deepgen.compiler.schedule.bounds import IndexBounds, conditions
from deepgen.compiler.schedule.steps import PARALLEL, SERIAL, UNROLL, VECTOR
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import BOOL, Binary, Cast, Const, Read, Select, Value, children, reads, replaced
from deepgen.operators.expr.nodes import walk as walk_value
from deepgen.vocabulary import dtype


def guards(statement: Stmt, around: Around | None = None) -> Stmt:
    statement = with_children(statement, guards)
    if isinstance(statement, Alloc) and _plain(statement.body):
        return replace(statement.body, then=replace(statement, body=statement.body.then))
    if isinstance(statement, For) and _plain(statement.body):
        return _out_of_loop(statement, statement.body)
    return statement


def _plain(statement: Stmt) -> TypeGuard[If]:
    return isinstance(statement, If) and statement.otherwise is None


def _out_of_loop(loop: For, guard: If) -> Stmt:
    before, limits, inside = [], list(loop.limits), []
    for condition in guard.conditions:
        limit = limit_of(loop, condition)
        if loop.variable not in condition.iterators:
            before.append(condition)
        elif limit is not None:
            limits.append(limit)
        else:
            inside.append(condition)
    inner = replace(loop, body=guarded(inside, guard.then), limits=tuple(dict.fromkeys(limits)))
    return guarded(before, inner)


def limit_of(loop: For, condition: Index) -> Index | None:
    """The limit below which the loop's variable satisfies a condition."""
    times = condition.step(loop.variable)
    if loop.kind not in (SERIAL, PARALLEL) or times is None or times >= 0:
        return None
    return (condition - iterator(loop.variable) * times) // -times + 1


def edges(body: Stmt, around: Around) -> Stmt:
    """A vector that is entirely inside is stored or added at once; only one at the edge tests each element."""
    body = with_children(body, lambda one: edges(one, around))
    if not (isinstance(body, For) and body.kind == VECTOR):
        return body
    asked, inner = unguarded(body.body)
    chosen = _at_end(body.variable, inner)
    guards = (*asked, *(c for _, some in chosen for c in some))
    if any((step := condition.step(body.variable)) is None or step >= 0 for condition in guards):
        return body
    if all(_all_or_none(body, condition) for condition in guards):
        return body  # tested once in any case
    last = tuple(dict.fromkeys(condition.substitute({body.variable: body.extent - 1}) for condition in guards))
    if isinstance(inner, Store):
        for select, _ in chosen:
            inner = replace(inner, value=replaced(inner.value, select, select.then))
    return If(last, replace(body, body=inner), body)


def _at_end(variable: str, body: Stmt) -> list[tuple[Select, tuple[Index, ...]]]:
    """The choices between an element to add and none, past the end of a part: of elements one after the other."""
    if not isinstance(body, Store) or body.reduce is None:
        return []
    selects = [node for node in walk_value(body.value) if isinstance(node, Select)]
    asked = [(select, conditions(select.condition) or ()) for select in selects]
    return [(one, some) for one, some in asked if some and all(c.step(variable) == -1 for c in some)]


def _all_or_none(loop: For, condition: Index) -> bool:
    """Whether it holds for all elements of a vector whenever it holds for the first."""
    first = condition.substitute({loop.variable: 0})
    apart = gcd(*(times for _, times in first.terms))
    return apart > 0 and first.constant % apart >= -(condition.step(loop.variable) or 0) * (loop.extent - 1)


_LEAST_ROUNDS = {SERIAL: 3, UNROLL: 1}  # of loops that are written out, each round has its code in any case


def rounds(body: Stmt, around: Around) -> Stmt:
    """Loops whose guard holds for all but the last rounds have these on their own: the loads of all others stand in no
    branch, and many are on their way at the same time."""
    return _Rounds(bounds=IndexBounds(around.ranges)).of(body)


@dataclass(frozen=True)
class _Rounds(Inside):
    def of(self, statement: Stmt) -> Stmt:
        statement = with_children(statement, self.inside(statement).of)
        if not isinstance(statement, For) or statement.kind not in _LEAST_ROUNDS or not _only_stores(statement.body):
            return statement
        guard = _guard(statement.body)
        allowed = (self._rounds(statement, asked) for asked in (*statement.limits, *guard.conditions))
        whole = min([statement.extent, *allowed])
        if whole < _LEAST_ROUNDS[statement.kind]:
            return statement
        first = replace(statement, extent=whole, body=guard.then, limits=())
        if whole == statement.extent:
            return first
        later = {statement.variable: iterator(statement.variable) + whole}
        rest = with_indices_in(statement.body, lambda index: index.substitute(later))
        limits = tuple(limit - whole for limit in statement.limits)
        return sequence(first, replace(statement, extent=statement.extent - whole, body=rest, limits=limits))

    def _rounds(self, loop: For, asked: Index) -> int:
        """The rounds that a limit of the loop, or a condition in it, allows in any case."""
        if asked in loop.limits:
            return max(0, asked.bounds(self.bounds.ranges)[0])
        limit = limit_of(replace(loop, kind=SERIAL), asked)
        if limit is not None:
            return max(0, limit.bounds(self.bounds.ranges)[0])
        return loop.extent if asked.bounds({**self.bounds.ranges, loop.variable: (0, loop.extent - 1)})[0] >= 0 else 0


def _guard(body: Stmt) -> If:
    """The guard of a loop's body; of a vector, that of its last element."""
    asked, inner = unguarded(body.body) if isinstance(body, For) and body.kind == VECTOR else ((), body)
    if (
        isinstance(body, For)
        and asked
        and all((step := c.step(body.variable)) is not None and step <= 0 for c in asked)
    ):
        last = tuple(one.substitute({body.variable: body.extent - 1}) for one in asked)
        return If(last, replace(body, body=inner))
    return body if isinstance(body, If) else If((), body)


def _only_stores(body: Stmt) -> bool:
    return all(isinstance(s, (For, If, Alloc, Seq)) or (isinstance(s, Store) and not s.joined) for s in walk(body))


MOST_ROOM = 256  # elements past the end of a buffer's last row that may be read to compute values beside the results


def pads(body: Stmt, around: Around) -> Stmt:
    stages = {s.variable: s.stage for s in walk(body) if isinstance(s, For)}
    fixed = around.whole.buffers
    passed = _Pads(fixed, stages=stages, fixed=frozenset(fixed))
    return _with_room(passed.of(body), passed.room)


def windows(body: Stmt, around: Around) -> Stmt:
    """As `pads`, for elements that a thread of a GPU keeps in registers and takes only from inside a tensor: a branch
    for each row of a window makes its loads wait for those of the row before.
    """
    stages = {s.variable: s.stage for s in walk(body) if isinstance(s, For)}
    buffers = around.whole.buffers
    return _Pads(buffers, stages=stages, fixed=frozenset(buffers), selected=True).of(body)


def _with_room(statement: Stmt, room: Mapping[str, int]) -> Stmt:
    if isinstance(statement, Alloc) and (more := room.get(statement.buffer.name, 0)):
        *sizes, last = statement.buffer.sizes
        statement = replace(statement, buffer=replace(statement.buffer, sizes=(*sizes, last + more)))
    return with_children(statement, lambda s: _with_room(s, room))


@dataclass(frozen=True)
class _Pads(Inside):
    stages: Mapping[str, str] = field(default_factory=dict)  # variable -> the stage whose loop it is
    fixed: frozenset[str] = frozenset()  # buffers whose sizes cannot be changed
    room: dict[str, int] = field(default_factory=dict)  # elements to be added after the last one of other buffers
    selected: bool = False  # only elements that are zero, or another constant, outside of a tensor

    def of(self, statement: Stmt) -> Stmt:
        if isinstance(statement, If) and isinstance(statement.then, Store) and statement.otherwise is None:
            return self._guarded(statement, statement.then)
        return with_children(statement, self.inside(statement).of)

    def _guarded(self, guard: If, store: Store) -> Stmt:
        if self.buffers[store.buffer].scope != "register" or (self.selected and not _is_selected(store)):
            return guard
        if not self._writes_once(store):
            return guard
        kept = list(guard.conditions)
        for condition in guard.conditions:
            left = [c for c in kept if c != condition]
            facts = map(self.bounds.simple, left)  # indices are compared with them in their simplest form
            if self._chooses_elements(condition, store) and self._safe(store, self.bounds.assuming(facts)):
                kept = left
                self._make_room(store.value)
        if len(kept) == len(guard.conditions):
            return guard
        return guarded(kept, store)

    def _writes_once(self, store: Store) -> bool:
        """Whether the loops of its stage reach each element once, also without guards: parts of a loop that was split
        again may overlap, and sums would be added to twice."""
        for index in map(self.bounds.simple, store.indices):
            terms = ((abs(times), atom, Index(((atom, 1),)).iterators) for atom, times in index.terms)
            own = [(times, atom) for times, atom, names in terms if store.buffer in map(self.stages.get, names)]
            reach = 0
            for times, atom in sorted(own, key=lambda one: one[0]):
                if not isinstance(atom, Iter) or times <= reach:
                    return False
                reach += times * self.bounds.ranges[atom.name][1]
        return True

    def _chooses_elements(self, condition: Index, store: Store) -> bool:
        """Whether a guard only selects which elements exist: one over a reduction's loops also keeps terms out of
        sums."""
        written = frozenset().union(*(i.iterators for i in store.indices))
        return all(name in written for name in condition.iterators if self.stages[name] == store.buffer)

    def _safe(self, store: Store, bounds: IndexBounds) -> bool:
        return self._within(store.buffer, store.indices, bounds) and self._harmless(store.value, bounds)

    def _within(self, buffer: str, indices: tuple[Index, ...], bounds: IndexBounds) -> bool:
        sizes = self.buffers[buffer].sizes
        simple = [bounds.simple(i) for i in indices]
        inside = [bounds.always(i) and bounds.always(n - 1 - i) for i, n in zip(simple, sizes, strict=True)]
        return all(inside) or (all(inside[:-1]) and bounds.always(simple[-1]) and self._beyond(buffer, simple[-1]) > 0)

    def _beyond(self, buffer: str, last: Index) -> int:
        """How far an index reaches past the rows of a buffer that can be enlarged after its last one; 0 for other
        buffers."""
        of = self.buffers[buffer]
        if of.scope != "global" or buffer in self.fixed or of.strides[-1] != 1:
            return 0
        beyond = last.bounds(self.bounds.ranges)[1] - of.sizes[-1] + 1
        return beyond if 0 < beyond <= MOST_ROOM else 0

    def _make_room(self, value: Value) -> None:
        for read in reads(value):
            if read.indices:
                beyond = self._beyond(read.tensor, self.bounds.simple(read.indices[-1]))
                self.room[read.tensor] = max(self.room.get(read.tensor, 0), beyond)

    def _harmless(self, value: Value, bounds: IndexBounds) -> bool:
        if isinstance(value, Read):
            return self._within(value.tensor, value.indices, bounds)
        if _needs_numbers(value):
            return False
        asked = conditions(value.condition) if isinstance(value, Select) else None
        if isinstance(value, Select) and asked is not None:
            inside = bounds.assuming(map(bounds.simple, asked) if self.selected else asked)
            return self._harmless(value.then, inside) and self._harmless(value.otherwise, bounds)
        return all(self._harmless(child, bounds) for child in children(value))


def _is_selected(store: Store) -> bool:
    """Whether it stores an element of a tensor or, outside of it, a constant."""
    value = store.value
    if store.reduce or not isinstance(value, Select) or not isinstance(value.otherwise, Const):
        return False
    return isinstance(value.then, Read)


def _needs_numbers(value: Value) -> bool:
    """Whether it must not be computed from uninitialized memory, which may be zero or NaN."""
    if isinstance(value, Cast) and value.value.dtype != BOOL:
        return dtype(value.dtype).integer and not dtype(value.value.dtype).integer
    return isinstance(value, Binary) and value.op == "div" and dtype(value.dtype).integer
