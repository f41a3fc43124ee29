"""Values as expressions of C, CUDA and HIP: scalars, or C vectors inside a vector loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from deepgen.compiler.intrinsics.vectors import ALTERNATE, BYTES, PRODUCTS, conversion, either
from deepgen.compiler.passes.ir import Alloc, Buffer, For
from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.text.dialect import C, Dialect, Names, arithmetic, constant, narrowed, stored, widened
from deepgen.operators.expr.index import Atom, Index, Iter, Quotient
from deepgen.operators.expr.nodes import BOOL, Binary, Cast, Compare, Const, Place, Read, Select, Unary, Value, reads
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.dtypes import EIGHT_BITS, STORED

S = TypeVar("S", bound="Scope")
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&",
    "or": "|",
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """An expression, its element type, and its number of elements."""

    text: str
    type: str
    lanes: int = 1

    @property
    def name(self) -> str:
        return self.type if self.lanes == 1 else f"{self.type}x{self.lanes}"


@dataclass(frozen=True)
class Scope:
    """The context of a value's code."""

    names: Names
    buffers: Mapping[str, Buffer]
    ranges: Mapping[str, tuple[int, int]]
    vector: For | None = None
    used: set[tuple[str, int]] = field(default_factory=set)  # vector types in use, and functions on them
    dialect: Dialect = C

    def inside(self: S, around: For | Alloc) -> S:
        """The scope of a statement's body."""
        if isinstance(around, Alloc):
            return replace(self, buffers={**self.buffers, around.buffer.name: around.buffer})
        return replace(self, ranges={**self.ranges, around.variable: (0, around.extent - 1)})

    def by_lanes(self: S, loop: For) -> S:
        """The scope inside a vector loop, whose iterations are lanes."""
        return replace(self.inside(loop), vector=loop)

    def name(self, of: str) -> str:
        return self.names.of(of + self.dialect.own)

    def index(self, of: Index, wide: bool = False) -> str:
        parts: list[tuple[bool, str]] = []
        for atom, times in of.terms:
            text = f"(i64){self._atom(atom)}" if wide else self._atom(atom)
            by = abs(times) if self.dialect.minus else times
            parts.append((times < 0 and self.dialect.minus, text if by == 1 else f"{text} * {by}"))
        if of.constant or not parts:
            parts.append((of.constant < 0, str(abs(of.constant))))
        (negative, first), *others = sorted(parts, key=lambda part: part[0])
        return ("-" if negative else "") + first + "".join(f" {'-' if minus else '+'} {text}" for minus, text in others)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Iter):
            return self.name(atom.name)
        inner, divides = self.index(atom.of), isinstance(atom, Quotient)
        if atom.of.bounds(self.ranges)[0] >= 0:
            return self.dialect.quotient.format(inner, "/" if divides else "%", atom.by)
        return f"{'quotient' if divides else 'remainder_of'}({inner}, {atom.by})"

    def address(self, buffer: str, offset: Index) -> str:
        return f"{self.name(buffer)}[{self.index(offset)}]"

    def all_there(self, conditions: Sequence[Index]) -> str:
        """Whether none of these is negative."""
        return " && ".join(f"{self.index(condition)} >= {self.dialect.zero}" for condition in conditions)

    # Reading and writing elements

    def element(self, buffer: Buffer, offset: Index) -> str:
        """One element, in its storage format."""
        if not buffer.lanes:
            return self.address(buffer.name, offset)
        place, lane = divmod(offset.constant, buffer.lanes)
        return self.variable(buffer, place) + (f"[{lane}]" if buffer.lanes > 1 else "")

    def number(self, buffer: Buffer, offset: Index) -> str:
        """One element, in the format for arithmetic."""
        element = self.element(buffer, offset)
        return element if buffer.lanes else widened(buffer.dtype, element)

    def variable(self, buffer: Buffer, place: int) -> str:
        return self.name(f"{buffer.name} {place}")

    def along(self, offset: Index) -> int | None:
        """The stride of an offset between lanes; None if it is not constant."""
        assert self.vector is not None
        return offset.step(self.vector.variable)

    def lane(self, of: Index, lane: int) -> Index:
        assert self.vector is not None
        return of.substitute({self.vector.variable: lane})

    def vector_at(self, buffer: Buffer, offset: Index) -> str:
        """The address of a whole vector in memory, or the variable that holds it."""
        assert self.vector is not None
        lanes, start = self.vector.extent, self.lane(offset, 0)
        if buffer.lanes:
            return self.variable(buffer, start.constant // lanes)
        self.need(arithmetic(buffer.dtype), lanes)
        if buffer.dtype in STORED:
            self.used.add((BYTES if buffer.dtype in EIGHT_BITS else "u16", lanes))
        return f"{stored(buffer)}x{lanes}(&{self.address(buffer.name, start)}"

    def need(self, kind: str, lanes: int) -> None:
        if lanes > 1:
            self.used.add((kind, lanes))

    def copied(self, value: Value, of: Buffer) -> str | None:
        """A value in its storage format, if a float of 16 or 8 bits is only copied; None if it is computed."""
        if of.dtype not in STORED or of.lanes or value.dtype != of.dtype:
            return None
        if isinstance(value, Const) and value.value == 0:
            return "0" if self.vector is None else f"({stored(of)}x{self.vector.extent}){{0}}"
        if isinstance(value, Select) and not (self.vector and self.value(value.condition).lanes > 1):
            then, otherwise = self.copied(value.then, of), self.copied(value.otherwise, of)
            return f"({self.value(value.condition).text} ? {then} : {otherwise})" if then and otherwise else None
        if not isinstance(value, Read) or self.buffers[value.tensor].lanes:
            return None
        buffer, (offset,) = self.buffers[value.tensor], value.indices
        if self.vector is None:
            return self.element(buffer, offset)
        kind = f"{stored(of)}x{self.vector.extent}"
        return f"({kind})at_{self.vector_at(buffer, offset)})" if self.along(offset) == 1 else None

    def as_stored(self, value: Value, of: Buffer) -> str:
        """A vector of values in their storage format."""
        copied = self.copied(value, of)
        if copied is not None:
            return copied
        text = self.whole(unrounded(value, of))
        return narrowed(of.dtype, text.text, text.lanes)

    # Values

    def value(self, value: Value) -> Text:
        text = self._value(value)
        if text.type != BOOL:
            self.need(text.type, text.lanes)
        return text

    def whole(self, value: Value) -> Text:
        """A value as a vector, with a number for every lane of the vector loop."""
        text = self.value(value)
        assert self.vector is not None
        return self._spread(text, self.vector.extent)

    def _spread(self, text: Text, lanes: int) -> Text:
        if text.lanes == lanes:
            return text
        self.need(text.type, lanes)
        return Text(f"all_{text.type}x{lanes}({text.text})", text.type, lanes)

    def _value(self, value: Value) -> Text:
        if isinstance(value, Const):
            return Text(constant(value), arithmetic(value.dtype))
        if isinstance(value, Place):
            return self._place(value)
        if isinstance(value, Read):
            return self._read(value)
        if isinstance(value, Cast):
            cast = self._cast(self.value(self._in_32_bits(value.value)), arithmetic(value.dtype))
            return self._rounded(cast, value.dtype) if value.dtype in EIGHT_BITS else cast
        if isinstance(value, Unary):
            inner = self.value(value.value)
            minus = value.op == "neg" and not dtype(inner.type).integer
            text = f"(-{inner.text})" if minus else f"{value.op}_{inner.name}({inner.text})"
            return replace(inner, text=text)
        if isinstance(value, Select):
            return self._select(value)
        sides = (value.left, value.right)
        products = self._products(value)
        if products is not None:
            return products
        decided = isinstance(value, Compare) and all(isinstance(side, (Place, Const)) for side in sides)
        if decided:
            small = [self._in_32_bits(side) for side in sides]
            sides = (small[0], small[1]) if {side.dtype for side in small} == {"i32"} else sides
        left, right = self._alike(*map(self.value, sides))
        if isinstance(value, Binary):
            return replace(left, text=joined(value.op, left, right))
        if decided and left.lanes == 1 and (zero := self.dialect.zero) != "0":
            left = replace(left, text=zero if left.text == "0" else f"{left.text} + {zero}")
        if left.lanes == 1:
            op = {"and": "&&", "or": "||"}.get(value.op) or _INFIX[value.op]
            return Text(f"({left.text} {op} {right.text})", BOOL)
        text = f"({left.text} {_INFIX[value.op]} {right.text})"
        return self._mask(text, left) if isinstance(value, Compare) else replace(left, text=text)

    def _products(self, value: Value) -> Text | None:
        """Vectors of products of 16-bit numbers, added to vectors of 32 bits: one instruction on many CPUs."""
        product = value.right if isinstance(value, Binary) and value.op == "add" else None
        if not isinstance(product, Binary) or product.op != "mul" or product.dtype != "i32" or self.vector is None:
            return None
        sides = [side.value for side in (product.left, product.right) if isinstance(side, Cast)]
        assert isinstance(value, Binary)
        if [side.dtype for side in sides] != ["i16", "i16"] or not all(map(self._in_lanes, (value.left, product))):
            return None
        lanes = self.vector.extent
        self.used.add((PRODUCTS, lanes))
        left, right = (self.whole(side).text for side in sides)
        return Text(f"add_products_i16x{lanes}({self.whole(value.left).text}, {left}, {right})", "i32", lanes)

    def _in_lanes(self, value: Value) -> bool:
        """Whether a value reads different elements in each lane."""
        return any(self._varies(index) for read in reads(value) for index in read.indices)

    def _place(self, value: Place) -> Text:
        kind = arithmetic(value.dtype)
        if self.vector is None or self.vector.variable not in value.index.iterators:
            text = f"({self.index(value.index)})"
            return Text(text if kind == "i64" else f"(({kind}){text})", kind)
        lanes = range(self.vector.extent)
        return self._listed(kind, [f"({kind})({self.index(self.lane(value.index, n))})" for n in lanes])

    def _listed(self, kind: str, numbers: Sequence[str]) -> Text:
        self.need(kind, len(numbers))
        return Text(f"(({kind}x{len(numbers)}){{{', '.join(numbers)}}})", kind, len(numbers))

    def _in_32_bits(self, value: Value) -> Value:
        """Indices in vectors with 32 bits, if they fit: a vector holds twice as many as with 64 bits."""
        if isinstance(value, Const) and value.dtype == "i64" and abs(value.value) < 1 << 31:
            return replace(value, dtype="i32")
        if isinstance(value, Place) and value.dtype == "i64" and self._varies(value.index):
            low, high = value.index.bounds(self.ranges)
            return replace(value, dtype="i32") if low >= -(1 << 31) and high < 1 << 31 else value
        return value

    def _varies(self, of: Index) -> bool:
        """Whether an index differs between lanes."""
        return self.vector is not None and self.vector.variable in of.iterators

    def _read(self, read: Read) -> Text:
        buffer, (offset,) = self.buffers[read.tensor], read.indices
        kind = arithmetic(buffer.dtype)
        if self.vector is None or self.vector.variable not in offset.iterators:
            return Text(self.number(buffer, offset), kind)
        lanes, along = self.vector.extent, self.along(offset)
        if along == 1 and buffer.lanes:
            return Text(self.vector_at(buffer, offset), kind, lanes)
        if along not in (1, 2) or buffer.lanes:
            return self._listed(kind, [self.number(buffer, self.lane(offset, n)) for n in range(lanes)])
        load = "at_" if along == 1 else ALTERNATE
        if along == 2:
            self.used.add((f"{ALTERNATE}{stored(buffer)}", lanes))
        return Text(widened(buffer.dtype, f"{load}{self.vector_at(buffer, offset)})", lanes), kind, lanes)

    def _cast(self, text: Text, kind: str) -> Text:
        if text.type == kind:
            return text
        if text.type == BOOL:
            raise BadInput("a condition cannot be a number", allowed="use a choice between two numbers instead")
        if text.lanes == 1:
            return Text(f"(({kind}){text.text})", kind)
        function = conversion(text.type, kind)
        if function is not None:
            self.need(function, text.lanes)
            return Text(f"{function}x{text.lanes}({text.text})", kind, text.lanes)
        self.need(kind, text.lanes)
        return Text(f"__builtin_convertvector({text.text}, {kind}x{text.lanes})", kind, text.lanes)

    def _rounded(self, text: Text, name: str) -> Text:
        """A number that an 8-bit float can be: these have too few bits to compute with more of them unnoticed."""
        self.need(BYTES, text.lanes)
        return replace(text, text=widened(name, narrowed(name, text.text, text.lanes), text.lanes))

    def _select(self, value: Select) -> Text:
        condition = self.value(value.condition)
        then, otherwise = self._alike(self.value(value.then), self.value(value.otherwise))
        if condition.lanes == 1:
            cast = f"({then.name})" if then.lanes > 1 else ""  # vectors in memory have a separate type
            return replace(then, text=f"({condition.text} ? {cast}{then.text} : {cast}{otherwise.text})")
        then, otherwise = (self._spread(text, condition.lanes) for text in (then, otherwise))
        mask = f"__builtin_convertvector({condition.text}, {then.name}_mask)"
        return replace(then, text=f"pick_{then.name}({mask}, {then.text}, {otherwise.text})")

    def _alike(self, left: Text, right: Text) -> tuple[Text, Text]:
        lanes = max(left.lanes, right.lanes)
        return self._as_lanes(left, lanes), self._as_lanes(right, lanes)

    def _as_lanes(self, text: Text, lanes: int) -> Text:
        if text.type != BOOL:
            return self._spread(text, lanes)
        if text.lanes == lanes:
            return text
        self.need("i32", lanes)
        return Text(f"all_i32x{lanes}(-(i32)({text.text}))", BOOL, lanes)

    def _mask(self, text: str, of: Text) -> Text:
        """All masks have the same type, whatever was compared."""
        self.need("i32", of.lanes)
        return Text(f"__builtin_convertvector({text}, i32x{of.lanes})", BOOL, of.lanes)


def unrounded(value: Value, of: Buffer) -> Value:
    """A value that a buffer rounds anyway."""
    if isinstance(value, Cast) and value.dtype in EIGHT_BITS and value.dtype == of.dtype and not of.lanes:
        return replace(value, dtype="f32")
    return value


_REDUCES = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def nothing(op: str, kind: str) -> Const:
    """The neutral element of an operation."""
    return identity(_REDUCES[op], kind)


def joined(op: str, left: Text, right: Text) -> str:
    """Two numbers or vectors combined."""
    if op in _INFIX and not dtype(left.type).integer:
        return f"({left.text} {_INFIX[op]} {right.text})"
    return f"{op}_{left.name}({left.text}, {right.text})"


def scan_function(op: str, kind: str, lanes: int) -> str:
    """The C function that scans vectors of this many numbers; gcc has shuffles of this form from 12 on."""
    name = f"{kind}x{lanes}"
    steps = []
    for bit in range(lanes.bit_length() - 1):
        moved = ", ".join(str(lanes - (1 << bit) + n) for n in range(lanes))
        before = Text(f"__builtin_shufflevector(none, x, {moved})", kind, lanes)
        steps.append(f"    x = {joined(op, before, Text('x', kind, lanes))};")
    one = joined(op, Text("x[n - 1]", kind), Text("x[n]", kind))
    steps.insert(0, f"    const {name} none = all_{name}({constant(nothing(op, kind))});")
    head = f"static inline {name} scan_{op}_{name}({name} x) {{"
    return either(head, steps, f"    for (int n = 1; n < {lanes}; n++) x[n] = {one};", "    return x;\n}\n")
