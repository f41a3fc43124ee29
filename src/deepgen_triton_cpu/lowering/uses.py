"""Which tensors are stored in buffers, and which are computed again wherever an element is needed.

An element of a chain of operations is computed in the loop that needs it. A tensor is stored where that would compute
much of it twice, and where an operation needs all of it at once.
"""

from __future__ import annotations

from deepgen_triton_cpu.lowering.elementwise import COSTS, TABLE
from deepgen_triton_cpu.lowering.ir import Function, Op, Value, walk

SOURCES = frozenset({"tt.splat", "arith.constant", "tt.make_range"})
VIEWS = frozenset({"tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape", "tt.split", "tt.join", "tt.unsplat"})
_WRITES = frozenset({"tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_poll"})
_INDEX_COST, _VALUE_COST = 16, 2  # up to which an integer, and a float, is rather computed twice than stored
_LOAD_COST = 30


class Uses:
    """What is known of a function's values before any C is written."""

    def __init__(self, function: Function) -> None:
        self.users: dict[Value, list[Op]] = {}
        self.order: dict[Op, int] = {}
        ops = list(walk(function.body))
        for number, op in enumerate(ops):
            self.order[op] = number
            for value in dict.fromkeys(op.operands):
                self.users.setdefault(value, []).append(op)
        self._costs: dict[Value, int] = {}
        self._roots: dict[Value, frozenset[Op]] = {}
        self.inlined: set[Op] = set()
        self._indices: set[Value] = set()
        for op in ops:
            if self._computed_anew(op):
                self.inlined.add(op)
            pure = op.name in TABLE or op.name in VIEWS or op.name in SOURCES
            if pure and all(not value.type.tensor or value in self._indices for value in op.operands):
                self._indices.update(op.results)

    def is_inlined(self, value: Value) -> bool:
        return value.op is not None and value.op in self.inlined

    def is_index(self, value: Value) -> bool:
        """Whether it is made of ranges and scalars alone: it can be looked into even where it is stored."""
        return value in self._indices

    def used(self, value: Value) -> bool:
        return bool(self.users.get(value))

    def roots(self, value: Value) -> frozenset[Op]:
        """The operations in whose loops the value is read."""
        if value not in self._roots:
            roots: set[Op] = set()
            for user in self.users.get(value, ()):
                if user in self.inlined:
                    for result in user.results:
                        roots |= self.roots(result)
                else:
                    roots.add(user)
            self._roots[value] = frozenset(roots)
        return self._roots[value]

    def ends_at(self, value: Value, root: Op) -> bool:
        """Whether nothing reads the value after `root`, so that its buffer may be written there."""
        before = all(other is root or self.order[other] < self.order[root] for other in self.roots(value))
        return before and root.block is value.block

    def _computed_anew(self, op: Op) -> bool:
        if not op.results or not op.results[0].type.tensor:
            return False
        if op.name in SOURCES:
            self._costs[op.result] = 0
            return True
        if op.name == "tt.load":
            return self._load_inlined(op)
        if op.name not in TABLE and op.name not in VIEWS:
            return False
        inner = sum(self._costs.get(value, 0) for value in dict.fromkeys(op.operands))
        if op.name in VIEWS:
            for result in op.results:
                self._costs[result] = inner
            return True
        cost = inner + COSTS.get(op.name, 1)
        if cost > (_VALUE_COST if op.result.type.floating else _INDEX_COST) and not self._read_once(op):
            return False
        self._costs[op.result] = cost
        return True

    def _read_once(self, op: Op) -> bool:
        users = self.users.get(op.result, [])
        if not users:
            return True
        return len(users) == 1 and users[0].block is op.block and users[0].name not in VIEWS

    def _load_inlined(self, op: Op) -> bool:
        """Whether it is read in one loop only, at the place of each element, and nothing is written before that."""
        if not self.users.get(op.result) or not self._read_once(op) or op.flag("isVolatile") or _wraps(op.operands[0]):
            return False
        root, value = self.users[op.result][0], op.result
        while root.name in TABLE:
            users = self.users.get(root.result, [])
            if len(users) != 1 or users[0].block is not op.block or users[0].name in VIEWS:
                break  # it will be stored, in a loop of its own
            value, root = root.result, users[0]
        stored = root.name in TABLE or root.name == "scf.yield"
        written = root.name == "tt.store" and root.operands[1] is value
        # What is reduced is read row by row: a mask would have to be asked for each element.
        reduced = root.name == "tt.reduce" and len(root.operands) == 1 and len(op.operands) == 1
        if not (stored or reduced or (written and _implied(op, root) and _apart(op.operands[0], root.operands[0]))):
            return False
        block = op.block
        assert block is not None
        if root.block is not block or any(map(writes, block.ops[block.ops.index(op) + 1 : block.ops.index(root)])):
            return False
        self._costs[op.result] = _LOAD_COST
        return True


def _implied(load: Op, store: Op) -> bool:
    """Whether the load's mask holds wherever the store's does."""
    if len(load.operands) == 1:
        return True
    return len(store.operands) > 2 and conjuncts(load.operands[1]) <= conjuncts(store.operands[2])


def _apart(one: Value, other: Value) -> bool:
    """Whether no element is written before another that lies there is read: they are of different arguments, or the
    same elements."""
    bases = [_base(value) for value in (one, other)]
    return one is other or (bases[0] is not bases[1] and all(map(_is_argument, bases)))


def _base(pointer: Value) -> Value:
    while pointer.op is not None and (pointer.op.name in ("tt.addptr", "tt.splat") or pointer.op.name in VIEWS):
        pointer = pointer.op.operands[0]
    return pointer


def _is_argument(value: Value) -> bool:
    """Whether it is a parameter of the kernel."""
    region = value.block.region if value.op is None and value.block is not None else None
    return region is not None and region.op is not None and region.op.name == "tt.func"


def _wraps(value: Value) -> bool:
    """Whether there is a remainder on the way to it: neighbours are then known only when the kernel runs."""
    seen, left = set[Value](), [value]  # each value once: the steps of a sort are shared by exponentially many ways
    while left:
        one = left.pop()
        op = one.op
        if one in seen or op is None or not one.type.tensor or not (op.name in TABLE or op.name in VIEWS):
            continue
        if op.name == "arith.remsi":
            return True
        seen.add(one)
        left += op.operands
    return False


def conjuncts(mask: Value) -> frozenset[Value]:
    """The masks that must all hold."""
    if mask.op is not None and mask.op.name == "arith.andi":
        return conjuncts(mask.op.operands[0]) | conjuncts(mask.op.operands[1])
    return frozenset({mask})


def writes(op: Op) -> bool:
    return op.name in _WRITES or any(writes(inner) for region in op.regions for inner in walk(region))
