"""Values as expressions of the dialect that CUDA, HIP and the emulation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from deepgen.compiler.passes import bounds
from deepgen.compiler.passes.gpu.unrolled import HELD
from deepgen.compiler.passes.ir import Buffer
from deepgen.compiler.text.c_values import STORED, Scope, Text, arithmetic
from deepgen.operators.expr.index import Index, Iter, Quotient
from deepgen.operators.expr.nodes import Const, Read, Select, Value
from deepgen.vocabulary.dtypes import dtype

WIDEST = 16  # bytes that one instruction moves
_WIDE = 1 << 31  # from so many elements on, offsets have 64 bits


@dataclass(frozen=True)
class GpuScope(Scope):
    """`loaded` are reads that stand in variables already."""

    loaded: Mapping[Read, str] = field(default_factory=dict)

    def name(self, of: str) -> str:
        # No name of the dialect ends so.
        return self.names.of(f"{of}_")

    def index(self, of: Index, wide: bool = False) -> str:
        parts = []
        for atom, times in of.terms:
            text = self._atom(atom)
            text = f"(i64){text}" if wide else text
            parts.append(text if times == 1 else f"{text} * {times}")
        if of.constant or not parts:
            parts.append(str(of.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def _atom(self, atom: object) -> str:
        if isinstance(atom, Iter):
            return self.name(atom.name)
        assert hasattr(atom, "of") and hasattr(atom, "by")
        inner, low = self.index(atom.of), atom.of.bounds(self.ranges)[0]
        divides = isinstance(atom, Quotient)
        if low >= 0:
            return f"(int)((u32)({inner}) {'/' if divides else '%'} {atom.by}u)"
        return f"{'quotient' if divides else 'remainder_of'}({inner}, {atom.by})"

    def pointer(self, buffer: Buffer, offset: Index) -> str:
        return f"{self.name(buffer.name)} + ({self.index(offset, buffer.elements >= _WIDE)})"

    def place(self, buffer: Buffer, offset: Index) -> str:
        """The address in shared memory."""
        size = dtype(buffer.dtype).bytes
        text = f"({self.index(offset)}) * {size}"
        if buffer.swizzle:
            text = f"swizzled<{buffer.swizzle}, {row_bits(buffer)}>({text})"
        return f"{self.name(buffer.name)} + {text}"

    def element(self, buffer: Buffer, offset: Index) -> str:
        if buffer.scope in HELD:
            return f"{self.name(buffer.name)}[{self.index(offset)}]"
        if buffer.scope == "shared":
            return f"load_shared<{buffer.dtype}>({self.place(buffer, offset)})"
        return f"load_plain<{buffer.dtype}>({self.pointer(buffer, offset)})"

    def _read(self, read: Read) -> Text:
        buffer, kind = self.buffers[read.tensor], arithmetic(read.dtype)
        if read in self.loaded:
            return Text(widened(buffer, self.loaded[read]), kind)
        return Text(widened(buffer, self.element(buffer, read.indices[0])), kind)

    def together(self, buffer: Buffer, start: Index, extent: int) -> int:
        """How many of so many neighbours one instruction moves, of those that their place and size allow."""
        most = min(extent, WIDEST // dtype(buffer.dtype).bytes)
        aligned = gcd(start.constant, *(times for _, times in start.terms), most)
        return aligned & -aligned

    def all_hold(self, asked: tuple[Value, ...]) -> str:
        """Whether all conditions hold, without branches where they are limits of indices."""
        limits = [bounds.conditions(condition) for condition in asked]
        found = dict.fromkeys(limit for some in limits if some is not None for limit in some)
        others = [self.value(c).text for c, some in zip(asked, limits, strict=True) if some is None]
        return " & ".join([*(f"({self.index(limit)} >= 0)" for limit in found), *map("({})".format, others)]) or "true"


def moved_from(value: Value) -> tuple[Read, tuple[Value, ...]] | None:
    """What is copied as it is, and the conditions without which it is zero; None of what is computed."""
    asked: tuple[Value, ...] = ()
    while isinstance(value, Select) and value.otherwise == Const(0, value.dtype):
        asked, value = (*asked, value.condition), value.then
    return (value, asked) if isinstance(value, Read) else None


def widened(buffer: Buffer, text: str) -> str:
    return f"widen_{buffer.dtype}({text})" if buffer.dtype in STORED and buffer.scope not in HELD else text


def row_bits(buffer: Buffer) -> int:
    """From which bit of a place on rows are told apart; those of less than all banks count together."""
    row = (
        buffer.sizes[-1] * dtype(buffer.dtype).bytes
        if len(buffer.strides) < 2
        else buffer.strides[-2] * dtype(buffer.dtype).bytes
    )
    return max(7, row.bit_length() - 1)
