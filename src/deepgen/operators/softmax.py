"""Softmax of each row: y[r, c] = exp(x[r, c] - max_r) / sum_r, where sum_r adds up exp(x[r, :] - max_r).

A row that holds a NaN or +inf, or nothing but -inf, gives NaN in all its columns, as in numpy and torch.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

from deepgen.operators import filling
from deepgen.operators.base import REFERENCE_ROWS, Answer, Array, Operator, Tolerance, Work, least_work
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.signature import ROWS, Param, Signature
from deepgen.operators.words import Word, plain
from deepgen.vocabulary.dtypes import DType, narrow, our_name, widen
from deepgen.vocabulary.dtypes import dtype as dtype_named
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.kernel import Kernel

DTYPES = ("f32", "f64", "f16", "bf16")
PROBES = ("normal", "zeros", "large", "equal", "masked", "peak", "special")
# The magnitudes of the rows in the probe `large`, in rotation. exp() of each overflows f32 unless the row's maximum is
# subtracted first; with the smaller ones, several elements in a row are not rounded to zero.
_LARGE = (80.0, 300.0, 1e4)
_PEAK = 1e4  # far above all others, and within f16
_OPERATIONS = 5  # of an element: compare, subtract, exponential, add, scale; the exponential counts as one


@dataclass(frozen=True)
class Softmax(Operator):
    """Rows and columns of x and y, and the format of both. Sums are in f32, for f64 in f64."""

    name: ClassVar[str] = "softmax"
    reference_rows: ClassVar[int | None] = REFERENCE_ROWS
    words: ClassVar[tuple[Word, ...]] = (
        Word("rows", "independent rows", needed=True),
        Word("cols", "length of a row, over which softmax is taken", needed=True),
        Word("dtype", "data type of x and y", "choice", "f32", choices=DTYPES),
    )

    rows: int
    cols: int
    dtype: str = "f32"

    def __post_init__(self) -> None:
        for word, size in (("rows", self.rows), ("cols", self.cols)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise BadInput(f"softmax: {word} is {size!r}", allowed="must be an integer of at least 1")
        if self.dtype not in DTYPES:
            raise BadInput(f"softmax: dtype {self.dtype!r}", allowed="one of " + ", ".join(DTYPES))

    @property
    def arithmetic(self) -> DType:
        """The format in which rows are summed."""
        return dtype_named("f64" if self.dtype == "f64" else "f32")

    @property
    def _least(self) -> float:
        """The smallest scale: the smallest normal number of the format in which scales are stored."""
        return 2.0**-1022 if self.dtype == "f64" else 2.0**-126

    def signature(self) -> Signature:
        shape = ("rows", "cols")
        return Signature(
            (
                Param("x", "input", self.dtype, shape, strides=ROWS),
                Param("y", "output", self.dtype, shape, strides=ROWS),
            )
        )

    def sizes(self) -> Mapping[str, int]:
        return {"rows": self.rows, "cols": self.cols}

    def work(self) -> Work:
        return least_work(self, {self.arithmetic.name: _OPERATIONS * self.rows * self.cols})

    def probes(self) -> tuple[str, ...]:
        return PROBES

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        if probe not in PROBES:
            raise BadInput(f"softmax: unknown probe {probe!r}", allowed="one of " + ", ".join(PROBES))
        import numpy as np

        key, shape, of = (seed, zlib.crc32(b"x")), (self.rows, self.cols), dtype_named(self.dtype)
        if probe == "normal":
            return {"x": filling.normal(shape, of, key)}
        if probe == "zeros":
            return {"x": np.zeros(shape, of.numpy())}
        rng, wide = np.random.default_rng([*key, zlib.crc32(probe.encode())]), filling.wide(of)
        x = filling.normal_floats(shape, wide, key)
        every, some = np.arange(self.rows), rng.integers(self.cols, size=self.rows)  # a column in each row
        if probe == "large":
            x *= np.resize(np.array(_LARGE, wide), self.rows)[:, None]
        elif probe == "equal":
            x[:] = x[:, :1] * wide(_LARGE[-1])
        elif probe == "masked":
            kept = x[every, some]
            x[
                filling.filled(shape, np.float32, key, lambda one, out: one.random(out.size, np.float32, out)) < 0.5
            ] = -np.inf
            x[every, some] = kept
        elif probe == "peak":
            x[every, some] = _PEAK
        elif probe == "special":
            # In the first rows, so that neighbouring rows show whether anything leaks.
            for row, value in zip(every, (np.nan, np.inf), strict=False):
                x[row, some[row]] = value
            x[2:3] = -np.inf
        return {"x": narrow(x, of)}

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        import numpy as np

        x = widen(inputs["x"], dtype_named(self.dtype))
        with np.errstate(all="ignore"):
            below = x - x.max(axis=1, keepdims=True)
            terms = np.exp(below)
            values = terms / terms.sum(axis=1, keepdims=True)
            scale = values * -below
        return {"y": Answer(values, np.where(scale > self._least, scale, self._least).astype(self.arithmetic.numpy()))}

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        import numpy as np

        rows, which = np.unique(places // self.cols, return_inverse=True)
        answer = replace(self, rows=len(rows)).reference({"x": inputs["x"][rows]})["y"]
        at = which.reshape(-1), places % self.cols
        return Answer(answer.values[at], answer.scale[at])

    def reference_kernel(self, language: str) -> Kernel | None:
        from deepgen.operators.expr.reference_kernels import OwnScale, reference_kernel
        from deepgen.operators.named.rows import softmax_reference

        expression = softmax_reference(self.rows, self.cols, self.dtype, self._least)
        return reference_kernel(expression, language, {"y": OwnScale("scale", self.dtype)})

    def expression(self) -> Expression:
        from deepgen.operators.named.rows import softmax_expression

        return softmax_expression(self.rows, self.cols, self.dtype, self.arithmetic.name)

    def tolerance(self, output: str = "y", probe: str = "normal") -> Tolerance:
        """Relative to each element.

        x - max is rounded to half an epsilon of itself, and a kernel may round it once more when it changes the base of
        the exponential. exp() turns that into a relative error that grows with the difference: up to epsilon * (max -
        x), the answer's scale, here doubled. Terms are positive, so the sum's error is relative as well. It is a random
        walk of about 0.12 * epsilon * sqrt(cols) when a single thread adds all terms; eight times that is allowed. Then
        come the exponential (2 epsilon), the division (1 to 2) and the rounding to the format of y, half its epsilon.
        Values that underflow in f32 are below the smallest normal number, an error that every result is allowed.
        """
        sums = self.arithmetic.epsilon
        relative = 0.5 * dtype_named(self.dtype).epsilon + (8.0 + sqrt(self.cols)) * sums
        return Tolerance(2.0 * sums, relative)


def softmax(rows: int, cols: int, *, dtype: str = "f32") -> Softmax:
    """Softmax over the columns of each row, in one dtype."""
    rows, cols = map(plain, (rows, cols))
    return Softmax(rows, cols, our_name(dtype))
