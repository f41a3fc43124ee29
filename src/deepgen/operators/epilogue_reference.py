"""The reference of an epilogue that is a text: in float64, with the error that a correct kernel may have.

The product's own error is that of a GEMM; it goes through the text as through any expression (`expr/rounding.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from deepgen.operators.base import Answer, Array
from deepgen.operators.compare import largest, scale_format
from deepgen.operators.epilogue import EpilogueOperand, built, has_second, parse
from deepgen.operators.expr.builder import compute, expression, tensor
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.interpret import Computed, evaluate
from deepgen.operators.expr.nodes import Expression, Read
from deepgen.operators.expr.reference_terms import StageFunction, Term
from deepgen.operators.expr.rounding import Numbers
from deepgen.vocabulary.dtypes import dtype, widen

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm

_X, _Y, _F32 = "x", "y", dtype("f32")
_NARROW = ("f8e4m3",)  # formats without infinities: numbers beyond the largest become the largest


@lru_cache(maxsize=64)
def _expression(text: str, formats: tuple[str, ...], operands: tuple[EpilogueOperand, ...], c: str) -> Expression:
    """The text alone, of a matrix x. Which places it reads of an operand follows from the operand's kind."""
    x, y = tensor(_X, (2, 2), "f32"), tensor(_Y, (2, 2), "f32")
    shapes = {"n": (2,), "m": (2,), "mn": (2, 2), "0": (1,)}
    held = {one.name: tensor(one.name, shapes[one.kind], of) for one, of in zip(operands, formats, strict=True)}

    def element(i: Any, j: Any) -> Any:
        at: dict[str, Any] = {"n": j, "m": i, "mn": (i, j), "0": 0}
        second = partial(y.__getitem__, (i, j))
        return built(parse(text), x[i, j], lambda one: held[one.name][at[one.kind]].cast("f32"), second)

    both = [x, y] if has_second(text) else [x]
    return expression(compute("after", (2, 2), element), name="epilogue", inputs=[*both, *held.values()])


def _of(gemm: Gemm) -> Expression:
    return _expression(gemm.epilogue, tuple(map(gemm.format_of, gemm.operands)), gemm.operands, gemm.c)


def _shares(gemm: Gemm) -> tuple[float, float, float]:
    """The error of x: as a share of its terms' magnitude, as a share of itself, and at least. The rounding of the
    result is no part of it."""
    own = gemm.product_tolerance()
    relative = max(own.relative - 2.0 * gemm.dtypes[2].epsilon, 0.0) + 2.0 * _F32.epsilon
    floor = own.floor or 0.0
    return own.absolute, relative, floor


@dataclass(frozen=True)
class _Some:
    """Some elements: x, and what the operands have there."""

    dimensions: int
    held: Mapping[str, Numbers]

    def places(self, index: Index) -> Array:
        raise AssertionError("an epilogue has no index as a number")

    def read(self, read: Read, done: Computed) -> Numbers:
        return self.held[read.tensor]


class After:
    """What follows the product, with the inputs of a call."""

    def __init__(self, gemm: Gemm, inputs: Mapping[str, Array]) -> None:
        self.gemm, self.expression = gemm, _of(gemm)
        self.values = {one.name: widen(inputs[one.name], dtype(gemm.format_of(one))) for one in gemm.operands}

    def rows(self, product: Answer, first: int, last: int, second: Answer | None = None) -> Answer:
        """Of whole rows of a batch, counted through."""
        n, row = self.gemm.n, np.arange(first, last) % self.gemm.m
        at = {
            "n": lambda x: x[None, :],
            "m": lambda x: x[row][:, None],
            "mn": lambda x: x.reshape(-1, n)[first:last],
            "0": lambda x: x[None, :],
        }
        return self._answer(
            product, {one.name: at[one.kind](self.values[one.name]) for one in self.gemm.operands}, second
        )

    def places(self, product: Answer, batch: Array, row: Array, column: Array, second: Answer | None = None) -> Answer:
        at = {
            "n": lambda x: x[column],
            "m": lambda x: x[row],
            "mn": lambda x: x.reshape(self.gemm.batch, self.gemm.m, self.gemm.n)[batch, row, column],
            "0": lambda x: x,
        }
        return self._answer(
            product, {one.name: at[one.kind](self.values[one.name]) for one in self.gemm.operands}, second
        )

    def _sums(self, product: Answer) -> Numbers:
        absolute, relative, floor = _shares(self.gemm)
        x = product.values.astype(np.float64)
        error = absolute * product.scale.astype(np.float64) + relative * np.abs(x) + floor
        return Numbers(x, np.where(np.isfinite(error), error, 0.0))

    def _answer(self, product: Answer, operands: Mapping[str, Array], second: Answer | None) -> Answer:
        held = {_X: self._sums(product)} | ({} if second is None else {_Y: self._sums(second)})
        x = held[_X].values
        held |= {name: Numbers(values) for name, values in operands.items()}
        (stage,) = self.expression.stages
        some = _Some(x.ndim, held)
        result = evaluate(stage.value, some, Computed(self.expression, {}))
        values = np.broadcast_to(result.values, x.shape)
        if self.gemm.c in _NARROW:
            values = np.clip(values, -largest(self.gemm.dtypes[2]), largest(self.gemm.dtypes[2]))
        most = np.finfo(np.float32).max
        scale = np.where(np.isfinite(values), np.minimum(np.nan_to_num(result.error, nan=most), most), 0.0)
        return Answer(values, scale.astype(scale_format(self.gemm.dtypes[2]).numpy()))


class _Terms(StageFunction):
    """The text as C statements, with its numbers written in them."""

    def number(self, value: int) -> str:
        return f"({value}ll)"

    def real(self, value: float) -> str:
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return f"real({bits}ll)"

    def _read(self, read: Read) -> Term:
        if read.tensor == _X:
            return Term("x", "error")
        (stage,) = self.expression.stages
        if len(read.indices) == 2:
            at = "at"
        elif self.expression.shape_of(read.tensor) == (1,):
            at = "0"
        else:
            at = "i" if read.indices[0] == iterator(stage.axes[0].name) else "j"
        return Term(self.let(f"read_{read.dtype}(more_{read.tensor}, {at})"))


def terms_header(gemm: Gemm) -> str:
    """A function of `gemm_reference.cu`: an element and its error after the text, in place of the product's element and
    the magnitude of its terms."""
    expression_of, names = _of(gemm), [f"more_{one.name}" for one in gemm.operands]
    terms = _Terms(expression_of, {}, errors=True)
    (stage,) = expression_of.stages
    result = terms.term(stage.value)
    absolute, relative, floor = _shares(gemm)
    body = "\n".join(f"    {line}" for line in terms.lines)
    declared, called = "".join(f", const void* {name}" for name in names), "".join(f", {name}" for name in names)
    clipped = ""
    if gemm.c in _NARROW:
        most = largest(gemm.dtypes[2])
        clipped = f"    first = maximum(minimum(first, {most!r}), -{most!r});\n"
    return f"""// The epilogue {gemm.epilogue}
#pragma once
#include "reference.h"

#define MORE {declared}
DG_DEVICE void epilogue_terms_of(f64& first, f64& scale, i64 i, i64 j, i64 at{declared}) {{
    const f64 x = first;
    f64 error = {absolute!r} * scale + {relative!r} * size(x) + {floor!r};
    error = is_finite(error) ? error : 0;
{body}
    first = {result.value};
{clipped}    scale = scale_of({result.error or "0"}, first, 3e38);
}}
#define epilogue_terms(x, scale, batch, r, s, at) epilogue_terms_of(x, scale, r, s, at{called})
"""
