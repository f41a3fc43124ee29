"""An interpreter of the loop IR: what a function or a program computes, after any pass.

Each statement is executed for all lanes at once (`interpret_memory.py`). Loop iterations are lanes if they are
independent, and run one after the other if not. Data races between threads are findings, as are out-of-bounds accesses
and results computed from uninitialized data, which is tracked along with the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from deepgen.compiler.interpret_calls import OPERATIONS, called, unary
from deepgen.compiler.interpret_memory import (
    BLOCK,
    JOINS,
    READ,
    THREAD,
    WARP,
    Array,
    Cells,
    Conflict,
    Finding,
    LaneNumbers,
    Lanes,
    Level,
    Memories,
    Memory,
    Places,
    Touched,
    arithmetic,
    cast,
    loaded,
    stored,
)
from deepgen.compiler.intrinsics.matrix import PRODUCTS
from deepgen.compiler.intrinsics.tiles import TILES, block_of
from deepgen.compiler.passes.ir import (
    Alloc,
    Barrier,
    Buffer,
    Call,
    For,
    Function,
    If,
    Launch,
    Lowered,
    Seq,
    Stmt,
    Store,
    accesses,
    walk,
)
from deepgen.compiler.schedule.steps import BLOCKS, BOUND, LANES, PARALLEL, THREADS
from deepgen.operators.expr.nodes import BOOL, Binary, Cast, Const, Logic, Place, Read, Select, Unary, Value
from deepgen.vocabulary import dtype
from deepgen.vocabulary.dtypes import STORED

_MOST_LANES = 1 << 15
_COMPARE: dict[str, Any] = {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal}
_NO, _YES = Const(0, BOOL), Const(1, BOOL)
_OPERATIONS = {**OPERATIONS, **_COMPARE}


def interpret(
    lowered: Lowered,
    inputs: Mapping[str, Array],
    *,
    in_step: bool = False,
    warp: int = 32,
    serial: set[str] | None = None,
) -> dict[str, Array]:
    """Returns the results. `in_step`: the threads of a block execute statements in lockstep, as before barriers are
    placed. `serial`: variables of loops whose iterations depend on each other; more are added."""
    serial = set() if serial is None else serial
    with np.errstate(all="ignore"):
        if isinstance(lowered, Function):
            lanes = Lanes(1, {"#0": 0})
            root = Level("#0", [], threads=False, written=frozenset(), lanes=lanes)
            workspace = lowered.shared_bytes, lowered.thread_bytes
            machine = Interpreter(serial, [root], _flat(lowered.body), workspace=workspace)
            machine.memories |= {b.name: _parameter(b, inputs.get(b.name)) for b in lowered.parameters}
            machine.run(lowered.body, lanes)
            return {b.name: _result(machine.memories[b.name]) for b in lowered.outputs}
        memories = {b.name: _parameter(b, inputs.get(b.name)) for b in lowered.buffers.values()}
        flat = all(_flat(part.body) for launch in lowered.launches for part in launch.parts)
        for launch in lowered.launches:
            _launch(launch, memories, serial, in_step, warp, flat)
        return {b.name: _result(memories[b.name]) for b in lowered.outputs}


def _launch(
    whole: Launch, memories: Mapping[str, Memory], serial: set[str], in_step: bool, warp: int, flat: bool
) -> None:
    before, touched = 0, dict[Cells, Touched]()
    for launch in whole.parts:
        count, threads = prod(launch.blocks) * prod(launch.threads), prod(launch.threads)
        ids = np.arange(count)
        own: dict[str, Places] = {
            "#0": ids + before,
            THREAD: ids,
            BLOCK: ids // threads,
            WARP: ids // launch.threads[0],
        }
        step = 1
        for tag, extent in zip((*THREADS, *BLOCKS), (*launch.threads, *launch.blocks), strict=True):
            own[tag] = ids // step % extent if extent > 1 else 0
            step *= extent
        own |= {s.variable: own[s.kind] for s in walk(launch.body) if isinstance(s, For) and s.kind in BOUND}
        written = frozenset() if in_step else frozenset(_written(launch.body))
        level = Level("#0", [], threads=True, written=written, lanes=(lanes := Lanes(count, own)), touched=touched)
        machine = Interpreter(serial, [level], flat, grid=launch, warp=warp, memories=dict(memories))
        machine.run(launch.body, lanes)
        if machine.copies:
            raise Finding(f"launch {launch.name} ends with copies still in flight")
        before += count


def _parameter(buffer: Buffer, values: Array | None) -> Memory:
    data = np.zeros(buffer.elements, dtype(buffer.dtype).numpy()) if values is None else values.reshape(-1).copy()
    return Memory(buffer, data, Cells(np.full(buffer.elements, values is None)), "", -1, 0, constant=values is not None)


def _result(memory: Memory) -> Array:
    bad = np.flatnonzero(memory.cells.unwritten)
    if len(bad):
        place = ", ".join(map(str, np.unravel_index(bad[0], memory.buffer.sizes)))
        raise Finding(f"{memory.buffer.name}[{place}] is never written, or computed from uninitialized data")
    return memory.data.reshape(memory.buffer.sizes)


def _flat(body: Stmt) -> bool:
    """Whether every access has one offset."""
    return all(len(place.indices) == 1 for s in walk(body) for place in accesses(s))


def _written(body: Stmt) -> Iterator[str]:
    for s in walk(body):
        if isinstance(s, Store):
            yield s.buffer
        elif isinstance(s, Call):
            yield from (place.tensor for place in s.places[:2])


@dataclass
class Interpreter(Memories):
    cache: dict[int, tuple[bool, frozenset[str]]] = field(default_factory=dict)

    # Statements

    def run(self, statement: Stmt, lanes: Lanes) -> None:
        if not lanes.count:
            return
        if isinstance(statement, Seq):
            for one in statement.body:
                self.run(one, lanes)
        elif isinstance(statement, For):
            self.loop(statement, lanes)
        elif isinstance(statement, If):
            holding = lanes.holding(statement.conditions)
            self.run(statement.then, holding)
            if statement.otherwise is not None and holding is not lanes:
                self.run(statement.otherwise, self.others(statement, lanes))
        elif isinstance(statement, Alloc):
            outer = self.memories
            self.memories = {**outer, statement.buffer.name: self.fresh(statement.buffer, lanes)}
            self.run(statement.body, lanes)
            self.memories = outer
        elif isinstance(statement, Store):
            self.store(statement, lanes)
        elif isinstance(statement, Barrier):
            self.barrier(lanes)
        elif isinstance(statement, Call):
            called(self, statement, lanes)

    def barrier(self, lanes: Lanes) -> None:
        assert self.grid is not None
        self.teams(lanes, prod(self.grid.threads), "reach a barrier")
        blocks = np.unique(np.asarray(lanes[BLOCK]))
        for cells, touched in self.levels[0].touched.items():
            if cells.of_block:
                touched.forget(cells.of_block, blocks)

    def others(self, guard: If, lanes: Lanes) -> Lanes:
        holds = np.ones(lanes.count, bool)
        for condition in guard.conditions:
            holds &= np.asarray(lanes.at(condition)) >= 0
        return lanes.where(~holds)

    def ends(self, loop: For, lanes: Lanes) -> Places:
        end: Places = loop.extent
        for limit in loop.limits:
            end = np.minimum(end, lanes.at(limit))
        return end if isinstance(end, np.ndarray) and end.ndim else int(end)

    def loop(self, loop: For, lanes: Lanes) -> None:
        if loop.kind in PRODUCTS and self.grid is not None:
            lanes = lanes.where(np.broadcast_to(np.asarray(lanes[LANES]) == 0, lanes.count))  # one lane for its warp
        ends = self.ends(loop, lanes)
        if loop.kind in BOUND:
            self.run(loop.body, lanes)
        elif loop.kind in TILES:
            self.tile(loop, lanes)
        elif loop.kind == PARALLEL:
            self.together(loop, lanes, ends, threads=True)
        elif not self.expands(loop, lanes) or not self.together(loop, lanes, ends, threads=False):
            for n in range(int(np.max(ends))):
                some = lanes.where(ends > n) if isinstance(ends, np.ndarray) else lanes
                self.run(loop.body, some.having(loop.variable, n))

    def expands(self, loop: For, lanes: Lanes) -> bool:
        if (
            loop.extent == 1
            or loop.kind in BOUND
            or loop.variable in self.serial
            or lanes.count * loop.extent > _MOST_LANES
        ):
            return False
        return not self.about(loop)[0]

    def about(self, loop: For) -> tuple[bool, frozenset[str]]:
        """Whether a loop contains synchronization between threads or tile operations, and which buffers it writes."""
        if id(loop) not in self.cache:
            inside = list(walk(loop.body))
            meets = any(
                isinstance(s, Barrier)
                or (isinstance(s, Call) and self.grid is not None)
                or (isinstance(s, Store) and (s.joined or s.ahead))
                or (isinstance(s, Alloc) and s.buffer.scope == "shared")
                or getattr(s, "kind", "") in TILES
                for s in inside
            )
            self.cache[id(loop)] = meets, frozenset(_written(loop.body))
        return self.cache[id(loop)]

    def together(self, loop: For, lanes: Lanes, ends: Places, *, threads: bool) -> bool:
        """Runs all iterations at once. Returns False, with no effect, if they depend on each other."""
        level = Level(f"#{len(self.levels)}", [loop.variable], threads, self.about(loop)[1])
        inner, body = lanes.over(loop.variable, ends), loop.body
        other = (PARALLEL, *TILES, *(PRODUCTS if loop.kind not in PRODUCTS else ()))
        while not threads and isinstance(body, For) and body.kind not in other and self.expands(body, inner):
            level.variables.append(body.variable)
            inner, body = inner.over(body.variable, self.ends(body, inner)), body.body
        level.lanes = inner.having(level.name, np.arange(inner.count))
        depth, memories = len(self.levels), dict(self.memories)
        self.levels.append(level)
        self.journals.append({})
        try:
            self.run(body, level.lanes)
            return True
        except Conflict as conflict:
            if threads or conflict.level is not level:
                raise
            self.serial.add(conflict.variable)
        except Finding:
            if threads:
                raise
            self.serial.add(loop.variable)  # may be caused by the order; if not, it is found again
        finally:
            del self.levels[depth:]
            journal = self.journals.pop()
        self.memories = memories
        for array, before in journal.values():
            array[...] = before
        return self.together(loop, lanes, ends, threads=threads) if loop.variable not in self.serial else False

    def store(self, store: Store, lanes: Lanes) -> None:
        numbers = self.value(store.value, lanes)
        memory, at = self.places(store, lanes, "written")
        self.own_lane(store, memory, lanes)
        places = np.broadcast_to(np.asarray(at), lanes.count)
        if store.joined:
            numbers = self.joined(store.joined, numbers, lanes)
        if store.reduce and memory.buffer.dtype not in STORED:
            self.added(store.reduce, memory, places, numbers, lanes)
            return
        if store.reduce:
            before = self.loaded(memory, places, lanes)
            numbers = LaneNumbers(JOINS[store.reduce](before.values, numbers.values), before.bad | numbers.bad)
        held = memory.data.dtype == np.float32
        exact = numbers.values.astype(np.float32) if held else stored(numbers.values, memory.buffer.dtype)
        numbers = LaneNumbers(exact, numbers.bad)
        if store.ahead:
            self.fly(memory, places, numbers, lanes)
        else:
            self.write(memory, places, numbers, lanes)

    def own_lane(self, access: Store | Read, memory: Memory, lanes: Lanes) -> None:
        each = memory.buffer.scope == "warp" and memory.owner != WARP and memory.buffer.sizes[1] > 1
        if each and not self.flat and np.any(lanes.at(access.indices[1]) != np.asarray(lanes[LANES])):
            raise Finding(f"a lane uses {memory.buffer.name} of another one")

    def joined(self, op: str, numbers: LaneNumbers, lanes: Lanes) -> LaneNumbers:
        assert self.grid is not None
        team = self.grid.threads[0]
        rows = self.teams(lanes, team, "join what they reduced")
        whole = np.broadcast_to(numbers.values, lanes.count).reshape(rows, team)
        bad = np.broadcast_to(numbers.bad, lanes.count).reshape(rows, team).any(axis=1)
        if team > self.warp and self.arena is not None:
            used = prod(self.grid.threads) // self.warp * 8  # bytes through which warps exchange values
            by_block = self.arena.unwritten.reshape(prod(self.grid.blocks), -1)
            by_block[:, :used] = True
        return LaneNumbers(np.repeat(JOINS[op].reduce(whole, axis=1), team), np.repeat(bad, team))

    # Values

    def loaded(self, memory: Memory, places: Places, lanes: Lanes) -> LaneNumbers:
        self.note(memory, READ, places, lanes)
        bad = memory.unwritten(places)
        values = memory.data[places]
        held = memory.data.dtype == np.float32
        return LaneNumbers(values if held else loaded(np.asarray(values), memory.buffer.dtype), bad)

    def value(self, value: Value, lanes: Lanes) -> LaneNumbers:
        if isinstance(value, Const):
            return LaneNumbers(np.asarray(value.value).astype(arithmetic(value.dtype)), False)
        if isinstance(value, Place):
            return LaneNumbers(np.asarray(lanes.at(value.index)).astype(arithmetic(value.dtype)), False)
        if isinstance(value, Read):
            memory, places = self.places(value, lanes, "read")
            self.own_lane(value, memory, lanes)
            return self.loaded(memory, places, lanes)
        if isinstance(value, Cast):
            inner, kind = self.value(value.value, lanes), arithmetic(value.dtype)
            if kind.kind in "iu" and inner.values.dtype.kind == "f" and np.any(inner.bad):
                raise Finding("uninitialized data is converted to an integer")
            return LaneNumbers(cast(inner.values, value.dtype), inner.bad)
        if isinstance(value, Unary):
            inner = self.value(value.value, lanes)
            return LaneNumbers(unary(value.op, inner.values), inner.bad)
        if isinstance(value, Select):
            return self.chosen(value.condition, value.then, value.otherwise, lanes)
        if isinstance(value, Logic):
            then, otherwise = (value.right, _NO) if value.op == "and" else (_YES, value.right)
            return self.chosen(value.left, then, otherwise, lanes)
        left, right = self.value(value.left, lanes), self.value(value.right, lanes)
        if isinstance(value, Binary) and value.op == "div":
            if left.values.dtype.kind == "f":
                return LaneNumbers(left.values / right.values, left.bad | right.bad)
            if np.any(right.bad):
                raise Finding("an integer is divided by uninitialized data")
            by = np.where(right.values == 0, right.values.dtype.type(1), right.values)
            return LaneNumbers(np.floor_divide(left.values, by), left.bad)
        return LaneNumbers(_OPERATIONS[value.op](left.values, right.values), left.bad | right.bad)

    def chosen(self, condition: Value, then: Value, otherwise: Value, lanes: Lanes) -> LaneNumbers:
        """The value that is not chosen is not read."""
        asked = self.value(condition, lanes)
        holds = np.broadcast_to(asked.values, lanes.count)
        if holds.all() or not holds.any():
            one = self.value(then if holds.all() else otherwise, lanes)
            return LaneNumbers(one.values, one.bad | asked.bad)
        yes, no = (self.value(v, lanes.where(h)) for v, h in ((then, holds), (otherwise, ~holds)))
        values = np.empty(lanes.count, np.result_type(yes.values, no.values))
        bad = np.array(np.broadcast_to(asked.bad, lanes.count))
        for part, chosen in ((yes, holds), (no, ~holds)):
            values[chosen] = part.values
            bad[chosen] |= part.bad
        return LaneNumbers(values, bad if bad.any() else False)

    def tile(self, loop: For, lanes: Lanes) -> None:
        """Sums in tiles: what the loops add to an element of their buffer is added to a tile register instead."""
        nest = [loop]
        while isinstance(nest[-1].body, For):
            nest.append(nest[-1].body)
        guard = nest[-1].body
        store = guard.then if isinstance(guard, If) else guard
        assert isinstance(store, Store)
        block = block_of(loop.kind, [one.extent for one in nest])
        if block.name not in self.tiles:
            raise Finding(f"{block.name} accumulates into tiles that were not zeroed")
        for one in nest:
            lanes = lanes.over(one.variable, one.extent)
        lanes = lanes.holding(guard.conditions) if isinstance(guard, If) else lanes
        memory = self.tiles[block.name]
        down, row, across, column, *_ = (np.asarray(lanes[one.variable]) for one in nest)
        places = ((down * block.rows + row) * block.across + across) * block.tile.lanes + column
        self.added("sum", memory, places + memory.row_of(lanes), self.value(store.value, lanes), lanes)
