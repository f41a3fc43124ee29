"""Random expressions on rows and elements: like `drawn.py`, without products, with longer rows, and with reductions
that read the results of others: variances, argmax, log-softmax, gates.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random
from typing import Any

from drawn import View, _Drawing, _wide

import deepgen as dg
from deepgen.operators.expr.elements import Element
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary.errors import BadInput

LARGEST = 1 << 15  # elements
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 24, 33, 64, 65, 100, 128, 209, 300, 512, 1030, 2056, 4100, 9000)


def random_rows(random: Random) -> Expression:
    """A legal expression whose integers do not overflow for any inputs."""
    while True:
        try:
            expression = _Rows(random).expression()
            ExpressionOperator(expression)
            return expression
        except BadInput:
            continue


class _Rows(_Drawing):
    def expression(self) -> Expression:
        makers: list[Callable[[], None]] = [self.elementwise, self.reduction, self.reduction, self.normalised]
        makers += [self.chained, self.chained, self.scan, self.gated, self.window]
        for _ in range(self.random.choice((1, 1, 1, 1, 2))):
            self.random.choice(makers)()
        results = self.stages[-1:]
        return dg.expression(*results, *(self.stages[:-1] if self.random.random() < 0.1 else []))

    def size(self) -> int:
        return self.random.choice(SIZES)

    def shape(self, ranks: Any = (1, 2, 2, 2, 3, 3, 4)) -> tuple[int, ...]:
        while True:
            shape = tuple(self.size() for _ in range(self.random.choice(ranks)))
            if prod(shape) <= LARGEST:
                return shape

    def source(self) -> View:
        """Unchanged more often than not."""
        return super().source() if self.random.random() < 0.4 else self.tensor(self.shape())

    def gated(self) -> None:
        view, wide = self.source(), ""
        half, wide = view.shape[-1] // 2, _wide(view.dtype)
        if half == 0 or not wide.startswith("f"):
            raise BadInput("nothing to gate")

        def element(*at: Any) -> Element:
            one, other = (view.at(*at[:-1], place).cast(wide) for place in (at[-1], at[-1] + half))
            return self.finished(one * dg.sigmoid(other))

        self.stage((*view.shape[:-1], half), element)

    def chained(self) -> None:
        view = self.source()
        axes = self.random.choice([[len(view.shape) - 1], self.random.sample(range(len(view.shape)), 1)])
        if self.random.random() < 0.2:
            axes = [*range(len(view.shape))]
        kept, count = [n for n in range(len(view.shape)) if n not in axes], prod(view.shape[n] for n in axes)
        wide = _wide(view.dtype)
        if not wide.startswith("f"):
            raise BadInput("of floats")
        shape = tuple(view.shape[n] for n in kept) or (1,)
        way = self.random.choice(("variance", "place", "log", "norm") if len(axes) == 1 else ("variance", "norm"))

        def reduced(how: Any, at: Any, value: Callable[..., Element]) -> Element:
            over = {n: dg.reduce_axis(f"k{n}", view.shape[n]) for n in axes}
            place = [over[n] if n in over else at[kept.index(n)] for n in range(len(view.shape))]
            return how(value(view.at(*place).cast(wide), place), *over.values())

        name = f"S{len(self.stages)}"
        if way in ("variance", "norm"):
            first = dg.compute(f"{name}_mean", shape, lambda *at: reduced(dg.sum, at, lambda x, _: x) / count)
        else:
            first = dg.compute(f"{name}_most", shape, lambda *at: reduced(dg.max, at, lambda x, _: x))
        if way == "place":
            length, (axis,) = count, axes

            def where(at: Any) -> Callable[..., Element]:
                return lambda x, place: dg.where(x == first[at], place[axis].cast("i64"), length)

            self.stage(shape, lambda *at: reduced(dg.min, at, where(at)))
            return
        apart = dg.exp if way == "log" else (lambda x: x * x)
        second = dg.compute(f"{name}_sum", shape, lambda *at: reduced(dg.sum, at, lambda x, _: apart(x - first[at])))
        if way == "variance":
            self.stage(shape, lambda *at: self.finished(second[at] / count))
            return

        def element(*at: Any) -> Element:
            own = tuple(at[n] for n in kept) or (0,)
            away = view.at(*at).cast(wide) - first[own]
            value = away - dg.log(second[own]) if way == "log" else away * dg.rsqrt(second[own] / count + 1e-3)
            return self.finished(value)

        self.stage(view.shape, element)
