"""How integers and pointers change along one dimension of a tensor, and where a mask along it begins and ends.

This assumes that no integer overflows in address arithmetic, as Triton's own analysis does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deepgen_triton_cpu.lowering.c_types import literal
from deepgen_triton_cpu.lowering.ir import Block, Function, Op, Type, Value, insert, make, walk
from deepgen_triton_cpu.lowering.shapes import reshaped_dimension
from deepgen_triton_cpu.lowering.uses import Uses

_SAME = frozenset({"arith.extsi", "arith.index_cast"})  # narrower integers may wrap around where wider ones do not
_LT, _LE, _GT, _GE, _EQ = 2, 3, 4, 5, 0
_MIRRORED = {_LT: _GT, _LE: _GE, _GT: _LT, _GE: _LE, _EQ: _EQ}


@dataclass(frozen=True)
class Guard:
    """`value % by` goes up like `value` does if, from its first element on, it does not reach `by`."""

    remainder: Op
    length: int


@dataclass(frozen=True)
class Seen:
    """A value behind views of it, outermost first: elements of the view are elements of the value."""

    value: Value
    views: tuple[Op, ...]


@dataclass
class Bounds:
    """Elements from the largest of `lows` up to the least of `highs`, where all `conditions` hold.

    A bound is (one, other, more): one - other + more, all at the first element of the dimension.
    """

    conditions: list[Seen] = field(default_factory=list)
    lows: list[tuple[Seen, Seen, int]] = field(default_factory=list)
    highs: list[tuple[Seen, Seen, int]] = field(default_factory=list)


class Axes:
    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def step(self, value: Value, dimension: int, guards: list[Guard] | None = None) -> int | None:
        """By how much the value changes from one element to the next; None if that is not known.

        With `guards`, remainders are taken for the numbers that they are of, under the conditions that are added there.
        """
        if not value.type.tensor or value.type.shape[dimension] == 1:
            return 0
        op = value.op
        if op is None or not self._open(value):
            return None
        if op.name in ("tt.splat", "arith.constant"):
            return 0
        if op.name == "tt.make_range":
            return 1
        viewed = self._through_view(op, dimension)
        if viewed is not None:
            return self.step(*viewed, guards)
        if op.name in ("tt.join", "tt.split", "tt.load", "tt.reshape", "tt.unsplat"):
            return None
        return self._combined(op, dimension, guards)

    def _open(self, value: Value) -> bool:
        return self._uses.is_inlined(value) or self._uses.is_index(value)

    def _combined(self, op: Op, dimension: int, guards: list[Guard] | None) -> int | None:
        steps = [self.step(value, dimension, guards) for value in op.operands]
        numbers = [step for step in steps if step is not None]
        if len(numbers) < len(steps):
            return None
        if not any(numbers):
            return 0
        if op.name in ("arith.addi", "tt.addptr"):
            return numbers[0] + numbers[1]
        if op.name == "arith.subi":
            return numbers[0] - numbers[1]
        if op.name in _SAME:
            return numbers[0]
        if op.name == "arith.muli":
            for one, other in ((0, 1), (1, 0)):
                factor = constant(op.operands[one])
                if factor is not None:
                    return factor * numbers[other]
        if op.name == "arith.remsi" and numbers[0] == 1 and numbers[1] == 0 and guards is not None:
            length = op.result.type.shape[dimension]
            if op.result.type.count == length:  # the same for all elements of other dimensions
                guards.append(Guard(op, length))
                return 1
        return None

    def bounds(self, mask: Value, dimension: int) -> Bounds | None:
        """Where along the dimension a mask holds; None if it is no single stretch that is known."""
        bounds = Bounds()
        return bounds if self._add(Seen(mask, ()), dimension, bounds) else None

    def _add(self, seen: Seen, dimension: int, bounds: Bounds) -> bool:
        mask = seen.value
        if self.step(mask, dimension) == 0:
            bounds.conditions.append(seen)
            return True
        op = mask.op
        if op is None or not self._open(mask):
            return False
        if op.name == "arith.andi":
            return all(self._add(Seen(part, seen.views), dimension, bounds) for part in op.operands)
        viewed = self._through_view(op, dimension)
        if viewed is not None:
            return self._add(Seen(viewed[0], (*seen.views, op)), viewed[1], bounds)
        return op.name == "arith.cmpi" and self._compared(op, dimension, bounds, seen)

    def _compared(self, op: Op, dimension: int, bounds: Bounds, seen: Seen) -> bool:
        left, right = (Seen(value, seen.views) for value in op.operands)
        one, other = self.step(left.value, dimension), self.step(right.value, dimension)
        predicate = op.integer("predicate")
        if one is None or other is None:
            return False
        if one == other:
            bounds.conditions.append(seen)
            return True
        if one - other == -1:
            left, right, predicate = right, left, _MIRRORED.get(predicate, -1)
        elif one - other != 1:
            return False
        if predicate not in _MIRRORED:
            return False
        if predicate in (_LT, _LE, _EQ):
            bounds.highs.append((right, left, int(predicate != _LT)))
        if predicate in (_GT, _GE, _EQ):
            bounds.lows.append((right, left, int(predicate == _GT)))
        return True

    def _through_view(self, op: Op, dimension: int) -> tuple[Value, int] | None:
        """The same dimension of what a view is of."""
        source = op.operands[0] if op.operands else None
        if source is None:
            return None
        if op.name == "tt.broadcast":
            return source, dimension
        if op.name == "tt.expand_dims":
            axis = op.integer("axis")
            return source, dimension - (dimension > axis)
        if op.name == "tt.trans":
            return source, op.integers("order")[dimension]
        if op.name == "tt.reshape":
            viewed = reshaped_dimension(source.type.shape, op.result.type.shape, dimension)
            return None if viewed is None else (source, viewed)
        return None


def constant(value: Value) -> int | None:
    """The number that all elements are."""
    op = value.op
    while op is not None and op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.extsi"):
        op = op.operands[0].op
    if op is None or op.name != "arith.constant" or op.result.type.floating or "[" in op.attributes["value"]:
        return None
    text = literal(op).strip("()").removeprefix("INT64_C(")
    return int(text) if text.lstrip("-").isdigit() else None


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
    insert(block, block.ops.index(loop), zero)
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
    scalar = scalar_of(step)
    if isinstance(scalar, Op):
        text = scalar.attributes["value"].partition("<")[2].partition(">")[0]
        constant = make("arith.constant", [], of, loop, value=f"{text} : {of.element}")
        insert(body, len(body.ops) - 1, constant)
        scalar = constant.result
    assert scalar is not None
    if scalar.type != of:
        constant = make("arith.extsi", [scalar], of, loop)
        insert(body, len(body.ops) - 1, constant)
        scalar = constant.result
    added = make("arith.addi", [offset, scalar], of, loop)
    insert(body, len(body.ops) - 1, added)
    return added.result


def _define(function: Function, block: Block, at: int, loop: Op, offset: Value, first: Value, old: Value) -> None:
    """`old` becomes the first tensor moved by the offset."""
    spread = make("tt.splat", [offset], old.type.of(offset.type.element), loop)
    name = "tt.addptr" if old.type.pointer else "arith.addi"
    moved = make(name, [first, spread.result], old.type, loop)
    insert(block, at, spread)
    insert(block, at + 1, moved)
    for op in walk(function.body):
        if op is not moved:
            op.operands = [moved.result if value is old else value for value in op.operands]
