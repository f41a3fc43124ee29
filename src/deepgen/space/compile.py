"""Compiles knobs and requirements to a decision diagram: parts, knob order, states merged layer by layer, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.definition import Knob
from deepgen.space.diagram import Chain, Diagram
from deepgen.space.engine import DEFAULT_MEMORY, Budget, TooWide
from deepgen.space.estimate import sharp_combinations
from deepgen.space.expr import Expr, Requirement
from deepgen.space.layers import Active, Domains, Edges, Ints, State, count_points, merge
from deepgen.space.nodes import Nodes, condition_parts
from deepgen.space.order import Planner, quick_order
from deepgen.space.rows import variable

_QUICK_MEMORY = 1 << 26  # with the quick order some spaces of GPU families take over 32 MiB, and a fifth of a second
_PATIENCE = 3  # a wide part's first attempts may each use one in this many parts of the memory
_WORK = 0.18  # array elements that may be computed per byte of memory
_BYTES_OF_AN_EDGE = 28  # parent, place and child until counted; then place, child and count
_CHUNK = 1 << 18  # rows expanded at a time, so that temporary arrays stay small


@dataclass(frozen=True, eq=False)
class Constraint:
    """A total condition, and the knobs it depends on."""

    expr: Expr
    scope: frozenset[str]


def compile_space(
    knobs: Sequence[Knob],
    requirements: Sequence[Requirement],
    memory: int = DEFAULT_MEMORY,
    orders: Sequence[Sequence[str]] = (),
) -> Diagram:
    """The diagram of all configs that meet the requirements. Raises TooWide if it needs more than `memory` bytes.

    `orders` are knob orders from an earlier compilation; they are ignored for parts with other knobs.
    """
    return Compiler(knobs, memory, orders).run(requirements)


class Compiler:
    def __init__(self, knobs: Sequence[Knob], memory: int, orders: Sequence[Sequence[str]]) -> None:
        self.knobs, self.memory = knobs, memory
        self.orders = {frozenset(order): list(order) for order in orders}
        self.new_orders: list[tuple[str, ...]] = []  # orders to store for the next compilation
        self.index = {k.name: i for i, k in enumerate(knobs)}
        fixed = {k.name: k.values[0] if k.values else None for k in knobs if k.places == 1}
        self.nodes = Nodes({k.name: variable(k) for k in knobs if k.places > 1}, fixed)
        self.allowed: dict[str, Ints] = {k.name: np.arange(k.places) for k in knobs if k.places > 1}
        self.work = memory * _WORK
        self.on = Domains(self.nodes, {k.name: k for k in knobs}, self.allowed, Budget(self.work))
        self.used = 0
        self.widths: list[int] = []  # the number of states after each knob of the current chain

    def run(self, requirements: Sequence[Requirement]) -> Diagram:
        constraints = self.narrowed(requirements)
        if constraints is None:
            return self.diagram([Chain((), 0)])
        chains = []
        for names, own in parts(list(self.allowed), constraints):
            if not own and len(self.allowed[names[0]]) == 1:
                continue
            chains.append(self._part({n: self.allowed[n] for n in names}, own))
        return self.diagram(chains)

    def diagram(self, chains: Sequence[Chain]) -> Diagram:
        """The diagram of these parts; knobs outside them have only one place left."""
        fixed = [(i, 0) for i, k in enumerate(self.knobs) if k.places == 1]
        held = {layer.variable for chain in chains for layer in chain.layers}
        for name, places in self.allowed.items():
            if len(places) == 1 and self.index[name] not in held:
                fixed.append((self.index[name], int(places[0])))
        return Diagram(tuple(chains), len(self.knobs), tuple(fixed), tuple(self.new_orders))

    def narrowed(self, requirements: Sequence[Requirement]) -> list[Constraint] | None:
        """The constraints on several knobs, after applying those on one; None if no config can meet all of them."""
        left = []
        for expr in condition_parts(self.nodes, self.knobs, requirements):
            constraint = Constraint(expr, self.nodes.scope(expr))
            if not constraint.scope:
                if not bool(evaluate_arrays(self.nodes, constraint.expr, {})):
                    return None
            elif len(constraint.scope) == 1:
                (name,) = constraint.scope
                places = self.allowed[name]
                self.allowed[name] = places[evaluate_arrays(self.nodes, constraint.expr, {name: places}).astype(bool)]
            else:
                left.append(constraint)
        return None if any(len(a) == 0 for a in self.allowed.values()) else left

    # One part ---------------------------------------------------------------------------------------------------------

    def _part(self, allowed: dict[str, Ints], own: list[Constraint]) -> Chain:
        """Most parts are small in any sensible order: only for the others a better order is searched."""
        exprs = [c.expr for c in own]
        if any(e.op == "points" for e in exprs):
            return self.chain(list(allowed), own, self.memory)  # points are equally wide in any order
        used = self.used
        cached = self.orders.get(frozenset(allowed), [])
        if len(cached) == len(allowed):
            sharp_combinations(self.nodes, allowed, exprs)  # as in the search for the order
            try:
                return self._planned(cached, own, self.memory)
            except TooWide:
                self.used = used
        if not any(self.nodes.needs_objects(e) for e in exprs):
            try:
                return self.chain(quick_order(self.nodes, allowed, exprs), own, min(self.memory, used + _QUICK_MEMORY))
            except TooWide:
                self.used = used
        planner = Planner(self.nodes, allowed, exprs, self.on.budget)
        for plan in (planner.best, planner.by_blocks, planner.best):
            order = plan()
            try:
                return self._planned(order, own, used + (self.memory - used) // _PATIENCE)
            except TooWide:
                self.used = used
                planner.learn(order, self.widths)
        return self._planned(planner.best(), own, self.memory)

    def _planned(self, order: list[str], own: list[Constraint], memory: int) -> Chain:
        chain = self.chain(order, own, memory)
        self.new_orders.append(tuple(order))
        return chain

    def chain(self, order: list[str], constraints: list[Constraint], memory: int) -> Chain:
        """Knob by knob: expand every state by every place, drop what a constraint forbids, merge equal states."""
        position = {name: i for i, name in enumerate(order)}
        active: dict[int, Active] = {}
        layers: list[Edges] = []
        self.widths = []
        states = 1
        for name in order:
            touched = []
            for constraint in constraints:
                if name in constraint.scope:
                    if id(constraint) not in active:
                        own = sorted(constraint.scope, key=position.__getitem__)
                        active[id(constraint)] = Active(self.on, constraint.expr, own)
                        active[id(constraint)].start(states)
                    touched.append(active[id(constraint)])
            parent, place = self._expand(name, states, touched, list(active.values()), memory)
            active = {key: a for key, a in active.items() if a.done < len(a.order)}
            child, first = merge([c for a in active.values() for c in a.columns()], len(parent))
            for a in active.values():
                a.state = a.taken(first)
            places = self.allowed[name][place]
            layers.append(Edges(states, *(e.astype(np.int32) for e in (parent, places, child))))
            states = len(first)
            self.widths.append(states)
            if states == 0:
                return Chain((), 0)
        # Layers are released one by one: their memory is needed for the counted ones.
        return Chain(*count_points((self.index[name], layers.pop()) for name in reversed(order)))

    def _expand(
        self, name: str, states: int, touched: list[Active], active: list[Active], memory: int
    ) -> tuple[Ints, Ints]:
        """All transitions by one more knob that no touched constraint forbids: (state, place) of each."""
        size = len(self.allowed[name])
        step = max(1, _CHUNK // size)
        parts, rows = [], 0
        for start in range(0, states, step):
            parts.append(self._expand_some(name, slice(start, min(start + step, states)), touched, active))
            rows += len(parts[-1][0])
            self._check(rows, sum(len(s) if isinstance(s, dict) else 1 for s in parts[-1][2]), memory)
        self.used += rows * _BYTES_OF_AN_EDGE
        parent, place = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
        for i, a in enumerate(active):
            a.state = _joined([p[2][i] for p in parts])
        for a in touched:
            a.done += 1
            a.settle(len(parent))
        alive = [a.state >= 0 for a in touched if not isinstance(a.state, dict)]
        dead = ~np.logical_and.reduce(alive) if alive else np.zeros(0, dtype=np.bool_)
        if dead.any():  # only a newly made table can reveal this
            left = np.flatnonzero(~dead)
            parent, place = parent[left], place[left]
            for a in active:
                a.state = a.taken(left)
        return parent, place

    def _expand_some(
        self, name: str, some: slice, touched: list[Active], active: list[Active]
    ) -> tuple[Ints, Ints, list[State]]:
        before = [a.taken(some) for a in active]
        alive = np.ones((some.stop - some.start, len(self.allowed[name])), dtype=np.bool_)
        followed: dict[int, Ints] = {}
        for i, a in enumerate(active):
            if a in touched and (after := a.follow(before[i])) is not None:
                alive &= after >= 0
                followed[i] = after
        parent, place = np.nonzero(alive)
        after_all: list[State] = []
        keep = np.ones(len(parent), dtype=np.bool_)
        for i, (a, state) in enumerate(zip(active, before, strict=True)):
            if i in followed:
                after_all.append(followed[i][parent, place])
            elif a in touched:
                moved, ok = a.advance(_rows(state, parent), self.allowed[name][place])
                after_all.append(moved)
                keep &= ok
            else:
                after_all.append(_rows(state, parent))
        if not keep.all():
            rows = np.flatnonzero(keep)
            parent, place, after_all = parent[rows], place[rows], [_rows(s, rows) for s in after_all]
        return parent + some.start, place, after_all

    def _check(self, rows: int, columns: int, memory: int) -> None:
        """Raise if rows exceed the memory: a layer in progress briefly holds two copies of each column, and keys."""
        if self.used + rows * (_BYTES_OF_AN_EDGE + 16 * columns + 64) > memory:
            self.widths.append(rows)
            raise TooWide(
                f"the space needs more than {memory >> 20} MiB to be compiled: "
                f"more than {rows} partial configs must be kept apart at once"
            )


def _rows(state: State, rows: Ints) -> State:
    return {slot: array[rows] for slot, array in state.items()} if isinstance(state, dict) else state[rows]


def _joined(states: list[State]) -> State:
    if len(states) == 1:
        return states[0]
    slots = [s for s in states if isinstance(s, dict)]
    if slots:
        return {slot: np.concatenate([s[slot] for s in slots]) for slot in slots[0]}
    return np.concatenate([s for s in states if not isinstance(s, dict)])


def parts(names: list[str], constraints: list[Constraint]) -> list[tuple[list[str], list[Constraint]]]:
    """Split knobs into independent groups, which no chain of constraints connects."""
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
