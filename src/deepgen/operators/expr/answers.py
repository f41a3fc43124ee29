"""The reference of an expression: results in float64 or int64, and how far off each may be."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deepgen.operators.base import Answer, Array
from deepgen.operators.expr.contraction import plain_contraction
from deepgen.operators.expr.interpret import interpret
from deepgen.operators.expr.nodes import Expression
from deepgen.vocabulary.dtypes import dtype


def answers(expression: Expression, inputs: Mapping[str, Array]) -> dict[str, Answer]:
    done = interpret(expression, inputs)
    found = {}
    for name in expression.outputs:
        of, values = dtype(expression.dtype_of(name)), done.held[name].values
        if of.integer:
            found[name] = Answer(values)
            continue
        product = plain_contraction(expression, name)
        scale = done.held[name].error if product is None else done.sizes[product.stage.name]
        found[name] = Answer(values, _scale(scale, values, wide=of.name == "f64"))
    return found


def _scale(scale: Array, values: Array, *, wide: bool) -> Array:
    """Finite, and in f32, in which GPUs judge. What cannot be told within any error is right whatever it is."""
    kind = np.float64 if wide else np.float32
    limits = np.finfo(kind)
    with np.errstate(all="ignore"):
        unknown = np.where(np.isfinite(values), limits.max, 0.0)
        finite = np.where(np.isfinite(scale), np.minimum(scale, limits.max), unknown)
        found: Array = np.where(np.isfinite(values), finite, 0.0).astype(kind)
    return found
