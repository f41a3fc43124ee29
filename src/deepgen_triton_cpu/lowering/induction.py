"""Pointers and offsets that a loop moves on by one number for all elements: the number is carried, not the tensor.

`left += BLOCK * stride` in a loop would carry a tensor of pointers, whose regularity nothing could see any more. After
this pass the loop carries how far it has moved, and the tensor is the first one plus that.
"""

from __future__ import annotations

from deepgen_triton_cpu.lowering.ir import Block, Function, Op, Type, Value, make, walk

_MOVES = ("tt.addptr", "arith.addi")
_I64 = Type("i64")


def carry_offsets(function: Function) -> None:
    for op in list(walk(function.body)):
        if op.name == "scf.for":
            for place in range(len(op.results)):
                _carry(function, op, place)


def _carry(function: Function, loop: Op, place: int) -> None:
    body = loop.regions[0].block
    carried, yielded = body.args[place + 1], body.ops[-1]
    first = loop.operands[place + 3]
    steps = _steps(yielded.operands[place], carried)
    if not carried.type.tensor or steps is None:
        return
    of = _I64 if carried.type.pointer else Type(carried.type.element)
    offset = Value(of, None, body, place + 1)
    body.args[place + 1] = offset
    _define(function, body, 0, loop, offset, first, carried)
    moved = offset
    for step in steps:
        moved = _moved(body, loop, moved, step, of)
    yielded.operands[place] = moved
    zero = make("arith.constant", [], of, loop, value=f"0 : {of.element}")
    block = loop.block
    assert block is not None
    _insert(block, block.ops.index(loop), zero)
    loop.operands[place + 3] = zero.result
    last = loop.results[place]
    loop.results[place] = Value(of, loop, block, place)
    _define(function, block, block.ops.index(loop) + 1, loop, loop.results[place], first, last)


def _steps(value: Value, carried: Value) -> list[Value] | None:
    """What is added to the carried tensor on the way to the next; None where that differs between elements."""
    steps: list[Value] = []
    while value is not carried:
        op = value.op
        if op is None or op.name not in _MOVES:
            return None
        tensor, step = op.operands
        if op.name == "arith.addi" and scalar_of(step) is None:
            tensor, step = step, tensor
        if scalar_of(step) is None:
            return None
        steps.append(step)
        value = tensor
    return steps or None


def scalar_of(value: Value) -> Value | Op | None:
    """The scalar that all elements are, or the constant."""
    op = value.op
    if op is not None and op.name == "tt.splat":
        return op.operands[0]
    if op is not None and op.name == "arith.constant" and "[" not in op.attributes["value"]:
        return op
    return None


def _moved(body: Block, loop: Op, offset: Value, step: Value, of: Type) -> Value:
    told = scalar_of(step)
    if isinstance(told, Op):
        text = told.attributes["value"].partition("<")[2].partition(">")[0]
        made = make("arith.constant", [], of, loop, value=f"{text} : {of.element}")
        _insert(body, len(body.ops) - 1, made)
        told = made.result
    assert told is not None
    if told.type != of:
        made = make("arith.extsi", [told], of, loop)
        _insert(body, len(body.ops) - 1, made)
        told = made.result
    added = make("arith.addi", [offset, told], of, loop)
    _insert(body, len(body.ops) - 1, added)
    return added.result


def _define(function: Function, block: Block, at: int, loop: Op, offset: Value, first: Value, old: Value) -> None:
    """`old` becomes the first tensor moved by the offset."""
    spread = make("tt.splat", [offset], old.type.of(offset.type.element), loop)
    name = "tt.addptr" if old.type.pointer else "arith.addi"
    moved = make(name, [first, spread.result], old.type, loop)
    _insert(block, at, spread)
    _insert(block, at + 1, moved)
    for op in walk(function.body):
        if op is not moved:
            op.operands = [moved.result if value is old else value for value in op.operands]


def _insert(block: Block, at: int, op: Op) -> None:
    op.block = block
    for result in op.results:
        result.block = block
    block.ops.insert(at, op)
