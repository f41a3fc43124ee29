"""Loops over the elements of a tensor, and what is computed in them.

What does not change along the inner loops is computed outside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from deepgen_triton_cpu.lowering.axes import Bounds, Seen
from deepgen_triton_cpu.lowering.c_types import computed, constant_of, literal, widened
from deepgen_triton_cpu.lowering.elementwise import expression
from deepgen_triton_cpu.lowering.ir import Block, Op, Value
from deepgen_triton_cpu.lowering.shapes import ZERO, Index, linear, reshaped
from deepgen_triton_cpu.lowering.uses import conjuncts

if TYPE_CHECKING:
    from deepgen_triton_cpu.lowering.writer import Writer

SIMD = "#pragma omp simd"


def source_indices(op: Op, indices: Sequence[Index]) -> list[Index]:
    """Where an element of a view lies in what it is a view of."""
    shape = op.operands[0].type.shape
    if op.name == "tt.broadcast":
        return [ZERO if size == 1 else index for size, index in zip(shape, indices, strict=True)]
    if op.name == "tt.expand_dims":
        axis = op.integer("axis")
        return [index for place, index in enumerate(indices) if place != axis]
    if op.name == "tt.trans":
        out = [ZERO] * len(indices)
        for place, of in enumerate(op.integers("order")):
            out[of] = indices[place]
        return out
    return reshaped(shape, op.result.type.shape, indices)


class Nest:
    """One loop for each dimension that is longer than 1, in `order`, outermost first."""

    def __init__(self, writer: Writer, shape: Sequence[int], order: Sequence[int] | None = None) -> None:
        self._writer, self.shape = writer, tuple(shape)
        self.dims = [d for d in (order if order is not None else range(len(shape))) if shape[d] > 1]
        names = {d: writer.fresh("i") for d in self.dims}
        self.indices = [Index(names[d], self.dims.index(d) + 1) if d in names else ZERO for d in range(len(self.shape))]
        self.depth = len(self.dims)
        self.inmost = max(self.depth, 1)  # the level of what is computed inside the innermost loop
        self.outer: list[list[str]] = [[] for _ in range(self.inmost)]
        self.inner: list[str] = []
        self.before: list[str] = []  # the innermost loop
        self.after: list[str] = []
        self._computed_values: dict[tuple[Value, tuple[Index, ...]], Index] = {}
        self._holding: frozenset[Value] = frozenset()  # masks that hold, or fail, wherever the innermost loop goes
        self._failing: Value | None = None

    def holding(self, mask: Value) -> None:
        """Loads in the innermost loop need not ask for this mask."""
        self._holding = conjuncts(mask)

    def assume(self, mask: Value, holds: bool) -> None:
        """The mask holds, or fails, wherever the innermost loop goes."""
        self._holding, self._failing = (conjuncts(mask), None) if holds else (frozenset(), mask)
        self._computed_values[(mask, self._own(mask))] = Index(str(int(holds)))

    def put(self, level: int, line: str) -> None:
        (self.inner if level >= self.inmost else self.outer[level]).append(line)

    def keep(self, element: str, text: str, level: int) -> Index:
        """A name for what an expression gives."""
        name = self._writer.fresh("t")
        self.put(level, f"{constant_of(computed(element))} {name} = {text};")
        return Index(name, level)

    def at(self, value: Value, indices: Sequence[Index] | None = None) -> Index:
        """An element of a value: its name, and the level at which it is known."""
        if not value.type.tensor:
            return Index(self._writer.scalar(value))
        own = self._own(value, indices)
        key = (value, own)
        if key not in self._computed_values:
            self._computed_values[key] = self._computed(value, own)
        return self._computed_values[key]

    def _own(self, value: Value, indices: Sequence[Index] | None = None) -> tuple[Index, ...]:
        """Indices into a value, some of whose dimensions may be 1."""
        place = self.indices if indices is None else indices
        return tuple(ZERO if size == 1 else index for size, index in zip(value.type.shape, place, strict=True))

    def seen(self, seen: Seen, indices: Sequence[Index]) -> Index:
        """An element of a value behind views."""
        for view in seen.views:
            indices = source_indices(view, indices)
        return self.at(seen.value, indices)

    def region(self, block: Block, arguments: Sequence[Index]) -> list[Index]:
        """What a block of operations on single elements returns for these arguments."""
        for value, argument in zip(block.args, arguments, strict=True):
            self._computed_values[(value, ())] = argument
        for op in block.ops[:-1]:
            operands = [self._single(value) for value in op.operands]
            text = literal(op) if op.name == "arith.constant" else expression(op, [f.text for f in operands])
            level = max((f.level for f in operands), default=0)
            self._computed_values[(op.result, ())] = self.keep(op.result.type.element, text, level)
        return [self._single(value) for value in block.ops[-1].operands]

    def _single(self, value: Value) -> Index:
        return self._computed_values.get((value, ())) or Index(self._writer.scalar(value))

    def _computed(self, value: Value, indices: tuple[Index, ...]) -> Index:
        buffer = self._writer.buffers.get(value)
        if buffer is not None:
            place = linear(value.type.shape, indices)
            return self.keep(value.type.element, widened(buffer.element, f"{buffer.name}[{place.text}]"), place.level)
        op = value.op
        assert op is not None, "arguments of blocks have buffers"
        maker = _MAKERS.get(op.name)
        if maker is not None:
            return maker(self, op, value, indices)
        operands = [self.at(operand, indices) for operand in op.operands]
        level = max((f.level for f in operands), default=0)
        return self.keep(value.type.element, expression(op, [f.text for f in operands]), level)

    def load(self, op: Op, indices: Sequence[Index]) -> Index:
        """An element that is read where it is used, in the innermost loop."""
        pointer, mask, other = (*op.operands, None, None)[:3]
        assert pointer is not None
        element = op.result.type.element
        if mask is not None and mask is self._failing:
            return Index("0") if other is None else self.at(other, indices)
        text = widened(pointer.type.pointee, self.address(pointer, indices))
        if mask is None or conjuncts(mask) <= self._holding:
            return self.keep(element, text, self.inmost)
        otherwise = "0" if other is None else self.at(other, indices).text
        return self.keep(element, f"{self.at(mask, indices).text} ? {text} : {otherwise}", self.inmost)

    def address(self, pointer: Value, indices: Sequence[Index]) -> str:
        """The element that a tensor of pointers points at, seen to be one of a row of them where it is."""
        if self.depth:
            last = self.indices[self.dims[-1]]
            along = [d for d, index in enumerate(indices) if index == last and pointer.type.shape[d] > 1]
            others = [index for d, index in enumerate(indices) if d not in along]
            if len(along) == 1 and all(last.text not in index.text for index in others):
                step = self._writer.axes.step(pointer, along[0])
                if step == 1:
                    start = [ZERO if d == along[0] else index for d, index in enumerate(indices)]
                    return f"{self.at(pointer, start).text}[{last.text}]"
        return f"*{self.at(pointer, indices).text}"

    def stretch(self, bounds: Bounds, dimension: int) -> tuple[list[str], str, str]:
        """The conditions for the innermost loop, and its first element and the one after its last."""
        start = [ZERO if d == dimension else index for d, index in enumerate(self.indices)]
        conditions = [self.seen(condition, start).text for condition in bounds.conditions]
        size = self.shape[dimension]
        level = self.inmost - 1

        def bound(one: Seen, other: Seen, more: int) -> str:
            return f"(int64_t){self.seen(one, start).text} - {self.seen(other, start).text} + {more}"

        low, high = "0", str(size)
        for limit in bounds.lows:
            low = self.keep("i64", f"within({bound(*limit)}, {low}, {size})", level).text
        for limit in bounds.highs:
            high = self.keep("i64", f"within({bound(*limit)}, 0, {high})", level).text
        return conditions, low, high

    def emit(self, conditions: Sequence[str] = (), low: str = "0", high: str | None = None, simd: bool = True) -> None:
        """Writes the loops."""
        write = self._writer.write
        for level, dim in enumerate(self.dims):
            name, last = self.indices[dim].text, level == self.depth - 1
            write(*self.outer[level])
            if last:
                write(*self.before)
                if conditions:
                    write(f"if ({' && '.join(conditions)})")
                if simd:
                    write(SIMD)
            end = high if last and high is not None else str(self.shape[dim])
            write(f"for (int64_t {name} = {low if last else 0}; {name} < {end}; {name}++) {{")
        if not self.depth:
            write(*self.outer[0], *self.before)
            clauses = [*conditions, *([f"{low} < {high}"] if high is not None else [])]
            write(f"if ({' && '.join(clauses)}) {{" if clauses else "{")
        write(*self.inner, "}", *self.after, *["}"] * (self.depth - 1))


def _range(nest: Nest, op: Op, value: Value, indices: tuple[Index, ...]) -> Index:
    start = op.integer("start")
    index = indices[0]
    return Index(f"(int32_t){index.text}" if start == 0 else f"(int32_t)({index.text} + {start})", index.level)


def _join(nest: Nest, op: Op, value: Value, indices: tuple[Index, ...]) -> Index:
    which = indices[-1]
    if which.text in "01":
        return nest.at(op.operands[int(which.text)], indices[:-1])
    one, other = (nest.at(operand, indices[:-1]) for operand in op.operands)
    level = max(which.level, one.level, other.level)
    return nest.keep(value.type.element, f"{which.text} ? {other.text} : {one.text}", level)


def _view(nest: Nest, op: Op, value: Value, indices: tuple[Index, ...]) -> Index:
    return nest.at(op.operands[0], source_indices(op, indices))


Maker = Callable[[Nest, Op, Value, tuple[Index, ...]], Index]
_MAKERS: dict[str, Maker] = {
    "tt.splat": lambda nest, op, value, indices: Index(nest._writer.scalar(op.operands[0])),
    "arith.constant": lambda nest, op, value, indices: Index(literal(op)),
    "tt.make_range": _range,
    "tt.join": _join,
    "tt.split": lambda nest, op, value, indices: nest.at(op.operands[0], (*indices, Index(str(value.place)))),
    "tt.load": lambda nest, op, value, indices: nest.load(op, indices),
    **dict.fromkeys(("tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape"), _view),
}
