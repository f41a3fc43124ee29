"""Axes that are used alike are merged: a convolution with a 1x1 filter is a matrix product."""

from __future__ import annotations

from typing import Any

import deepgen as dg
from deepgen.compiler.rules.rewrites import with_flat_rows, with_joined
from deepgen.operators.expr.nodes import Expression, HasExpression


def joined(name: str, **words: Any) -> Expression:
    operator = dg.operator(name, **words)
    assert isinstance(operator, HasExpression)
    return with_joined(operator.expression())


def conv(**words: Any) -> Expression:
    return joined("dilated_conv2d", **{"N": 2, "H": 6, "W": 5, "CI": 8, "CO": 4, "k": 1, "dilation": 1, **words})


def test_a_filter_of_one_pixel_is_a_product_of_matrices() -> None:
    last = conv(epilogue="bias,residual")
    assert last.shape_of("x") == (60, 8) and last.shape_of("residual") == last.shape_of("y") == (60, 4)
    assert [axis.extent for axis in last.stages[0].reduced] == [8]
    first = conv(layout="nchw")
    assert first.shape_of("x") == (2, 8, 30) and first.shape_of("y") == (2, 4, 30)


def test_what_tells_places_apart_keeps_axes_apart() -> None:
    for words in ({"k": 3}, {"stride": 2}, {"pad": 1}):
        assert conv(**words).shape_of("x") == (2, 6, 5, 8)
    assert joined("bmm", B=4, M=8, N=6, K=8).shape_of("A") == (4, 8, 8)  # B has a separate matrix for each
    assert joined("gemm", M=8, N=6, K=8).shape_of("C") == (8, 6)


def test_axes_that_are_reduced_become_one_where_that_is_wanted() -> None:
    x, over = dg.tensor("x", (2, 3, 4, 5)), [dg.reduce_axis(f"k{n}", size) for n, size in enumerate((4, 5))]
    mean = dg.compute("mean", (2, 3), lambda i, j: dg.sum(x[i, j, over[0], over[1]], *over) / 20)
    plain = dg.expression(dg.compute("y", x.shape, lambda i, j, k, m: x[i, j, k, m] - mean[i, j]))
    assert with_joined(plain) == plain
    whole = with_joined(plain, reductions=True)
    assert whole.shape_of("x") == whole.shape_of("y") == (6, 20)
    scale = dg.tensor("scale", (3, 4))
    grouped = dg.expression(dg.compute("y", x.shape, lambda i, j, k, m: (x[i, j, k, m] - mean[i, j]) * scale[j, k]))
    assert with_joined(grouped, reductions=True).shape_of("y") == (2, 3, 4, 5)
    flat = with_flat_rows(grouped)
    assert flat.shape_of("x") == flat.shape_of("y") == (2, 3, 20) and flat.shape_of("scale") == (3, 4)
