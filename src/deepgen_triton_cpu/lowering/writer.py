"""The state of writing one kernel in C: what each value is called there, and where tensors are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from deepgen_triton_cpu.lowering.axes import Axes
from deepgen_triton_cpu.lowering.c_types import computed, constant_of, literal, narrowed, stored, stored_bytes
from deepgen_triton_cpu.lowering.elementwise import TABLE, expression
from deepgen_triton_cpu.lowering.ir import Function, Op, Value
from deepgen_triton_cpu.lowering.nest import Nest
from deepgen_triton_cpu.lowering.shapes import linear
from deepgen_triton_cpu.lowering.uses import VIEWS, Uses

_STACK = 4096  # bytes of a tensor that may lie on a thread's stack
_LINE = 64


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory, row-major."""

    name: str
    element: str
    shape: tuple[int, ...]


class Writer:
    """`load` stores what a load reads."""

    def __init__(self, function: Function, load: Callable[[Writer, Op], None]) -> None:
        self.load = load
        self.uses = Uses(function)
        self.axes = Axes(self.uses)
        self.buffers: dict[Value, Buffer] = {}
        self.lines: list[str] = []
        self.scratch = 0  # bytes in use
        self.most_scratch = 0
        # Where blocks jump to each other, what one defines and another reads is declared before all of them.
        self.hoisted: list[str] | None = None
        self._scalars: dict[Value, str] = {}
        self._count = 0

    def write(self, *lines: str) -> None:
        self.lines += lines

    def fresh(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def scalar(self, value: Value) -> str:
        return self._scalars[value]

    def name(self, value: Value, text: str) -> None:
        """A scalar has this name, or is this constant."""
        self._scalars[value] = text

    def define(self, value: Value, text: str) -> None:
        """A scalar is the result of an expression."""
        name = self.fresh("s")
        of = computed(value.type.element)
        if self.hoisted is None:
            self.write(f"{constant_of(of)} {name} = {text};")
        else:
            self.hoisted.append(f"{of} {name};")
            self.write(f"{name} = {text};")
        self._scalars[value] = name

    def variable(self, value: Value, text: str | None = None) -> str:
        """A scalar that is assigned to more than once."""
        name = self.fresh("v")
        declared = f"{computed(value.type.element)} {name}"
        if self.hoisted is None:
            self.write(f"{declared} = {text};" if text is not None else f"{declared};")
        else:
            self.hoisted.append(f"{declared};")
            if text is not None:
                self.write(f"{name} = {text};")
        self._scalars[value] = name
        return name

    def allocate(self, element: str, shape: Sequence[int]) -> Buffer:
        """Memory for a tensor, until the region that is being written ends."""
        buffer = Buffer(self.fresh("b"), element, tuple(shape))
        size, of = prod(shape) * stored_bytes(element), stored(element)
        if size <= _STACK:
            line = f"{of} {buffer.name}[{prod(shape)}] __attribute__((aligned({_LINE})));"
        else:
            line = f"{of} *restrict {buffer.name} = ({of} *)(scratch + {self.scratch});"
            self.scratch += -(-size // _LINE) * _LINE
            self.most_scratch = max(self.most_scratch, self.scratch)
        if self.hoisted is None:
            self.write(line)
        else:
            self.hoisted.append(line)
        return buffer

    def ensure(self, value: Value) -> Buffer:
        """The tensor in memory, in its own type."""
        existing = self.buffers.get(value)
        if existing is not None and existing.element == value.type.element:
            return existing
        buffer = self.allocate(value.type.element, value.type.shape)
        self.fill(buffer, value)
        return buffer

    def materialise(self, value: Value, root: Op) -> Buffer:
        """Stores a tensor, in place of one that is read for the last time where it can be."""
        replaced = self.replaceable(value, value, root)
        into = self.buffers[replaced] if replaced else self.allocate(value.type.element, value.type.shape)
        self.fill(into, value)
        if replaced:
            del self.buffers[replaced]
        self.buffers[value] = into
        return into

    def fill(self, into: Buffer, value: Value) -> None:
        """The elements of a tensor, one after the other.

        Where it is computed from masked loads, elements that the mask leaves out have a loop of their own.
        """
        mask = self._load_mask(value)
        last = max((d for d, size in enumerate(value.type.shape) if size > 1), default=None)
        bounds = None if mask is None or last is None else self.axes.bounds(mask, last)
        if mask is None or bounds is None or last is None:
            self._fill(Nest(self, value.type.shape), into, value)
            return
        nest = Nest(self, value.type.shape)
        conditions, low, high = nest.stretch(bounds, last)
        nest.assume(mask, True)
        self._fill(nest, into, value, conditions, low, high)
        for above in (False, True) if bounds.lows else (True,):
            nest = Nest(self, value.type.shape)
            conditions, low, high = nest.stretch(bounds, last)
            if conditions:
                held = nest.keep("i1", " && ".join(conditions), nest.inmost - 1).text
                low, high = f"({held} ? {low} : 0)", f"({held} ? {high} : 0)"
            nest.assume(mask, False)
            self._fill(nest, into, value, (), *((high, None) if above else ("0", low)))

    def _fill(
        self,
        nest: Nest,
        into: Buffer,
        value: Value,
        conditions: Sequence[str] = (),
        low: str = "0",
        high: str | None = None,
    ) -> None:
        element = nest.at(value)
        place = linear(into.shape, nest.indices)
        nest.put(nest.inmost, f"{into.name}[{place.text}] = {narrowed(into.element, element.text)};")
        nest.emit(conditions, low, high)

    def _load_mask(self, value: Value) -> Value | None:
        """The mask of the loads that the elements are computed from. Loads with another mask are stored first."""
        masks: dict[Value, list[Op]] = {}
        for op in self._loads(value):
            if len(op.operands) > 1:
                masks.setdefault(op.operands[1], []).append(op)
        for ops in list(masks.values())[1:]:
            for op in ops:
                self.load(self, op)
        return next(iter(masks), None)

    def _loads(self, value: Value) -> list[Op]:
        """Those that are read where they are used."""
        op = value.op
        if value in self.buffers or op is None or op not in self.uses.inlined or not value.type.tensor:
            return []
        if op.name == "tt.load":
            return [op]
        return [load for operand in dict.fromkeys(op.operands) for load in self._loads(operand)]

    def replaceable(self, value: Value, result: Value, root: Op) -> Value | None:
        """A stored tensor that only `value` is still computed from, each element from the one in its place.

        Its buffer can then hold the result.
        """
        for leaf, aligned in self.leaves(value).items():
            buffer = self.buffers[leaf]
            fits = buffer.element == result.type.element and buffer.shape == result.type.shape
            alone = sum(held is buffer for held in self.buffers.values()) == 1
            if aligned and fits and alone and self.uses.ends_at(leaf, root):
                return leaf
        return None

    def leaves(self, value: Value) -> dict[Value, bool]:
        """The stored tensors that a tensor is computed from, and whether each element is from the one in its place."""
        leaves: dict[Value, bool] = {}
        self._add_leaves(value, True, leaves)
        return leaves

    def _add_leaves(self, value: Value, aligned: bool, leaves: dict[Value, bool]) -> None:
        if not value.type.tensor:
            return
        if value in self.buffers:
            leaves[value] = leaves.get(value, True) and aligned
            return
        op = value.op
        assert op is not None, "arguments of blocks have buffers"
        for operand in op.operands:
            self._add_leaves(operand, aligned and op.name not in VIEWS, leaves)

    def scalar_op(self, op: Op) -> bool:
        """Writes an operation on scalars; False where it is none."""
        if op.name == "arith.constant":
            self._scalars[op.result] = f"({computed(op.result.type.element)}){literal(op)}"
            return True
        if op.name not in TABLE:
            return False
        self.define(op.result, expression(op, [self.scalar(value) for value in op.operands]))
        return True
