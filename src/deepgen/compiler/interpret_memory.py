"""The machine model of the loop IR interpreter: lanes, and memory that tracks what was written and by whom.

GPU threads, CPU threads and loop iterations are all lanes: each statement is executed for all lanes at once. That is
equivalent to running them one after the other, or in any order between two barriers, if no lane accesses what another
one writes meanwhile. `Touched` finds accesses that violate this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from deepgen.compiler.passes.ir import Buffer, Launch, Store
from deepgen.compiler.passes.pipeline import COMMIT
from deepgen.operators.expr.index import Index, Iter, Quotient
from deepgen.operators.expr.nodes import Read
from deepgen.vocabulary import dtype
from deepgen.vocabulary.dtypes import EIGHT_BITS, STORED, narrow, widen

Array: TypeAlias = "npt.NDArray[Any]"
Places: TypeAlias = "int | Array"
BLOCK, WARP, THREAD = "#block", "#warp", "#thread"  # names by which lanes look up their own
READ, WRITE, ADD = "read", "write", "add"
_AGAINST = {READ: (WRITE, ADD), WRITE: (WRITE, READ, ADD), ADD: (WRITE, READ)}
_NOBODY = np.iinfo(np.int32).max
_CHUNK = 128  # bytes per unit of swizzling
_MOST_ELEMENTS = 1 << 22  # of a buffer of all lanes
_REGISTERS = ("register", "warp", "fragment")  # a GPU's register scopes
JOINS: dict[str, Any] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "sum": np.add, "prod": np.multiply
}  # fmt: skip


class Finding(Exception):
    """Something that no correct function does, whatever its results."""


def arithmetic(name: str) -> np.dtype[Any]:
    """The format in which numbers of another format are computed."""
    return np.dtype(np.bool_) if name == "bool" else np.dtype(np.float32) if name in STORED else dtype(name).numpy()


def loaded(values: Array, name: str) -> Array:
    held = name in STORED and values.dtype == dtype(name).numpy()
    return widen(values, dtype(name)).astype(np.float32) if held else values


def stored(values: Array, name: str) -> Array:
    """Values in their storage format; bf16 and 8-bit floats as their bits, rounded to nearest even."""
    return narrow(values, dtype(name))


def cast(values: Array, name: str) -> Array:
    """Only 8-bit floats are rounded: these have too few bits to compute with more of them unnoticed."""
    return loaded(stored(values, name), name) if name in EIGHT_BITS else values.astype(arithmetic(name))


class LaneNumbers(NamedTuple):
    """One number per lane, or one for all, and which of them derive from uninitialized memory."""

    values: Array
    bad: Array | bool


@dataclass
class Lanes:
    """Values of variables for each lane; a single number if all lanes have the same."""

    count: int
    _own: dict[str, Places]
    _outer: Lanes | None = None
    _chosen: Array | None = None

    def __getitem__(self, name: str) -> Places:
        if name not in self._own:
            if self._outer is None:
                raise Finding(f"{name} is accessed outside its loop")
            value = self._outer[name]
            every = self._chosen is None or not isinstance(value, np.ndarray)
            self._own[name] = value if every else np.asarray(value)[self._chosen]
        return self._own[name]

    def having(self, name: str, value: Places) -> Lanes:
        return Lanes(self.count, {name: value}, self)

    def where(self, holds: Array) -> Lanes:
        chosen = np.flatnonzero(holds)
        return self if len(chosen) == self.count else Lanes(len(chosen), {}, self, chosen)

    def over(self, name: str, ends: Places) -> Lanes:
        """A lane for each iteration of a loop, in order."""
        counts = np.maximum(np.broadcast_to(ends, self.count), 0)
        chosen = np.repeat(np.arange(self.count), counts)
        starts = np.cumsum(counts) - counts
        return Lanes(len(chosen), {name: np.arange(len(chosen)) - starts[chosen]}, self, chosen)

    def at(self, index: Index) -> Places:
        total: Places = index.constant
        for atom, times in index.terms:
            if isinstance(atom, Iter):
                value = self[atom.name]
            else:
                inner = self.at(atom.of)
                value = inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
            total = total + value * times
        return total

    def holding(self, conditions: Sequence[Index]) -> Lanes:
        """The lanes for which no condition is negative."""
        lanes = self
        for condition in conditions:
            value = lanes.at(condition)
            if isinstance(value, np.ndarray):
                lanes = lanes.where(value >= 0)
            elif value < 0:
                return lanes.where(np.zeros(lanes.count, bool))
        return lanes


def room(buffer: Buffer) -> int:
    """Elements of a row, including those that swizzling reaches."""
    chunk = max(1, _CHUNK // dtype(buffer.dtype).bytes)
    return -(-buffer.elements // chunk) * chunk if buffer.swizzle else buffer.elements


@dataclass(eq=False)
class Cells:
    """What is tracked about memory: per element, or per byte if buffers share it."""

    unwritten: Array
    of_block: int = 0  # cells per block, in shared memory
    flying: Array | None = None  # a copy to it is in progress


@dataclass
class Memory:
    """A buffer of each lane, of each block, or of all: rows of elements."""

    buffer: Buffer
    data: Array
    cells: Cells
    owner: str  # name of the lanes that select the row; empty if there is one row
    level: int  # levels after this one share a row
    row: int  # elements from one row to the next
    start: int = 0  # elements between the starts of two rows
    constant: bool = False
    by: int = 1  # cells per element

    def places(self, indices: Sequence[Index], lanes: Lanes, flat: bool, doing: str) -> Places:
        """Places of elements in `data`."""
        buffer, values = self.buffer, [lanes.at(i) for i in indices]
        sizes, strides = ((buffer.elements,), (1,)) if flat else (buffer.sizes, buffer.strides)
        offset: Places = 0
        for value, size, stride in zip(values, sizes, strides, strict=True):
            low, high = (
                (value.min(initial=0), value.max(initial=0)) if isinstance(value, np.ndarray) else (value, value)
            )
            if lanes.count and (low < 0 or high >= size):
                raise Finding(f"{buffer.name} is {doing} at {low if low < 0 else high} of {size}")
            offset = offset + value * stride
        swizzled: Places = buffer.swizzled(offset)
        return self.row_of(lanes) + swizzled

    def row_of(self, lanes: Lanes) -> Places:
        return (lanes[self.owner] * self.row if self.owner else 0) + self.start

    def cells_of(self, places: Array) -> Array:
        by = self.by
        return places if by == 1 else (places[..., None] * by + np.arange(by)).reshape(*places.shape[:-1], -1)

    def unwritten(self, places: Places) -> Array | bool:
        """Which elements were never written, or False if all were."""
        at = np.asarray(places)
        if self.cells.flying is not None and self.cells.flying[self.cells_of(at.reshape(-1))].any():
            raise Finding(f"{self.buffer.name} is accessed before a copy into it has completed")
        bad = self.cells.unwritten[self.cells_of(at.reshape(-1))]
        if not bad.any():
            return False
        return np.asarray(bad.reshape(-1, self.by).any(axis=1).reshape(at.shape))

    def mark(self, places: Array, bad: Array | bool) -> None:
        self.cells.unwritten[self.cells_of(places)] = bad if isinstance(bad, bool) else np.repeat(bad, self.by)


@dataclass
class Touched:
    """The first and the last lane that read, wrote or added to each cell."""

    size: int
    ends: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def forget(self, row: int, rows: Array) -> None:
        """Forgets accesses made before a barrier, for the blocks with these rows."""
        for low, high in self.ends.values():
            low.reshape(-1, row)[rows] = _NOBODY
            high.reshape(-1, row)[rows] = -1

    def clash(self, kind: str, cells: Array, ids: Array) -> tuple[int, int] | None:
        """Two lanes whose accesses conflict; None if there are none."""
        if kind not in self.ends:
            self.ends[kind] = np.full(self.size, _NOBODY, np.int32), np.full(self.size, -1, np.int32)
        low, high = self.ends[kind]
        np.minimum.at(low, cells, ids)
        np.maximum.at(high, cells, ids)
        for other in _AGAINST[kind]:
            if other in self.ends:
                low, high = self.ends[other]
                below, above = low[cells], high[cells]
                bad = (below < ids) | (above > ids)
                if bad.any():
                    n = int(bad.argmax())
                    return int(ids[n]), int(below[n] if below[n] < ids[n] else above[n])
        return None


@dataclass
class Level:
    """Lanes that must be independent of each other: threads, or iterations."""

    name: str
    variables: list[str]
    threads: bool
    written: frozenset[str]  # buffers for which this has to be shown
    lanes: Lanes | None = None
    touched: dict[Cells, Touched] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return 1 if self.lanes is None else self.lanes.count

    def note(self, memory: Memory, kind: str, places: Places, lanes: Lanes) -> tuple[int, int] | None:
        if memory.buffer.name not in self.written or not lanes.count:
            return None
        at = np.asarray(places)
        at = at.reshape(-1) if at.ndim > 1 else np.broadcast_to(at, lanes.count)
        ids = np.broadcast_to(np.asarray(lanes[self.name], np.int32), lanes.count)
        ids = np.repeat(ids, len(at) // lanes.count)
        touched = self.touched.get(memory.cells)
        if touched is None:
            touched = self.touched[memory.cells] = Touched(len(memory.cells.unwritten))
        kind = WRITE if self.threads and kind == ADD else kind
        return touched.clash(kind, memory.cells_of(at), np.repeat(ids, memory.by))

    def same(self, inner: Level, pair: tuple[int, int]) -> bool:
        """Whether two lanes of an inner level belong to the same lane of this one."""
        assert inner.lanes is not None
        ids = inner.lanes[self.name]
        return not isinstance(ids, np.ndarray) or ids[pair[0]] == ids[pair[1]]

    def between(self, pair: tuple[int, int]) -> str:
        """The innermost variable in which two lanes differ."""
        assert self.lanes is not None
        one, other = pair
        for name in reversed(self.variables):
            values = self.lanes[name]
            if isinstance(values, np.ndarray) and values[one] != values[other]:
                return name
        return self.variables[0]


@dataclass
class Conflict(Exception):
    """Lanes of a level depend on each other's results; they differ in this variable."""

    level: Level
    variable: str


@dataclass
class Memories:
    """The memory that lanes of several levels share, and the operations in flight."""

    serial: set[str]
    levels: list[Level]
    flat: bool
    grid: Launch | None = None
    warp: int = 32
    workspace: tuple[int, int] = (0, 0)  # bytes shared by all threads, and bytes per thread
    memories: dict[str, Memory] = field(default_factory=dict)
    journals: list[dict[int, tuple[Array, Array]]] = field(default_factory=list)
    copies: list[tuple[int, Memory, Array, LaneNumbers, Lanes]] = field(default_factory=list)
    products: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)  # of copies and of products: how many were committed
    arena: Cells | None = None
    bytes: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    tiles: dict[str, Memory] = field(default_factory=dict)

    def fresh(self, buffer: Buffer, lanes: Lanes) -> Memory:
        held = buffer.lanes > 0 or (self.grid is not None and buffer.scope in _REGISTERS)
        kind = arithmetic(buffer.dtype) if held else dtype(buffer.dtype).numpy()
        if self.grid is not None and buffer.scope == "shared":
            if buffer.offset is not None:
                return self.in_arena(buffer, lanes)
            rows, owner, level = prod(self.grid.blocks), BLOCK, -1
        elif buffer.scope == "warp" and buffer.strides[-1] and self.grid is not None:
            rows, owner, level = self.levels[0].count, WARP, -1  # until each lane has its own rows
        else:
            rows, level = self.levels[-1].count, len(self.levels) - 1
            owner = self.levels[-1].name if level or self.grid is None else THREAD
            if buffer.offset is not None:
                self.check_apart(buffer)
        if rows * (row := room(buffer)) > _MOST_ELEMENTS and level > 0 and not self.levels[-1].threads:
            raise Conflict(self.levels[-1], self.levels[-1].variables[-1])
        cells = Cells(np.ones(rows * row, bool), row if owner == BLOCK else 0)
        return Memory(buffer, np.zeros(rows * row, kind), cells, owner, level, row)

    def in_arena(self, buffer: Buffer, lanes: Lanes) -> Memory:
        """A buffer at its place in shared memory, where others may have been before it."""
        assert self.grid is not None and buffer.offset is not None
        blocks, size, whole = prod(self.grid.blocks), dtype(buffer.dtype).bytes, -(-self.grid.shared_bytes // 128) * 128
        if buffer.span[1] > self.grid.shared_bytes:
            raise Finding(f"{buffer.name} reaches beyond the {self.grid.shared_bytes} bytes of shared memory")
        if self.arena is None:
            self.bytes, self.arena = np.zeros(blocks * whole, np.uint8), Cells(np.ones(blocks * whole, bool), whole)
        view = self.bytes.view(dtype(buffer.dtype).numpy())
        memory = Memory(buffer, view, self.arena, BLOCK, -1, whole // size, buffer.offset // size, by=size)
        rows = np.unique(np.asarray(memory.row_of(lanes)))
        memory.mark((rows[:, None] + np.arange(buffer.elements)).reshape(-1), True)
        return memory

    def check_apart(self, buffer: Buffer) -> None:
        """Checks that workspace buffers that are live at the same time do not overlap, and lie within it."""
        own = any(level.threads for level in self.levels)
        start, end = buffer.span
        if end > self.workspace[own]:
            raise Finding(f"{buffer.name} reaches beyond the {self.workspace[own]} bytes of its workspace")
        for name, other in self.memories.items():
            both = other.buffer.offset is not None and own == any(x.threads for x in self.levels[: other.level + 1])
            if both and other.buffer.span[0] < end and start < other.buffer.span[1]:
                raise Finding(f"{buffer.name} overlaps {name}")

    def teams(self, lanes: Lanes, size: int, doing: str) -> int:
        """The number of teams of this many threads. Every team must be complete."""
        ids = np.asarray(lanes["#0"]).reshape(-1)
        if len(ids) % size or (ids.reshape(-1, size) != ids[::size, None] // size * size + np.arange(size)).any():
            raise Finding(f"some threads of {size} do not {doing}")
        return len(ids) // size

    def places(self, read: Read | Store, lanes: Lanes, doing: str) -> tuple[Memory, Places]:
        name = read.buffer if isinstance(read, Store) else read.tensor
        if name not in self.memories:
            raise Finding(f"{name} is {doing} where it does not exist")
        return self.memories[name], self.memories[name].places(read.indices, lanes, self.flat, doing)

    def note(self, memory: Memory, kind: str, places: Places, lanes: Lanes) -> None:
        for depth, level in enumerate(self.levels[memory.level + 1 :], memory.level + 1):
            pair = level.note(memory, kind, places, lanes)
            if pair is None:
                continue
            if not level.threads:
                raise Conflict(level, level.between(pair))
            outer = self.levels[max(0, depth - 1)]
            if depth and not outer.same(level, pair):
                raise Conflict(outer, outer.variables[-1])
            what = "read" if kind == READ else "written"
            raise Finding(f"{memory.buffer.name} is {what} by thread {pair[0]} while thread {pair[1]} uses it")

    def may_change(self, memory: Memory, kind: str, places: Array, lanes: Lanes) -> None:
        if memory.constant:
            raise Finding(f"{memory.buffer.name} is an input, but is written")
        memory.unwritten(places)
        self.note(memory, kind, places, lanes)
        for journal in self.journals:
            for array in (memory.data, memory.cells.unwritten):
                journal.setdefault(id(array), (array, array.copy()))

    def write(self, memory: Memory, places: Array, numbers: LaneNumbers, lanes: Lanes) -> None:
        """Stores the numbers in their storage format."""
        self.may_change(memory, WRITE, places, lanes)
        memory.data[places] = numbers.values
        memory.mark(places.reshape(-1), np.broadcast_to(numbers.bad, places.shape).reshape(-1))

    def added(self, op: str, memory: Memory, places: Array, numbers: LaneNumbers, lanes: Lanes) -> None:
        """Adds to each element, one lane after the other."""
        self.may_change(memory, ADD, places, lanes)
        JOINS[op].at(memory.data, places, numbers.values.astype(memory.data.dtype))
        if not isinstance(numbers.bad, bool):
            memory.mark(places[np.broadcast_to(numbers.bad, places.shape)], True)

    def fly(self, memory: Memory, places: Array, numbers: LaneNumbers, lanes: Lanes) -> None:
        """A copy that completes when it is waited for: until then its destination may not be accessed."""
        self.may_change(memory, WRITE, places, lanes)
        cells = memory.cells
        if cells.flying is None:
            cells.flying = np.zeros(len(cells.unwritten), bool)
        cells.flying[memory.cells_of(places)] = True
        self.copies.append((self.groups.get(COMMIT.name, 0), memory, places, numbers, lanes))

    def land(self, newest: int) -> None:
        """Completes the copies of all groups before this one."""
        for _, memory, places, numbers, lanes in [copy for copy in self.copies if copy[0] < newest]:
            assert memory.cells.flying is not None
            memory.cells.flying[memory.cells_of(places)] = False
            self.write(memory, places, numbers, lanes)
        self.copies = [copy for copy in self.copies if copy[0] >= newest]
