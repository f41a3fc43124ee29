"""A diagram of a space that is too wide to be compiled: of as many of its requirements as fit.

It holds every valid config, and others too. Requirements on few knobs come first; each of the rest is kept if the part
of the space that it ties together stays small, else a weaker form of it, else nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from deepgen.space.active import TABLE_CELLS
from deepgen.space.compile import Compiler, Constraint, parts
from deepgen.space.definition import Knob
from deepgen.space.diagram import Chain, Diagram
from deepgen.space.engine import TooWide
from deepgen.space.estimate import sharp_combinations
from deepgen.space.expr import Expr, Requirement
from deepgen.space.nodes import Nodes
from deepgen.space.order import quick_order

_SHARE = 16  # of the whole memory and work, what one more requirement may take

_STARTS = 3


@dataclass(frozen=True)
class Relaxed:
    """The diagram, and the conditions that it does not hold."""

    diagram: Diagram
    nodes: Nodes
    left: tuple[Expr, ...]


def relax(knobs: Sequence[Knob], requirements: Sequence[Requirement], memory: int) -> Relaxed:
    """Raises TooWide where even the knobs alone need more than `memory` bytes."""
    return _Relaxation(Compiler(knobs, memory, ())).run(requirements)


@dataclass(frozen=True)
class _Part:
    """Knobs that requirements tie together, and their diagram."""

    names: list[str]
    kept: list[Constraint]
    chain: Chain


class _Relaxation:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler, self.nodes = compiler, compiler.nodes
        self.done: list[_Part] = []

    def run(self, requirements: Sequence[Requirement]) -> Relaxed:
        compiler = self.compiler
        constraints = compiler.narrowed(requirements)
        if constraints is None:
            return Relaxed(compiler.diagram([Chain((), 0)]), self.nodes, ())
        sharp_combinations(self.nodes, compiler.allowed, [c.expr for c in constraints])
        constraints = sorted(constraints, key=lambda c: (self._cells(c), len(c.scope)))
        small = [c for c in constraints if self._cells(c) <= TABLE_CELLS]
        left: list[Constraint] = []
        for names, own in parts(list(compiler.allowed), small):
            try:
                self.done.append(self._compiled(names, own))
            except TooWide:
                self.done += [self._compiled([name], []) for name in names]
                left += [c for c in own if not self._add(c)]
        for constraint in constraints[len(small) :]:
            if not self._add(constraint):
                left.append(constraint)
                for weaker in self._weaker(constraint):
                    self._add(weaker)
        return Relaxed(compiler.diagram([p.chain for p in self.done]), self.nodes, tuple(c.expr for c in left))

    def _cells(self, constraint: Constraint) -> int:
        return prod(self.compiler.on.sizes(list(constraint.scope)))

    def _add(self, constraint: Constraint) -> bool:
        """Keep one more constraint, if the parts that it joins stay small."""
        joined = [p for p in self.done if constraint.scope.intersection(p.names)]
        try:
            merged = self._compiled(
                [n for p in joined for n in p.names], [c for p in joined for c in p.kept] + [constraint]
            )
        except TooWide:
            return False
        self.done = [*(p for p in self.done if p not in joined), merged]
        return True

    def _compiled(self, names: list[str], own: list[Constraint]) -> _Part:
        compiler = self.compiler
        allowed = {n: compiler.allowed[n] for n in names}
        compiler.on.budget.left = compiler.work / _SHARE
        used = compiler.used
        try:
            order = quick_order(self.nodes, allowed, [c.expr for c in own], _STARTS)
            return _Part(names, own, compiler.chain(order, own, used + compiler.memory // _SHARE))
        finally:
            compiler.used = used

    def _weaker(self, constraint: Constraint) -> list[Constraint]:
        weaker = [Constraint(w, self.nodes.scope(w)) for w in weaker_forms(self.nodes, constraint.expr)]
        return sorted((w for w in weaker if w.scope < constraint.scope), key=self._cells)


def weaker_forms(nodes: Nodes, expr: Expr) -> list[Expr]:
    """What follows from a limit on a sum for each of its terms alone: the others are no smaller than they can be."""
    if expr.op == "or":
        return [
            nodes.any(*(weaker if other is arg else other for other in expr.args))
            for arg in expr.args
            for weaker in weaker_forms(nodes, arg)
        ]
    if expr.op in (">", ">="):
        expr = nodes.make("<" if expr.op == ">" else "<=", expr.args[::-1])
    if expr.op not in ("<", "<="):
        return []
    total, limit = nodes.flattened(expr.args[0]), nodes.bounds(expr.args[1])
    terms = total.args if total.op == "+" and nodes.kind(total) == "int" else ()
    lows = [nodes.bounds(t) for t in terms]
    if limit is None or any(low is None for low in lows):
        return []
    least = [low[0] for low in lows if low is not None]
    return [
        nodes.make(expr.op, (term, nodes.make("const", (), limit[1] - (sum(least) - own))))
        for term, own in zip(terms, least, strict=True)
        if nodes.scope(term)
    ]
