"""Packed layouts: what a text means, where elements are stored, and packed tensors of expressions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators.expr.layouts import filter_layout, packed_layout
from deepgen.operators.expr.operator import as_operator
from deepgen.vocabulary import BadInput

SHAPES = {
    "OIhw4i16o4i": ((33, 20, 2, 3), (3, 2, 2, 3, 4, 16, 4)),
    "OhwI64o4i": ((70, 6, 1, 2), (2, 1, 2, 2, 64, 4)),
    "nChw16c": ((2, 17, 3, 3), (2, 2, 3, 3, 16)),
    "ABcd16b4a": ((5, 17, 3, 2), (2, 2, 3, 2, 16, 4)),
    "hwio": ((4, 3, 2, 5), (2, 5, 3, 4)),
    "OdhwI8o2i": ((9, 3, 1, 2, 2), (2, 1, 2, 2, 2, 8, 2)),
    "BA2a": ((3, 4), (4, 2, 2)),
}


@pytest.mark.parametrize("text", SHAPES)
def test_every_element_lies_where_its_places_say(text: str) -> None:
    layout, (shape, packed) = packed_layout(text), SHAPES[text]
    array = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    stored = layout.packed(array)
    assert layout.shape(shape) == stored.shape == packed
    np.testing.assert_array_equal(layout.unpacked(stored, shape), array)
    for at in product(*map(range, shape)):
        assert stored[layout.places(at)] == array[at]
    assert np.count_nonzero(stored) == array.size  # the rest is zero padding


def test_capitals_of_dimensions_without_blocks_are_left_open() -> None:
    assert packed_layout("OIHW4i16o4i") == packed_layout("OIhw4i16o4i") and packed_layout("HWIO").text == "hwio"
    symbols = packed_layout("OIhw4i16o4i").symbols(("CO", "CI", "k", "k"))
    assert symbols == ("ceil_div(CO, 16)", "ceil_div(CI, 16)", "k", "k", 4, 16, 4)


@pytest.mark.parametrize(
    "text", ["", "OO4o", "oIhw4o", "OIhw4x", "OIhw0i", "OIhw1i", "OIhw4", "4i", "OZ", "OI99999i", 5]
)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not understood"):
        packed_layout(text)


def test_filters_have_their_own_letters() -> None:
    assert filter_layout("none", 2) is None and filter_layout("OlI64o4i", 1) is not None
    for text, dimensions in (("nChw16c", 2), ("OIhw4i", 3), ("ABcd16b", 2)):
        with pytest.raises(BadInput, match="not of a filter"):
            filter_layout(text, dimensions)


def test_a_packed_tensor_of_an_expression() -> None:
    a = dg.tensor("A", (9, 10), "f64")
    b = dg.tensor("B", (12, 10), "f64", layout="AB8a4b")
    k = dg.reduce_axis("k", 10)
    c = dg.compute("C", (9, 12), lambda i, j: dg.sum(a[i, k] * b[j, k], k))
    operator = as_operator(dg.expression(c, inputs=[b, a]))
    assert [(t.name, t.shape) for t in operator.tensors()] == [("B", (2, 3, 8, 4)), ("A", (9, 10)), ("C", (9, 12))]
    inputs = operator.inputs(1)
    want = inputs["A"] @ packed_layout("AB8a4b").unpacked(inputs["B"], (12, 10)).T
    np.testing.assert_allclose(operator.reference(inputs)["C"].values, want, rtol=1e-12)
    with pytest.raises(BadInput, match="2 dimensions"):
        dg.tensor("B", (12, 10, 3), "f64", layout="AB8a4b")
