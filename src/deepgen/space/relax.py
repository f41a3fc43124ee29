"""A relaxed diagram for a space too large to compile: it includes as many of the requirements as fit.

It contains every valid config, and others too. Requirements on few knobs are added first. Each of the rest is added if
the part of the space that it connects stays small, otherwise in a weaker form, or not at all. Samples from the diagram
are checked against all requirements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space.arrays import evaluate_arrays
from deepgen.space.compile import Compiler, Constraint, parts
from deepgen.space.definition import Knob
from deepgen.space.diagram import Chain, Diagram
from deepgen.space.engine import Size, TooWide, TooWideToCount
from deepgen.space.estimate import sharp_combinations
from deepgen.space.expr import Expr, Requirement
from deepgen.space.layers import TABLE_CELLS
from deepgen.space.nodes import Nodes
from deepgen.space.order import quick_order

_SHARE = 16  # one more requirement may take one in this many parts of the memory and work
_STARTS = 3


@dataclass(frozen=True)
class Relaxed:
    """The diagram, and the conditions that it does not include."""

    diagram: Diagram
    nodes: Nodes
    left: tuple[Expr, ...]


def relax(knobs: Sequence[Knob], requirements: Sequence[Requirement], memory: int) -> Relaxed:
    """Relax the requirements. Raises TooWide if even the knobs alone need more than `memory` bytes."""
    return _Relaxation(Compiler(knobs, memory, ())).run(requirements)


@dataclass(frozen=True)
class _RelaxedPart:
    """Knobs connected by requirements, and their diagram."""

    names: list[str]
    kept: list[Constraint]
    chain: Chain


class _Relaxation:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler, self.nodes = compiler, compiler.nodes
        self.done: list[_RelaxedPart] = []

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
        """Add one more constraint, if the parts that it connects stay small."""
        joined = [p for p in self.done if constraint.scope.intersection(p.names)]
        try:
            merged = self._compiled(
                [n for p in joined for n in p.names], [c for p in joined for c in p.kept] + [constraint]
            )
        except TooWide:
            return False
        self.done = [*(p for p in self.done if p not in joined), merged]
        return True

    def _compiled(self, names: list[str], own: list[Constraint]) -> _RelaxedPart:
        compiler = self.compiler
        allowed = {n: compiler.allowed[n] for n in names}
        compiler.on.budget.left = compiler.work / _SHARE
        used = compiler.used
        try:
            order = quick_order(self.nodes, allowed, [c.expr for c in own], _STARTS)
            return _RelaxedPart(names, own, compiler.chain(order, own, used + compiler.memory // _SHARE))
        finally:
            compiler.used = used

    def _weaker(self, constraint: Constraint) -> list[Constraint]:
        weaker = [Constraint(w, self.nodes.scope(w)) for w in weaker_forms(self.nodes, constraint.expr)]
        return sorted((w for w in weaker if w.scope < constraint.scope), key=self._cells)


def weaker_forms(nodes: Nodes, expr: Expr) -> list[Expr]:
    """Weaker forms of a limit on a sum: a limit on each term alone, with the other terms at their minimum."""
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


_TOGETHER = 1 << 14  # rows drawn at a time
_MOST = 1 << 19  # most rows drawn to find a valid one: a solver finds rarer ones faster
_ENOUGH = 400  # valid rows needed to estimate their share


class Partial:
    """Samples the relaxed diagram and checks the samples. Raises TooWide if valid configs are too rare for that."""

    uniform = True
    orders: tuple[tuple[str, ...], ...] = ()

    def __init__(self, name: str, names: Sequence[str], relaxed: Relaxed, reason: str) -> None:
        self.name, self.names, self.reason = name, names, reason
        self.diagram, self.nodes, self.left = relaxed.diagram, relaxed.nodes, relaxed.left
        self._size = self._estimate()

    def _estimate(self) -> Size:
        rng = np.random.default_rng(0)
        drawn = valid = 0
        while valid < _ENOUGH and drawn < _MOST and not (drawn == 0 and self.diagram.empty()):
            valid += int(self.check(self.diagram.drawn_rows(_TOGETHER, rng)).sum())
            drawn += _TOGETHER
        if valid == 0:
            raise TooWide(f"{self.reason}, and valid configs are too rare to find by sampling")
        share = valid / drawn
        return Size(self.diagram.count() * valid // drawn, exact=False, error=sqrt((1 - share) / valid))

    def check(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which rows of the diagram meet the requirements that it does not include."""
        fits = np.arange(len(rows))
        for expr in self.left:
            scope = self.nodes.scope(expr)
            places = {n: rows[fits, i] for i, n in enumerate(self.names) if n in scope}
            fits = fits[np.broadcast_to(evaluate_arrays(self.nodes, expr, places), fits.shape).astype(np.bool_)]
        mask = np.zeros(len(rows), dtype=np.bool_)
        mask[fits] = True
        return mask

    # Queries that need all configs ------------------------------------------------------------------------------------

    def size(self) -> Size:
        return self._size

    def count(self) -> int:
        raise TooWideToCount(
            f"space {self.name!r} has no exact count: {self.reason}. It has {self._size} configs; "
            "to count it, restrict it or raise its memory limit"
        )

    @property
    def ranks(self) -> int:
        return self.diagram.count()

    def empty(self) -> bool:
        return False

    # Rows and ranks ---------------------------------------------------------------------------------------------------

    def row(self, rank: int) -> list[int] | None:
        row = self.diagram.row(rank)
        return row if self._fits(row) else None

    def rank(self, row: Sequence[int]) -> int | None:
        rank = self.diagram.rank(row)
        return rank if rank is not None and self._fits(row) else None

    def contains(self, row: Sequence[int]) -> bool:
        return self.rank(row) is not None

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[Any]:
        return self.diagram.rows(ranks)

    def valid(self, ranks: Sequence[int]) -> list[bool]:
        return self.check(self.diagram.rows(ranks)).tolist()  # type: ignore[no-any-return]

    def chunks(self, start: int) -> Iterator[npt.NDArray[Any]]:
        for rows in self.diagram.chunks(start):
            yield rows[self.check(rows)]

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        return self.diagram.rows(self.drawn_ranks(n, rng))

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]:
        results: list[int] = []
        while len(results) < n:
            ranks = self.diagram.drawn_ranks(self._needed(n - len(results)), rng)
            results += [rank for rank, fits in zip(ranks, self.valid(ranks), strict=True) if fits]
        return results[:n]

    def _needed(self, n: int) -> int:
        """Roughly the number of rows to draw for n valid ones."""
        needed = (n + 3) * self.diagram.count() // max(1, self._size.count)
        return int(min(max(needed, 64), _TOGETHER))

    def one_knob_away(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return self._only_valid(self.diagram.one_knob_away(row, absent))

    def repaired(self, row: Sequence[int], absent: Sequence[int]) -> list[list[int]]:
        return self._only_valid(self.diagram.repaired(row, absent))

    def nearest(self, row: Sequence[int], absent: Sequence[int]) -> tuple[int, list[int]] | None:
        """The nearest row according to the diagram; None if it is not valid."""
        near = self.diagram.nearest(row, absent)
        return near if near is not None and self._fits(near[1]) else None

    def _fits(self, row: Sequence[int]) -> bool:
        return bool(self.check(np.array([row]))[0])

    def _only_valid(self, rows: list[list[int]]) -> list[list[int]]:
        mask = self.check(np.array(rows, dtype=np.int64).reshape(len(rows), len(self.names)))
        return [row for row, fits in zip(rows, mask.tolist(), strict=True) if fits]
