"""A GEMM as an expression, with all that comes after the product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepgen.operators.expr.builder import compute, expression, reduce_axis, tensor
from deepgen.operators.expr.elements import Element, Position
from deepgen.operators.expr.functions import sum
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.named.epilogue import ACTIVATIONS
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm


def gemm_expression(gemm: Gemm) -> Expression:
    """Raises BadInput for what no expression says: a result that is read before it is written, tf32."""
    if gemm.beta != 0.0:
        raise BadInput(f"gemm: beta={gemm.beta:g} reads C", allowed="beta=0 in an expression")
    if "tf32" in (gemm.a, gemm.b, gemm.c):
        raise BadInput("gemm: tf32 is a way to multiply", allowed="f32 in an expression")
    shapes = {one.name: one.shape for one in gemm.tensors()}
    given = {one.name: tensor(one.name, one.shape, one.dtype.name) for one in gemm.tensors() if one.name != "C"}
    over = reduce_axis("k", gemm.k)

    def element(*at: Position) -> Element:
        *batch, row, column = at
        left = given["A"][(*batch, row, over) if gemm.layout[0] == "n" else (*batch, over, row)]
        right = given["B"][(*batch, over, column) if gemm.layout[1] == "n" else (*batch, column, over)]
        value = sum(left.cast(gemm.acc) * right.cast(gemm.acc), over)
        if gemm.alpha != 1.0:
            value = value * gemm.alpha
        if gemm.scales != "none":
            value = value * given["scale"][{"row": row, "column": column}.get(gemm.scales, 0)].cast(gemm.acc)
        if gemm.bias:
            value = value + given["bias"][column].cast(gemm.acc)
        # Its gelu is the one by tanh.
        activation = {"gelu": "gelu_tanh"}.get(gemm.activation, gemm.activation)
        if activation in ACTIVATIONS:
            value = ACTIVATIONS[activation](value)
        return value.cast(gemm.c)

    return expression(compute("C", shapes["C"], element), name="gemm", inputs=list(given.values()))
