"""Products of matrices and vectors."""

from __future__ import annotations

from typing import ClassVar

from deepgen.operators.expr.builder import compute, reduce_axis, tensor
from deepgen.operators.expr.elements import Element, Operand, Position
from deepgen.operators.expr.functions import sum
from deepgen.operators.named.base import DTYPE, EPILOGUE, Named
from deepgen.operators.named.epilogue import Result
from deepgen.operators.words import Word


class Bmm(Named):
    """C[b] = A[b] B[b]: A is B x M x K. In layout `nt` the second is B x N x K, in `nn` B x K x N."""

    name: ClassVar[str] = "bmm"
    weights: ClassVar[tuple[str, ...]] = ("B",)
    words: ClassVar[tuple[Word, ...]] = (
        Word("B", "how many products", needed=True),
        Word("M", "rows of A and C", needed=True),
        Word("N", "columns of C", needed=True),
        Word("K", "columns of A", needed=True),
        DTYPE,
        Word("layout", "whether B is transposed", "choice", "nt", choices=("nn", "nt")),
        EPILOGUE,
    )

    def build(self) -> Operand:
        (of, wide, out), (b, m, n, k) = self.formats, (self[size] for size in "BMNK")
        nt = self["layout"] == "nt"
        left, right = tensor("A", (b, m, k), of), tensor("B", (b, n, k) if nt else (b, k, n), of)
        over = reduce_axis("k", k)

        def element(i: Position, row: Position, column: Position) -> Element:
            second = right[i, column, over] if nt else right[i, over, column]
            total = sum(left[i, row, over].cast(wide) * second.cast(wide), over)
            return self.finished(total, Result((b, m, n), (i, row, column), 2, out))

        return compute("C", (b, m, n), element)


class Gemv(Named):
    """y = A x: A is M x K."""

    name: ClassVar[str] = "gemv"
    words: ClassVar[tuple[Word, ...]] = (
        Word("M", "rows of A, and length of y", needed=True),
        Word("K", "columns of A, and length of x", needed=True),
        DTYPE,
        EPILOGUE,
    )

    def build(self) -> Operand:
        (of, wide, out), m, k = self.formats, self["M"], self["K"]
        matrix, vector, over = tensor("A", (m, k), of), tensor("x", (k,), of), reduce_axis("k", k)

        def element(row: Position) -> Element:
            total = sum(matrix[row, over].cast(wide) * vector[over].cast(wide), over)
            return self.finished(total, Result((m,), (row,), 0, out))

        return compute("y", (m,), element)
