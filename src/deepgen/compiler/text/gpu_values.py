"""Values as expressions of the dialect that CUDA, HIP and the emulation share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from math import frexp, gcd
from typing import TypeAlias

from deepgen.compiler.passes.ir import Buffer, For, If, Seq, Stmt, Store, unguarded
from deepgen.compiler.passes.simplify import HELD
from deepgen.compiler.schedule import bounds
from deepgen.compiler.schedule.steps import VECTOR
from deepgen.compiler.text.dialect import CUDA, Dialect, arithmetic, constant, widened
from deepgen.compiler.text.values import Scope, Text
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import PLACED, Binary, Const, Read, Select, Unary, Value, children, reads
from deepgen.vocabulary import dtype
from deepgen.vocabulary.dtypes import STORED

Asked: TypeAlias = "tuple[tuple[Value, bool], ...]"  # conditions, and whether they must hold
ONE_PLUS_ERF, ROUNDED = "one_plus_erf", "rounded"
_LEAST_DIVISOR = 2.0**-100
WIDEST = 16  # bytes that one instruction moves
_WIDE = 1 << 31  # from this many elements on, offsets have 64 bits


@dataclass(frozen=True)
class GpuScope(Scope):
    """`loaded` are reads that are already in variables; a value is `rounded` if it is stored in 16 bits, `alike` if all
    that the launch stores are, and loaded `early` if threads wait for each other before it is used."""

    dialect: Dialect = CUDA
    rounded: bool = False
    alike: bool = False
    early: bool = False
    loaded: Mapping[Read, str] = field(default_factory=dict)

    def pointer(self, buffer: Buffer, offset: Index) -> str:
        return f"{self.name(buffer.name)} + ({self.index(offset, buffer.elements >= _WIDE)})"

    def place(self, buffer: Buffer, offset: Index) -> str:
        """The address in shared memory."""
        size = dtype(buffer.dtype).bytes
        text = f"({self.index(offset)}) * {size}"
        if buffer.swizzle:
            text = f"swizzled<{buffer.swizzle}, {buffer.row_bits}>({text})"
        return f"{self.name(buffer.name)} + {text}"

    def at(self, buffer: Buffer, offset: Index) -> str:
        return self.place(buffer, offset) if buffer.scope == "shared" else self.pointer(buffer, offset)

    def element(self, buffer: Buffer, offset: Index) -> str:
        if buffer.scope in HELD:
            return self.address(buffer.name, offset)
        kind = "shared" if buffer.scope == "shared" else "early" if self.early else "plain"
        return f"load_{kind}<{buffer.dtype}>({self.at(buffer, offset)})"

    def _value(self, value: Value) -> Text:
        if isinstance(value, Binary) and value.op in PLACED:
            return Text(f"{value.op}_f32({self.value(value.left).text}, {self.value(value.right).text})", "i64")
        function = (self.one_rounded(value) if self.rounded else None) or one_function(value)
        if function is None:
            return self.quotient(value) or super()._value(value)
        name, operand = function
        return Text(f"{name}_f32({self.value(operand).text})", "f32")

    def one_rounded(self, value: Value) -> tuple[str, Value] | None:
        """The function that is exact enough for a result of 16 bits, and its operand. Exponentials of a row are summed
        too, and computed once if both are the same function."""
        match value:
            case Binary("add", Const(1.0, "f32"), Unary("erf", x)) | Binary("add", Unary("erf", x), Const(1.0, "f32")):
                return ONE_PLUS_ERF, x
            case Unary("exp" | "sigmoid" as name, x) if value.dtype == "f32":
                held = any(self.buffers[read.tensor].scope in HELD for read in reads(x))
                return None if held and not self.alike else (f"{name}_{ROUNDED}", x)
        return None

    def quotient(self, value: Value) -> Text | None:
        """A division without those of its instructions that only serve rare operands."""
        if not isinstance(value, Binary) or (value.op, value.dtype) != ("div", "f32"):
            return None
        if value.left == Const(1.0, "f32"):
            return Text(f"inverse_f32({self.value(value.right).text})", "f32")
        by = float(value.right.value) if isinstance(value.right, Const) else 0.0
        if not _LEAST_DIVISOR <= abs(by) <= 1 / _LEAST_DIVISOR or abs(frexp(by)[0]) == 0.5:
            return None  # a division by a power of two is a product
        number = constant(Const(by, "f32"))
        return Text(f"divided_f32({self.value(value.left).text}, {number}, 1 / {number})", "f32")

    def _read(self, read: Read) -> Text:
        buffer = self.buffers[read.tensor]
        text = self.loaded.get(read) or self.element(buffer, read.indices[0])
        return Text(text if buffer.scope in HELD else widened(buffer.dtype, text), arithmetic(read.dtype))

    def _select(self, value: Select) -> Text:
        """A stored number is chosen before it is widened: the widening needs no condition then, and waits for the load
        outside of any branch, so that other loads are in flight meanwhile."""
        read = value.then
        if not isinstance(read, Read) or value.otherwise != Const(0, value.dtype) or read in self.loaded:
            return super()._select(value)
        buffer = self.buffers[read.tensor]
        if buffer.scope in HELD or buffer.dtype not in STORED:
            return super()._select(value)
        condition, kind = self.value(value.condition).text, buffer.dtype
        chosen = f"({condition} ? {self.element(buffer, read.indices[0])} : {kind}{{}})"
        return Text(widened(kind, chosen), arithmetic(read.dtype))

    def together(self, buffer: Buffer, start: Index, extent: int) -> int:
        """How many contiguous elements one instruction moves, given their alignment and size."""
        most = min(extent, WIDEST // dtype(buffer.dtype).bytes)
        aligned = gcd(start.constant, *(times for _, times in start.terms), most)
        return aligned & -aligned

    def all_hold(self, asked: tuple[Value, ...]) -> str:
        """Whether all conditions hold, without branches for conditions that are limits of indices."""
        limits = [bounds.conditions(condition) for condition in asked]
        every = dict.fromkeys(limit for some in limits if some is not None for limit in some)
        others = [self.value(c).text for c, some in zip(asked, limits, strict=True) if some is None]
        return " & ".join([*(f"({self.index(limit)} >= 0)" for limit in every), *map("({})".format, others)]) or "true"


def one_function(value: Value) -> tuple[str, Value] | None:
    """The function that a value in f32 computes with several others, and its operand: log(1 + exp(-|x|)), and
    exp(x) - 1 as 2 * t / (1 - t), where t is tanh(x / 2)."""
    if not isinstance(value, (Unary, Binary)) or value.dtype != "f32":
        return None
    one, two, half = (Const(number, "f32") for number in (1.0, 2.0, 0.5))
    match value:
        case Unary("log", Binary("add", Unary("exp", Unary("neg", Unary("abs", x))), last)) if last == one:
            return "log1p_exp", x
        case Binary("div", Binary("mul", Unary("tanh", Binary("mul", x, by)) as t, times), Binary("sub", whole, other)):
            if (by, times, whole, other) == (half, two, one, t):
                return "expm1", x
    return None


def moved_from(value: Value) -> tuple[Read, tuple[Value, ...]] | None:
    """The read that is copied, and the conditions without which the value is zero; None if the value is computed."""
    asked: tuple[Value, ...] = ()
    while isinstance(value, Select) and value.otherwise == Const(0, value.dtype):
        asked, value = (*asked, value.condition), value.then
    return (value, asked) if isinstance(value, Read) else None


CALL = "gathered<"
_HELD = 8  # runs that a thread loads before it stores them
_REGISTERS, _MOST = 65536, 255  # per block, and per thread
_BYTES = 2  # element size for which this is worthwhile


def at_once(threads: int) -> int:
    """How many runs a thread may load before it stores the first: they take most of its registers."""
    return min(_MOST, _REGISTERS // threads) * 3 // 4 // 8


@dataclass(frozen=True)
class Gather:
    """The code of a copy: each of `parts` parts loads `each` runs; `load` and `store` handle one run."""

    kind: str  # type of a run
    name: str  # the variable of its loop, empty if there is one run
    parts: int
    each: int
    load: str
    store: str

    def lines(self, held: str = "") -> list[str]:
        """The whole code; with `held`, values loaded before are stored from there."""
        if held:
            return self.over(f"{self.store.format(held=held)};")
        body = [f"{self.kind} held[{self.each}];", *self.over(f"held[part] = {self.load};")]
        body += self.over(f"{self.store.format(held='held')};")
        head = f"DG_NO_UNROLL for (int turn = 0; turn < {self.parts}; ++turn) {{" if self.parts > 1 else "{"
        return [head, *(f"    {line}" for line in body), "}"]

    def over(self, line: str) -> list[str]:
        """The loop over runs."""
        place = f"    const int {self.name} = {f'turn * {self.each} + ' if self.parts > 1 else ''}part;"
        head = f"DG_UNROLL for (int part = 0; part < {self.each}; ++part) {{"
        return [head, *([place] if self.name else []), f"    {line}", "}"]


def gather(loop: For, scope: GpuScope, written: Set[str]) -> Gather | None:
    """The copy that a loop performs, or None if it is not such a copy."""
    asked, run = _inside(loop.body) if loop.kind != VECTOR else ((), loop)
    if run is None or not isinstance(run.body, Store) or not run.body.ahead:
        return None
    store, variable, buffers = run.body, run.variable, scope.buffers
    to, moved = buffers.get(store.buffer), moved_from(store.value)
    if to is None or moved is None or moved[0].tensor in written or moved[0].tensor not in buffers:
        return None
    read, conditions = moved
    source, zero = buffers[read.tensor], {variable: 0}
    apart = read.indices[0].step(variable)
    first, last = read.indices[0].substitute(zero), store.indices[0].substitute(zero)
    if apart is None or apart < 2 or source.scope != "parameter":
        return None
    if source.dtype != to.dtype or dtype(to.dtype).bytes != _BYTES or to.scope != "shared":
        return None
    if scope.together(to, last, run.extent) < run.extent:
        return None
    name, iterations = (scope.name(loop.variable), loop.extent) if run is not loop else ("", 1)
    parts = -(-iterations // _HELD)
    each = -(-iterations // parts)
    there = [f"({scope.index(condition)} >= 0)" for condition in asked]
    there += [f"({name} < {scope.index(limit)})" for limit in loop.limits]
    there += [f"({name} < {iterations})"] if each * parts > iterations else []
    real = " & ".join([*there, *([scope.all_hold(conditions)] if conditions else [])]) or "true"
    load = f"{CALL}{to.dtype}, {run.extent}>({scope.pointer(source, first)}, {apart}, {real})"
    guard = f"if ({' & '.join(there)}) " if there else ""
    stored = f"{guard}write_shared<{run.extent}>({scope.place(to, last)}, {{held}}[part])"
    return Gather(f"Vec<{to.dtype}, {run.extent}>", name, parts, each, load, stored)


def _inside(body: Stmt) -> tuple[tuple[Index, ...], For | None]:
    """The loop over a run, and the conditions under which it is executed."""
    asked, body = unguarded(body)
    return asked, body if isinstance(body, For) and body.kind == VECTOR else None


def done_in(statement: Stmt) -> Iterator[tuple[tuple[Index, ...], Stmt]]:
    """The statements in sequence, each with its conditions."""
    if isinstance(statement, Seq):
        for one in statement.body:
            yield from done_in(one)
    elif isinstance(statement, If) and statement.otherwise is None:
        for asked, one in done_in(statement.then):
            yield (*statement.conditions, *asked), one
    else:
        yield (), statement


def reads_if(value: Value, asked: Asked) -> Iterator[tuple[Read, Asked]]:
    """Reads, with the conditions under which they are executed; a condition's own reads are excluded."""
    if isinstance(value, Read):
        yield value, asked
    elif isinstance(value, Select):
        yield from reads_if(value.then, (*asked, (value.condition, True)))
        yield from reads_if(value.otherwise, (*asked, (value.condition, False)))
    else:
        for child in children(value):
            yield from reads_if(child, asked)
