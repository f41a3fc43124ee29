"""Test inputs for kernels of an expression: ordinary numbers and, for sums of products, GEMM's probes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from math import inf, nan

import numpy as np

from deepgen.operators import filling
from deepgen.operators.base import Array, Operator
from deepgen.operators.expr.contraction import Contraction, Factor, plain_contraction
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import Cast, Expression, Select, walk
from deepgen.operators.products import TINY, cancelling, signs
from deepgen.vocabulary.dtypes import dtype, narrow, widen
from deepgen.vocabulary.errors import BadInput

_LARGE = {"f16": 8.0, "f8e4m3": 64.0, "f8e5m2": 2.0**12}  # where 2**40 would overflow: the sums must stay finite
_SPECIAL = {"f8e4m3": (nan,)}  # for formats without infinities


def probes(expression: Expression) -> tuple[str, ...]:
    integers = any(dtype(t.dtype).integer for t in expression.tensors)
    product = _product(expression)
    if product is None or integers:
        wide = (filling.WIDE,) if _takes_any(expression) else ()
        return ("normal", "zeros", *wide, *(filling.EXTREMES if integers else ()))
    offered = {
        "denormal": _tiny(expression, product) is not None,
        "special": _odd(expression, product) is not None,
        "exact": product.products <= _most(expression, product) or _pairs(product) is not None,
    }
    return ("normal", "large", "zeros", *(name for name, there in offered.items() if there))


def inputs(
    operator: Operator, expression: Expression, seed: int, probe: str, usual: Callable[[int, str], dict[str, Array]]
) -> dict[str, Array]:
    if probe not in (names := (*probes(expression), *operator.float_probes())):
        raise BadInput(f"{operator.name}: unknown probe {probe!r}", allowed="one of " + ", ".join(names))
    if probe in ("normal", "zeros", filling.WIDE, *filling.EXTREMES, *operator.float_probes()):
        return usual(seed, probe)
    product = _product(expression)
    assert product is not None, "only sums of products have these probes"
    if probe == "exact":
        return _exact(expression, product, seed)
    drawn_inputs = usual(seed, "normal")
    if probe == "large":
        size = min(_LARGE.get(t.dtype, 2.0**40) for t in expression.tensors)
        return {name: _scaled(x, expression.dtype_of(name), size) for name, x in drawn_inputs.items()}
    if probe == "special":
        name = _odd(expression, product)
        assert name is not None
        flat, rng = drawn_inputs[name].reshape(-1), np.random.default_rng([seed, zlib.crc32(b"special")])
        of = dtype(expression.dtype_of(name))
        special = narrow(np.array(_SPECIAL.get(of.name, (nan, inf, -inf))), of)
        places = rng.choice(flat.size, min(flat.size, special.size), replace=False)
        flat[places] = special[: places.size]
        return drawn_inputs
    tiny = _tiny(expression, product)
    assert tiny is not None
    name, dimension = tiny
    last = np.moveaxis(drawn_inputs[name], dimension, 0)
    last[-1] = _scaled(last[-1], expression.dtype_of(name), TINY[expression.dtype_of(name)])
    return drawn_inputs


def _takes_any(expression: Expression) -> bool:
    """Whether its inputs may hold floats of all magnitudes: a product of many would overflow any format, and converting
    a float that is out of an integer format's range is undefined."""
    for stage in expression.stages:
        if stage.reduce == "prod":
            return False
        for node in walk(stage.value):
            if isinstance(node, Cast) and dtype(node.dtype).integer and not dtype(node.value.dtype).integer:
                return False
    return any(not dtype(t.dtype).integer for t in expression.tensors)


def _product(expression: Expression) -> Contraction | None:
    """The expression as a single sum of products of two tensors; None if it is anything else."""
    if len(expression.outputs) != 1:
        return None
    product = plain_contraction(expression, expression.outputs[0])
    names = [t.name for t in expression.tensors]
    if product is None or sorted((product.left.read.tensor, product.right.read.tensor)) != sorted(names):
        return None
    return product


def _tiny(expression: Expression, product: Contraction) -> tuple[str, int] | None:
    """A tensor and one of its dimensions, whose last slice makes some results tiny.

    Not all: CPUs take hundreds of cycles for each denormal number.
    """
    own = [iterator(axis.name) for axis in product.stage.axes]
    for factor in (product.right, product.left):
        for dimension, index in enumerate(factor.read.indices):
            if index in own:
                return factor.read.tensor, dimension
    return None


def _odd(expression: Expression, product: Contraction) -> str | None:
    """The tensor for special values: a kernel may multiply the other by the zeros of the padding."""
    guarded = [_guarded(factor) for factor in (product.left, product.right)]
    if all(guarded):
        return None
    return (product.right if guarded[1] else product.left).read.tensor


def _guarded(factor: Factor) -> bool:
    return any(isinstance(node, Select) for node in walk(factor.value))


def _most(expression: Expression, product: Contraction) -> int:
    """The magnitude up to which integer results are exact, so that a difference of one is detected."""
    formats = (expression.dtype_of(expression.outputs[0]), product.stage.dtype)
    return int(1.0 / (4.0 * max(dtype(name).epsilon for name in formats)))


def _pairs(product: Contraction) -> tuple[int, int, int] | None:
    """A reduced axis that is a dimension of both tensors: its extent, and the dimension in each."""
    for axis in product.stage.reduced:
        sides = [factor.read.indices for factor in (product.left, product.right)]
        if all(side.count(iterator(axis.name)) == 1 for side in sides):
            alone = [sum(axis.name in index.iterators for index in side) == 1 for side in sides]
            if all(alone):
                left, right = (side.index(iterator(axis.name)) for side in sides)
                return axis.extent, left, right
    return None


def _exact(expression: Expression, product: Contraction, seed: int) -> dict[str, Array]:
    """All products are 1 or -1, and all results are small enough to be exact: see `cancelling`."""
    rng = np.random.default_rng([seed, zlib.crc32(b"exact")])
    shapes = {t.name: t.shape for t in expression.tensors}
    names = [factor.read.tensor for factor in (product.left, product.right)]
    negative = {name: rng.integers(2, size=shapes[name], dtype=bool) for name in names}
    most, along = _most(expression, product), _pairs(product)
    if product.products > most and along is not None:
        extent, *dimensions = along
        pairs = cancelling(rng, extent, max(1, most // (product.products // extent)))
        left, right = (np.moveaxis(negative[n], d, 0) for n, d in zip(names, dimensions, strict=True))
        left[pairs.second] = left[pairs.first]
        right[pairs.second] = ~right[pairs.first]
    return {name: signs(negative[name], dtype(expression.dtype_of(name))) for name in negative}


def _scaled(x: Array, name: str, size: float) -> Array:
    return narrow(widen(x, dtype(name)) * size, dtype(name))
