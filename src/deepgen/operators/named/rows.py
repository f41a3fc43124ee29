"""Operators on rows: running sums, means, variances, normalisations, and chains without any reduction.

Sums are in f32, or in f64 for f64.
"""

from __future__ import annotations

from typing import ClassVar

from deepgen.operators.expr.builder import compute, exp, expression, max, reduce_axis, rsqrt, sum, tensor, where
from deepgen.operators.expr.builder import scan as running
from deepgen.operators.expr.elements import Element, Operand, Position
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.named import DTYPE, EPILOGUE, FLOAT, Named, Result
from deepgen.operators.words import Word

_ROWS = (Word("rows", "independent rows", needed=True), Word("cols", "length of a row", needed=True))
_EPS = Word("eps", "constant added to the variance", "number", 1e-5)


class Scan(Named):
    """Inclusive running sums of an M x N x K tensor along one of its dimensions."""

    name: ClassVar[str] = "scan"
    words: ClassVar[tuple[Word, ...]] = (
        Word("M", "first dimension of x and y", needed=True),
        Word("N", "second dimension", needed=True),
        Word("K", "third dimension", needed=True),
        Word("axis", "the dimension to reduce, 0 to 2", "choice", "2", choices=("0", "1", "2")),
        DTYPE,
        EPILOGUE,
    )

    def build(self) -> Operand:
        (of, wide, out), shape = self.formats, (self["M"], self["N"], self["K"])
        x = tensor("x", shape, of)
        plain = out == wide and self["epilogue"] == EPILOGUE.default
        total = running("y" if plain else "y_scan", shape, lambda *at: x[at].cast(wide), axis=int(self["axis"]))
        if plain:
            return total
        return compute("y", shape, lambda *at: self.finished(total[at], Result(shape, at, 2, out)))


class Mean(Named):
    """The mean of each row."""

    name: ClassVar[str] = "mean"
    words: ClassVar[tuple[Word, ...]] = (*_ROWS, FLOAT, EPILOGUE)

    def build(self) -> Operand:
        (of, wide, out), rows, cols = self.formats, self["rows"], self["cols"]
        x, over = tensor("x", (rows, cols), of), reduce_axis("c", cols)

        def element(row: Position) -> Element:
            return self.finished(sum(x[row, over].cast(wide), over) / cols, Result((rows,), (row,), 0, out))

        return compute("y", (rows,), element)


class Variance(Named):
    """The mean squared distance of each row from its mean."""

    name: ClassVar[str] = "var"
    words: ClassVar[tuple[Word, ...]] = (*_ROWS, FLOAT, EPILOGUE)

    def build(self) -> Operand:
        (of, wide, out), rows, cols = self.formats, self["rows"], self["cols"]
        x, over = tensor("x", (rows, cols), of), reduce_axis("c", cols)

        def element(row: Position) -> Element:
            away = x[row, over].cast(wide) - sum(x[row, over].cast(wide), over) / cols
            return self.finished(sum(away * away, over) / cols, Result((rows,), (row,), 0, out))

        return compute("y", (rows,), element)


class LayerNorm(Named):
    """Each row minus its mean, divided by the root of its variance, times gamma, plus beta."""

    name: ClassVar[str] = "layer_norm"
    words: ClassVar[tuple[Word, ...]] = (*_ROWS, FLOAT, _EPS, EPILOGUE)

    def build(self) -> Operand:
        (of, wide, out), rows, cols = self.formats, self["rows"], self["cols"]
        x, over = tensor("x", (rows, cols), of), reduce_axis("c", cols)
        gamma, beta = tensor("gamma", (cols,), of), tensor("beta", (cols,), of)
        mean = compute("mean", (rows,), lambda row: sum(x[row, over].cast(wide), over) / cols)

        def spread(row: Position) -> Element:
            away = x[row, over].cast(wide) - mean[row]
            return rsqrt(sum(away * away, over) / cols + self["eps"])

        scale = compute("scale", (rows,), spread)

        def element(row: Position, column: Position) -> Element:
            value = (x[row, column].cast(wide) - mean[row]) * scale[row]
            value = value * gamma[column].cast(wide) + beta[column].cast(wide)
            return self.finished(value, Result((rows, cols), (row, column), 1, out))

        return compute("y", (rows, cols), element)


class RmsNorm(Named):
    """Each row divided by the root of its mean square, times gamma."""

    name: ClassVar[str] = "rms_norm"
    words: ClassVar[tuple[Word, ...]] = (*_ROWS, FLOAT, _EPS, EPILOGUE)

    def build(self) -> Operand:
        (of, wide, out), rows, cols = self.formats, self["rows"], self["cols"]
        x, gamma, over = tensor("x", (rows, cols), of), tensor("gamma", (cols,), of), reduce_axis("c", cols)

        def spread(row: Position) -> Element:
            return rsqrt(sum(x[row, over].cast(wide) * x[row, over].cast(wide), over) / cols + self["eps"])

        scale = compute("scale", (rows,), spread)

        def element(row: Position, column: Position) -> Element:
            value = x[row, column].cast(wide) * scale[row] * gamma[column].cast(wide)
            return self.finished(value, Result((rows, cols), (row, column), 1, out))

        return compute("y", (rows, cols), element)


class Elementwise(Named):
    """A chain of operations on each element: the steps of `epilogue`."""

    name: ClassVar[str] = "elementwise"
    words: ClassVar[tuple[Word, ...]] = (
        *_ROWS,
        FLOAT,
        Word(EPILOGUE.name, EPILOGUE.help, "choice", "relu"),
    )

    def build(self) -> Operand:
        (of, wide, out), shape = self.formats, (self["rows"], self["cols"])
        x = tensor("x", shape, of)
        return compute("y", shape, lambda *at: self.finished(x[at].cast(wide), Result(shape, at, 1, out)))


def softmax_expression(rows: int, cols: int, dtype: str, wide: str) -> Expression:
    """The expression of operators/softmax.py."""
    x, over = tensor("x", (rows, cols), dtype), reduce_axis("c", cols)
    largest = compute("largest", (rows,), lambda row: max(x[row, over].cast(wide), over))
    total = compute("total", (rows,), lambda row: sum(exp(x[row, over].cast(wide) - largest[row]), over))

    def element(row: Position, column: Position) -> Element:
        # The total is between 1 and `cols`, so its inverse is equally exact, and a row needs only one division.
        return (exp(x[row, column].cast(wide) - largest[row]) * (1 / total[row])).cast(dtype)

    return expression(compute("y", (rows, cols), element), name="softmax")


def softmax_reference(rows: int, cols: int, dtype: str, least: float) -> Expression:
    """The reference of operators/softmax.py: y in f64, and y * (max - x) as its scale, but at least `least`."""
    x, over = tensor("x", (rows, cols), dtype), reduce_axis("c", cols)
    largest = compute("largest", (rows,), lambda row: max(x[row, over].cast("f64"), over))
    total = compute("total", (rows,), lambda row: sum(exp(x[row, over].cast("f64") - largest[row]), over))

    def element(row: Position, column: Position) -> Element:
        return exp(x[row, column].cast("f64") - largest[row]) / total[row]

    y = compute("y", (rows, cols), element)

    def size(row: Position, column: Position) -> Element:
        differing = y[row, column] * (largest[row] - x[row, column].cast("f64"))
        return where(differing > least, differing, least)

    return expression(y, compute("scale", (rows, cols), size), name="softmax")
