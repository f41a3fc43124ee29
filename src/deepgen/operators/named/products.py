"""Products of matrices and vectors by expressions; also of a GEMM, with all that comes after the product."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deepgen.operators.expr.builder import compute, expression, reduce_axis, tensor
from deepgen.operators.expr.elements import Element, Operand, Position
from deepgen.operators.expr.functions import sum
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.named.base import ACTIVATIONS, DTYPE, EPILOGUE, Named, Result
from deepgen.operators.words import Word
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm


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


def gemm_expression(gemm: Gemm) -> Expression:
    """Raises BadInput for what no expression says: a result that is read before it is written, tf32."""
    if gemm.beta != 0.0:
        raise BadInput(f"gemm: beta={gemm.beta:g} reads C", allowed="beta=0 in an expression")
    if "tf32" in (gemm.a, gemm.b, gemm.c):
        raise BadInput("gemm: tf32 is a way to multiply", allowed="f32 in an expression")
    shapes = {one.name: one.shape for one in gemm.tensors()}
    tensors = {one.name: tensor(one.name, one.shape, one.dtype.name) for one in gemm.tensors() if one.name != "C"}
    over = reduce_axis("k", gemm.k)

    def element(*at: Position) -> Element:
        *batch, row, column = at
        left = tensors["A"][(*batch, row, over) if gemm.layout[0] == "n" else (*batch, over, row)]
        right = tensors["B"][(*batch, over, column) if gemm.layout[1] == "n" else (*batch, column, over)]
        value = sum(left.cast(gemm.acc) * right.cast(gemm.acc), over)
        if gemm.alpha != 1.0:
            value = value * gemm.alpha
        if gemm.scales != "none":
            value = value * tensors["scale"][{"row": row, "column": column}.get(gemm.scales, 0)].cast(gemm.acc)
        if gemm.bias:
            value = value + tensors["bias"][column].cast(gemm.acc)
        # Its gelu is the one by tanh.
        activation = {"gelu": "gelu_tanh"}.get(gemm.activation, gemm.activation)
        if activation in ACTIVATIONS:
            value = ACTIVATIONS[activation](value)
        return value.cast(gemm.c)

    return expression(compute("C", shapes["C"], element), name="gemm", inputs=list(tensors.values()))
