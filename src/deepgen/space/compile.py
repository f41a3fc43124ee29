"""From knobs and requirements to a diagram: parts, an order of the knobs, states merged layer by layer, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.definition import Knob
from deepgen.space.diagram import Chain, Diagram
from deepgen.space.expr import Expr, Requirement, walk
from deepgen.space.layers import Ints, Layer, layer
from deepgen.space.nodes import Array, Nodes, condition_parts, variable
from deepgen.space.order import careful_order, quick_order
from deepgen.space.staged import Slots, Staged
from deepgen.space.tables import merge, reduce_table, trie
from deepgen.vocabulary import DeepgenError

_TABLE_CELLS = 1 << 19
_LARGEST = 1 << 62
_QUICK_MEMORY = 1 << 24
DEFAULT_MEMORY = 1 << 30


class TooWide(DeepgenError):
    """A space that cannot be compiled within its memory bound."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """A total condition and the knobs it reads."""

    expr: Expr
    scope: frozenset[str]


@dataclass(eq=False)
class Active:
    """A constraint under way: its state in each row of the layer, either a table's node or staged values."""

    constraint: Constraint
    order: list[str]  # its knobs as the diagram orders them
    done: int = 0  # how many of them have values
    staged: Staged | None = None
    slots: Slots = field(default_factory=dict)
    node: Ints | None = None
    levels: list[Ints] = field(default_factory=list)

    def columns(self) -> list[Ints]:
        return list(self.slots.values()) if self.node is None else [self.node]

    def take(self, rows: Ints) -> None:
        if self.node is not None:
            self.node = self.node[rows]
        self.slots = {slot: array[rows] for slot, array in self.slots.items()}


def compile_space(knobs: Sequence[Knob], requirements: Sequence[Requirement], memory: int = DEFAULT_MEMORY) -> Diagram:
    """The diagram of all configs that meet the requirements."""
    return _Compiler(knobs, memory).run(requirements)


class _Compiler:
    def __init__(self, knobs: Sequence[Knob], memory: int) -> None:
        self.knobs, self.memory = knobs, memory
        self.index = {k.name: i for i, k in enumerate(knobs)}
        fixed = {k.name: k.values[0] for k in knobs if k.places == 1}
        self.nodes = Nodes({k.name: variable(k) for k in knobs if k.places > 1}, fixed)
        self.allowed: dict[str, Ints] = {k.name: np.arange(k.places) for k in knobs if k.places > 1}
        self.used = 0

    def run(self, requirements: Sequence[Requirement]) -> Diagram:
        constraints = self._narrow(self._constraints(requirements))
        fixed = [(i, 0) for i, k in enumerate(self.knobs) if k.places == 1]
        if constraints is None or any(len(a) == 0 for a in self.allowed.values()):
            return Diagram((Chain((), 0),), len(self.knobs), tuple(fixed))
        chains = []
        for names, own in _parts(list(self.allowed), constraints):
            if not own and len(self.allowed[names[0]]) == 1:
                fixed.append((self.index[names[0]], int(self.allowed[names[0]][0])))
                continue
            chains.append(self._part({n: self.allowed[n] for n in names}, own))
        return Diagram(tuple(chains), len(self.knobs), tuple(fixed))

    # Constraints ------------------------------------------------------------------------------------------

    def _constraints(self, requirements: Sequence[Requirement]) -> list[Constraint]:
        parts = condition_parts(self.nodes, self.knobs, requirements)
        return [Constraint(p, self.nodes.scope(p)) for p in parts]

    def _narrow(self, constraints: list[Constraint]) -> list[Constraint] | None:
        """Settle constraints on no knob or on one; None if one of them can never be met."""
        left = []
        for constraint in constraints:
            if not constraint.scope:
                if not bool(evaluate_arrays(self.nodes, constraint.expr, {})):
                    return None
            elif len(constraint.scope) == 1:
                (name,) = constraint.scope
                places = self.allowed[name]
                self.allowed[name] = places[evaluate_arrays(self.nodes, constraint.expr, {name: places}).astype(bool)]
            else:
                left.append(constraint)
        return left

    def _part(self, allowed: dict[str, Ints], own: list[Constraint]) -> Chain:
        """Most parts are small in any sensible order: only one that is not is worth the search for a better one."""
        exprs = [c.expr for c in own]
        if any(e.op == "points" for e in exprs):
            return self._chain(list(allowed), own)  # points are as wide as they are, in any order
        if any(self.nodes.needs_objects(e) for e in exprs):
            return self._chain(careful_order(self.nodes, allowed, exprs), own)
        quick = quick_order(self.nodes, allowed, exprs)
        used, memory = self.used, self.memory
        self.memory = min(memory, used + _QUICK_MEMORY)
        try:
            return self._chain(quick, own)
        except TooWide:
            self.used, self.memory = used, memory
            return self._chain(careful_order(self.nodes, allowed, exprs), own)
        finally:
            self.memory = memory

    # One part ------------------------------------------------------------------------------------------

    def _chain(self, order: list[str], constraints: list[Constraint]) -> Chain:
        position = {name: i for i, name in enumerate(order)}
        by_name: dict[str, list[Constraint]] = {name: [] for name in order}
        for constraint in constraints:
            for name in constraint.scope:
                by_name[name].append(constraint)
        active: dict[int, Active] = {}
        raw: list[tuple[int, Ints, Ints, Ints]] = []
        states = 1
        for name in order:
            for constraint in by_name[name]:
                if id(constraint) not in active:
                    own = sorted(constraint.scope, key=position.__getitem__)
                    active[id(constraint)] = Active(constraint, own)
            touched = [active[id(c)] for c in by_name[name]]
            parent, place = self._expand(name, states, touched, list(active.values()))
            for key in [k for k, a in active.items() if a.done == len(a.order)]:
                del active[key]
            child, first = merge([c for a in active.values() for c in a.columns()], len(parent))
            for a in active.values():
                a.take(first)
            raw.append((states, parent, place, child))
            states = len(first)
            self._account(len(parent), len(first), sum(len(a.columns()) for a in active.values()))
            if states == 0:
                return Chain((), 0)
        return self._count(order, raw)

    def _expand(self, name: str, states: int, touched: list[Active], active: list[Active]) -> tuple[Ints, Ints]:
        """All ways to go on with one more knob that no touched constraint forbids."""
        size = len(self.allowed[name])
        alive = np.ones((states, size), dtype=np.bool_)
        followed: list[tuple[Active, Ints]] = []
        for a in touched:
            self._tabulate(a, states, size)
            if a.node is not None:
                after = a.levels[a.done][a.node]
                alive &= after >= 0
                followed.append((a, after))
        parent, place = np.nonzero(alive)
        for a in active:
            if a.node is None or a not in touched:
                a.take(parent)
        for a, after in followed:
            a.node = after[parent, place]
        keep: Array | None = None
        for a in touched:
            if a.staged is not None:
                a.slots, ok = a.staged.advance(a.slots, a.done, a.done + 1, {name: self.allowed[name][place]})
                keep = ok if keep is None else keep & ok
            a.done += 1
        if keep is not None and not keep.all():
            rows = np.flatnonzero(keep)
            parent, place = parent[rows], place[rows]
            for a in active:
                a.take(rows)
        return parent, place

    def _tabulate(self, a: Active, states: int, size: int) -> None:
        """Turn a constraint into a table over the knobs that it has left, as soon as that is small enough."""
        if a.node is not None:
            return
        left = a.order[a.done :]
        sizes = [len(self.allowed[n]) for n in left]
        if a.constraint.expr.op == "points":
            a.node, a.levels = np.zeros(states, dtype=np.int64), self._trie(a)
            return
        tail, bound = prod(sizes), max(_TABLE_CELLS, 2 * states * size)
        if tail > bound:
            if a.staged is None:
                if any(node.op == "points" for node in walk(a.constraint.expr)):
                    raise TooWide("a list of points inside a larger condition is too long to be compiled")
                a.staged = Staged(self.nodes, a.constraint.expr, a.order)
            return
        numbers, first = merge(a.columns(), states) if a.slots else (np.zeros(states, dtype=np.int64), np.zeros(1, int))
        if len(first) * tail > bound:
            return
        places = {}
        for axis, n in enumerate(left):
            shape = [1] * (len(left) + 1)
            shape[axis + 1] = -1
            places[n] = self.allowed[n].reshape(shape)
        if a.staged is None:
            grid = evaluate_arrays(self.nodes, a.constraint.expr, places)
        else:
            starts = {s: c[first].reshape([-1] + [1] * len(left)) for s, c in a.slots.items()}
            grid = a.staged.finish(starts, a.done, places)
        roots, levels = reduce_table(np.broadcast_to(grid, (len(first), *sizes)).astype(np.bool_, copy=False))
        # A start that can never come true has the node -1: the last row, from which nothing goes on.
        levels[0] = np.vstack([levels[0], np.full((1, sizes[0]), -1, dtype=np.int32)])
        a.levels = [*([np.empty((0, 0))] * a.done), *levels]
        a.node, a.staged, a.slots = roots[numbers], None, {}

    def _trie(self, a: Active) -> list[Ints]:
        """Listed points, as places of the knobs in order; points with a value that is not allowed do not count."""
        names, rows = a.constraint.expr.data
        by_name = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
        keep = np.ones(len(rows), dtype=np.bool_)
        columns = []
        for name, values in by_name.items():
            if name in self.nodes.fixed:
                keep &= np.array([v == self.nodes.fixed[name] for v in values], dtype=np.bool_)
        for name in a.order:
            knob, allowed = self.knobs[self.index[name]], self.allowed[name].tolist()
            # The compiler counts places among those allowed; an absent knob stands after all values.
            number = {(knob.values[p] if p < len(knob.values) else None): i for i, p in enumerate(allowed)}
            column = np.array([number.get(v, -1) for v in by_name.get(name, ())], dtype=np.int64)
            keep &= column >= 0
            columns.append(column)
        return trie(np.stack(columns, axis=1)[keep], [len(self.allowed[n]) for n in a.order])

    def _account(self, edges: int, states: int, columns: int) -> None:
        # An edge keeps parent, place and child until it is counted, and place, child and count afterwards.
        self.used += edges * 40
        if self.used + states * columns * 16 > self.memory:
            raise TooWide(
                f"the space needs more than {self.memory >> 20} MiB to be compiled: "
                f"more than {edges} partial configs have to be told apart"
            )

    # Counting ------------------------------------------------------------------------------------------

    def _count(self, order: list[str], raw: list[tuple[int, Ints, Ints, Ints]]) -> Chain:
        """From the last layer to the first: how many points lie below each edge; edges without any go."""
        counts: Ints = np.ones(1, dtype=np.int64)
        number: Ints = np.zeros(1, dtype=np.int64)  # the number that each state of the layer below keeps
        layers: list[Layer] = []
        for name, (states, *edges) in zip(reversed(order), reversed(raw), strict=True):
            keep = np.flatnonzero(counts[edges[2]])
            parent, place, child = (e[keep] for e in edges) if len(keep) < len(edges[2]) else edges
            below = counts[child]
            before = _running(below)
            starts = np.flatnonzero(np.diff(parent, prepend=-1)) if len(parent) else np.zeros(0, dtype=np.int64)
            first = np.append(starts, len(parent))
            places = self.allowed[name][place].astype(np.int32)
            layers.append(layer(self.index[name], first, places, number[child].astype(np.int32), before))
            counts = np.zeros(states, dtype=before.dtype)
            alive = parent[starts]
            counts[alive] = before[first[1:]] - before[first[:-1]]
            number = np.zeros(states, dtype=np.int64)
            number[alive] = np.arange(len(alive))
        total = int(counts[0]) if len(counts) else 0
        return Chain(tuple(reversed(layers)), total)


def _running(below: Ints) -> Ints:
    """Running totals, in 64 bits where they fit."""
    small = below.dtype != object and float(below.sum(dtype=np.float64)) < _LARGEST
    before = np.zeros(len(below) + 1, dtype=np.int64 if small else object)
    np.cumsum(below if small else below.astype(object), out=before[1:])
    return before


def _parts(names: list[str], constraints: list[Constraint]) -> list[tuple[list[str], list[Constraint]]]:
    """Knobs that no chain of constraints connects are independent."""
    root = {name: name for name in names}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for constraint in constraints:
        first, *others = constraint.scope
        for other in others:
            root[find(other)] = find(first)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(find(name), []).append(name)
    return [(group, [c for c in constraints if find(next(iter(c.scope))) == key]) for key, group in members.items()]
