"""Loops, branches and jumps. A loop-carried tensor has one buffer, which each iteration updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from deepgen.extend import BadInput
from deepgen_triton_cpu.lowering.c_types import computed, constant_of
from deepgen_triton_cpu.lowering.ir import Block, Op, Region, Value
from deepgen_triton_cpu.lowering.writer import Buffer, Writer

# Where a value that is carried lies: a scalar's variable, or a tensor's buffer.
Slot: TypeAlias = "str | Buffer"


class Control:
    """Writes regions, and hands single operations to `write_op`."""

    def __init__(self, writer: Writer, write_op: Callable[[Op], None]) -> None:
        self._writer, self._write_op = writer, write_op

    def function(self, body: Region) -> None:
        """The body of the kernel: one block, or blocks that jump to each other."""
        if len(body.blocks) == 1:
            self._block(body.block)
            return
        writer = self._writer
        start = len(writer.lines)
        writer.hoisted = []
        slots = {block.label: [self._slot(value) for value in block.args] for block in body.blocks[1:]}
        for block in body.blocks:
            writer.write(f"{_label(block.label)}: {{")
            for op in block.ops[:-1]:
                self._write_op(op)
            self._jump(block.ops[-1], slots)
            writer.write("}")
        writer.lines[start:start] = writer.hoisted
        writer.hoisted = None

    def loop(self, op: Op) -> None:
        """scf.for."""
        writer, body = self._writer, op.regions[0].block
        low, high, step = (writer.scalar(value) for value in op.operands[:3])
        slots = [self._entered(op, value, first) for value, first in zip(body.args[1:], op.operands[3:], strict=True)]
        counter = writer.fresh("k")
        writer.name(body.args[0], counter)
        of = computed(body.args[0].type.element)
        room = writer.scratch
        writer.write(f"for ({of} {counter} = {low}; {counter} < {high}; {counter} += {step}) {{")
        self._inside(body)
        self._assign(body.ops[-1].operands, slots)
        writer.write("}")
        writer.scratch = room
        self._left(op.results, slots)

    def repeat(self, op: Op) -> None:
        """scf.while: a block that ends with the condition, and one that ends with what the next one begins with."""
        writer, (before, after) = self._writer, op.regions
        slots = [self._entered(op, value, first) for value, first in zip(before.block.args, op.operands, strict=True)]
        carried = [self._slot(value) for value in after.block.args]
        room = writer.scratch
        writer.write("for (;;) {")
        self._inside(before.block)
        condition, *passed = before.block.ops[-1].operands
        self._assign(passed, carried)
        writer.write(f"if (!{writer.scalar(condition)}) break;")
        self._inside(after.block)
        self._assign(after.block.ops[-1].operands, slots)
        writer.write("}")
        writer.scratch = room
        self._left(op.results, carried)

    def branch(self, op: Op) -> None:
        """scf.if."""
        writer = self._writer
        slots = [self._slot(value) for value in op.results]
        writer.write(f"if ({writer.scalar(op.operands[0])}) {{")
        for place, region in enumerate(op.regions):
            if not region.blocks:
                continue
            if place:
                writer.write("} else {")
            room = writer.scratch
            self._inside(region.block)
            self._assign(region.block.ops[-1].operands, slots)
            writer.scratch = room
        writer.write("}")

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._write_op(op)

    def _inside(self, block: Block) -> None:
        """A block of a region, without the operation that ends it. What it stores ends with it."""
        for op in block.ops[:-1]:
            self._write_op(op)

    def _slot(self, value: Value) -> Slot:
        """Room for a value that is assigned to later."""
        if not value.type.tensor:
            return self._writer.variable(value)
        buffer = self._writer.allocate(value.type.element, value.type.shape)
        self._writer.buffers[value] = buffer
        return buffer

    def _entered(self, op: Op, value: Value, first: Value) -> Slot:
        """Room for a carried value, with what it is in the first iteration."""
        writer = self._writer
        if not value.type.tensor:
            return writer.variable(value, writer.scalar(first))
        held = writer.buffers.get(first)
        alone = held is not None and sum(other is held for other in writer.buffers.values()) == 1
        if held is not None and alone and held.element == value.type.element and writer.uses.ends_at(first, op):
            del writer.buffers[first]
            writer.buffers[value] = held
            return held
        buffer = writer.allocate(value.type.element, value.type.shape)
        writer.fill(buffer, first)
        writer.buffers[value] = buffer
        return buffer

    def _left(self, results: Sequence[Value], slots: Sequence[Slot]) -> None:
        for result, slot in zip(results, slots, strict=True):
            if isinstance(slot, Buffer):
                self._writer.buffers[result] = slot
            else:
                self._writer.name(result, slot)

    def _assign(self, values: Sequence[Value], slots: Sequence[Slot]) -> None:
        """All slots get their values at once: none may be overwritten while another is computed from it."""
        writer = self._writer
        own = {id(slot) for slot in slots if isinstance(slot, Buffer)}
        late: list[tuple[Slot, str | Buffer]] = []
        direct: list[tuple[Buffer, Value]] = []
        for value, slot in zip(values, slots, strict=True):
            if isinstance(slot, str):
                now = writer.scalar(value)
                if now != slot:
                    kept = writer.fresh("n")
                    writer.write(f"{constant_of(computed(value.type.element))} {kept} = {now};")
                    late.append((slot, kept))
                continue
            held = writer.buffers.get(value)
            if held is slot:
                continue
            read = {id(writer.buffers[leaf]): aligned for leaf, aligned in writer.leaves(value).items()}
            others = (set(read) & own) - {id(slot)}
            if not others and read.get(id(slot), True):
                direct.append((slot, value))
            else:
                buffer = writer.allocate(value.type.element, value.type.shape)
                writer.fill(buffer, value)
                late.append((slot, buffer))
        for slot, value in direct:
            writer.fill(slot, value)
        for to, source in late:
            if isinstance(to, Buffer):
                assert isinstance(source, Buffer)
                writer.write(f"memcpy({to.name}, {source.name}, sizeof(*{to.name}) * {_count(to)});")
            else:
                writer.write(f"{to} = {source};")

    def _jump(self, op: Op, slots: dict[str, list[Slot]]) -> None:
        writer = self._writer
        if op.name == "cf.br":
            self._go(op.successors[0], op.operands, slots)
        elif op.name == "cf.cond_br":
            counts = op.integers("operandSegmentSizes")
            condition, *passed = op.operands
            writer.write(f"if ({writer.scalar(condition)}) {{")
            self._go(op.successors[0], passed[: counts[1]], slots)
            writer.write("} else {")
            self._go(op.successors[1], passed[counts[1] :], slots)
            writer.write("}")
        elif op.name == "tt.return":
            writer.write("return;")
        else:
            raise BadInput(f"{op.name} at the end of a block", where=op.location, allowed="branches and returns")

    def _go(self, label: str, values: Sequence[Value], slots: dict[str, list[Slot]]) -> None:
        self._assign(values, slots[label])
        self._writer.write(f"goto {_label(label)};")


def _label(label: str) -> str:
    return f"block_{label.strip('^')}"


def _count(buffer: Buffer) -> int:
    count = 1
    for size in buffer.shape:
        count *= size
    return count
