"""The loop IR: functions of loops, guards, buffers and stores.

Indices are over the variables of enclosing loops. A value is a node of `operators.expr.nodes`, in which a `Read` names
a buffer. Once lowered, a vector loop has one store: all its iterations execute at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from deepgen.compiler.schedule.bounds import IndexBounds
from deepgen.compiler.schedule.state import Loop
from deepgen.compiler.schedule.steps import BLOCKS, THREADS, UNROLL, MemoryScope
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Read, Value, reads, with_indices, with_reads
from deepgen.vocabulary import dtype

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


@dataclass(frozen=True)
class Buffer:
    """Memory for one tensor: its sizes and strides, in elements.

    `lanes` is set if it is held in variables, each a vector of this many elements; `offset` if it is in the workspace,
    in bytes from the beginning of a thread's part, or of the part that all threads share.
    """

    name: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    scope: MemoryScope | Literal["parameter", "fragment"]  # fragments are operands of matrix products
    lanes: int = 0
    offset: int | None = None
    swizzle: int = 0  # of shared memory: how many bits of an address are XORed with bits of the row
    ahead: int = 1  # copies for double buffering: they are filled in iterations before those that read them

    @property
    def elements(self) -> int:
        return 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))

    @property
    def span(self) -> tuple[int, int]:
        """Its byte range in the workspace, or in shared memory."""
        assert self.offset is not None
        return self.offset, self.offset + self.elements * dtype(self.dtype).bytes

    @property
    def row_bits(self) -> int:
        """The lowest bit of a byte address that distinguishes rows; rows that together span less than all banks count
        as one."""
        row = self.sizes[-1] if len(self.strides) < 2 else self.strides[-2]
        return max(7, (row * dtype(self.dtype).bytes).bit_length() - 1)

    def swizzled(self, offset: Any) -> Any:
        """The place of an element, or of each in an array of them, in shared memory."""
        if not self.swizzle:
            return offset
        size = dtype(self.dtype).bytes
        at = offset * size
        return (at ^ ((at >> self.row_bits & (1 << self.swizzle) - 1) << 4)) // size


@dataclass(frozen=True)
class Seq:
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class For:
    """The variable runs from 0 while it is below the extent and below all limits.

    `stage` is the stage whose loop it is; `starts`, in a loop that initializes a reduction, is the loop that continues
    it.
    """

    variable: str
    extent: int
    kind: str
    body: Stmt
    limits: tuple[Index, ...] = ()
    stage: str = ""
    starts: str = ""


@dataclass(frozen=True)
class If:
    """`then` if no condition is negative, otherwise `otherwise`."""

    conditions: tuple[Index, ...]
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True)
class Alloc:
    """A buffer that exists while its body runs."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True)
class Store:
    """`reduce` is set if the value is combined with the element's old value.

    On a GPU: `joined` if the values of all threads along x are first combined in the same way; `ahead` if a copy to
    shared memory may stay in flight until the next wait.
    """

    buffer: str
    indices: tuple[Index, ...]
    value: Value
    reduce: str | None = None
    joined: str | None = None
    ahead: bool = False


@dataclass(frozen=True)
class Barrier:
    """A barrier for the threads of a block."""


class Callee(Protocol):
    """A hardware instruction or a function, described by data. Its name is the one used in emitted text."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Call:
    """An operation on places in buffers and on numbers.

    On a CPU it writes at the first place, and reads at the others.
    """

    what: Callee
    places: tuple[Read, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fence:
    """Keeps the compiler from hoisting loads of later statements above this point, where they would occupy
    registers."""


Stmt: TypeAlias = "Seq | For | If | Alloc | Store | Barrier | Fence | Call"


@dataclass(frozen=True)
class Function:
    """Parameters in the order of a call: tensors, then results."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Stmt
    shared_bytes: int = 0  # of workspace
    thread_bytes: int = 0  # of workspace, for each thread

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def buffers(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.parameters}


@dataclass(frozen=True)
class Launch:
    """A grid of blocks of threads along x, y and z, and the code of each thread. The blocks after these run
    `beside`. If each of them is a `cluster` of several blocks of the device, these share the threads along x."""

    name: str
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    body: Stmt
    shared_bytes: int = 0
    align: int = 1  # alignment of shared memory in bytes
    beside: tuple[Launch, ...] = ()
    cluster: int = 1

    @property
    def parts(self) -> tuple[Launch, ...]:
        return (replace(self, beside=()), *self.beside)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The ranges of the grid indices."""
        extents = dict(zip((*BLOCKS, *THREADS), (*self.blocks, *self.threads), strict=True))
        return {tag: (0, extent - 1) for tag, extent in extents.items()}


@dataclass(frozen=True)
class Program:
    """Launches in order. `scratch` are stages that one launch leaves for another. `early`: each may begin while the one
    before it still runs."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    early: bool = False

    @property
    def buffers(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in (*self.inputs, *self.outputs, *self.scratch)}


Lowered: TypeAlias = "Function | Program"


@dataclass(frozen=True)
class Machine:
    """What passes need to know about a target: the size of a CPU's vectors, and the lanes of a GPU's warp, 0 for a
    CPU; whether its launches may begin `early`, while the one before still runs."""

    vector_bytes: int = 16
    warp: int = 0
    early: bool = False


@dataclass(frozen=True)
class Around:
    """The context of a body: the whole program, the ranges of grid indices, and the machine."""

    whole: Lowered
    ranges: Mapping[str, tuple[int, int]]
    machine: Machine


def sequence(*statements: Stmt) -> Stmt:
    """Statements in sequence, without nesting."""
    flat = [inner for s in statements for inner in (s.body if isinstance(s, Seq) else (s,))]
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


EMPTY = Seq(())


def guarded(conditions: Sequence[Index], body: Stmt) -> Stmt:
    return If(tuple(conditions), body) if conditions else body


def unguarded(statement: Stmt) -> tuple[tuple[Index, ...], Stmt]:
    """The conditions under which a statement does something, and what that is."""
    if isinstance(statement, If) and statement.otherwise is None:
        return statement.conditions, statement.then
    return (), statement


def children(statement: Stmt) -> tuple[Stmt, ...]:
    if isinstance(statement, Seq):
        return statement.body
    if isinstance(statement, (For, Alloc)):
        return (statement.body,)
    if isinstance(statement, If):
        return (statement.then,) if statement.otherwise is None else (statement.then, statement.otherwise)
    return ()


def walk(statement: Stmt) -> Iterator[Stmt]:
    """Every statement, the outer ones first."""
    waiting = [statement]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += reversed(children(one))


def calls(statement: Stmt, kind: type[T]) -> Iterator[tuple[T, tuple[Read, ...]]]:
    """All calls of one kind, with their places."""
    return ((s.what, s.places) for s in walk(statement) if isinstance(s, Call) and isinstance(s.what, kind))


def held_in(statement: Stmt, scopes: Sequence[str]) -> frozenset[str]:
    """The buffers in these scopes that a statement allocates itself."""
    buffers = (s.buffer for s in walk(statement) if isinstance(s, Alloc))
    return frozenset(buffer.name for buffer in buffers if buffer.scope in scopes)


def with_children(statement: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with each child statement changed."""
    if isinstance(statement, Seq):
        return sequence(*(change(s) for s in statement.body))
    if isinstance(statement, (For, Alloc)):
        body = change(statement.body)
        return statement if body is statement.body else replace(statement, body=body)
    if isinstance(statement, If):
        then, otherwise = change(statement.then), statement.otherwise and change(statement.otherwise)
        same = then is statement.then and otherwise is statement.otherwise
        return statement if same else If(statement.conditions, then, otherwise)
    return statement


def with_indices_in(statement: Stmt, change: Callable[[Index], Index]) -> Stmt:
    """The statement with every index in it changed."""
    if isinstance(statement, Store):
        return with_value(statement, tuple(map(change, statement.indices)), with_indices(statement.value, change))
    inner = with_children(statement, lambda s: with_indices_in(s, change))
    if isinstance(inner, For):
        return replace(inner, limits=tuple(change(i) for i in inner.limits)) if inner.limits else inner
    if isinstance(inner, If):
        return replace(inner, conditions=tuple(change(i) for i in inner.conditions))
    if isinstance(inner, Call):
        moved = (replace(read, indices=tuple(change(i) for i in read.indices)) for read in inner.places)
        return replace(inner, places=tuple(moved))
    return inner


def with_value(store: Store, indices: tuple[Index, ...], value: Value) -> Store:
    """The same store of another value in another place: thousands of times in a kernel, and `replace` takes longer."""
    return Store(store.buffer, indices, value, store.reduce, store.joined, store.ahead)


def with_accesses(statement: Stmt, change: Callable[[str, tuple[Index, ...]], tuple[Index, ...]]) -> Stmt:
    """The statement with other indices in its own reads and writes: `change` gets the buffer's name and the indices."""

    def place(read: Read) -> Read:
        return replace(read, indices=change(read.tensor, read.indices))

    if isinstance(statement, Store):
        value = with_reads(statement.value, place)
        return replace(statement, indices=change(statement.buffer, statement.indices), value=value)
    if isinstance(statement, Call):
        return replace(statement, places=tuple(map(place, statement.places)))
    return statement


def accesses(statement: Stmt) -> tuple[Read, ...]:
    """The places that a statement itself reads and then writes; for a call, all of its places in order."""
    if isinstance(statement, Store):
        return (*reads(statement.value), Read(statement.buffer, statement.indices, statement.value.dtype))
    return statement.places if isinstance(statement, Call) else ()


def used(statement: Stmt) -> set[str]:
    """The buffers that are read or written in a statement."""
    return {read.tensor for s in walk(statement) for read in accesses(s)}


def written_in(statement: Stmt) -> set[str]:
    """The buffers that a statement writes: by stores, and by calls at their first place."""
    return {accesses(s)[-1 if isinstance(s, Store) else 0].tensor for s in walk(statement) if accesses(s)}


def read_in(statement: Stmt) -> set[str]:
    """The buffers that a statement reads, other than at the first places of calls."""
    parts = ((accesses(s)[:-1] if isinstance(s, Store) else accesses(s)[1:]) for s in walk(statement))
    return {read.tensor for part in parts for read in part}


@dataclass(frozen=True)
class Inside:
    """The context of a statement: buffers, and the ranges of loops."""

    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    bounds: IndexBounds = field(default_factory=IndexBounds)

    def inside(self, statement: Stmt) -> Self:
        if isinstance(statement, Alloc):
            return replace(self, buffers={**self.buffers, statement.buffer.name: statement.buffer})
        if isinstance(statement, For):
            return replace(self, bounds=self.bounds.inside(statement.variable, statement.extent))
        return self


def at(read: Read, by: Mapping[str, Index | int]) -> Read:
    """The read with iterators replaced by these indices."""
    return replace(read, indices=tuple(i.substitute(by) for i in read.indices))


def offset(buffer: Buffer, indices: Sequence[Index]) -> Index:
    """The offset from the beginning of a buffer, in elements."""
    total = Index()
    for i, stride in zip(indices, buffer.strides, strict=True):
        total = total + i * stride
    return total


def over(loops: Sequence[Loop | For], body: Stmt) -> Stmt:
    """The body in these loops, all of them to be unrolled."""
    for loop in reversed(loops):
        body = For(loop.variable, loop.extent, UNROLL, body)
    return body
