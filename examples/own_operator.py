"""Operators and kernels of your own: a vector addition and a row-wise softmax, each with a family of C kernels.

Run it to tune both on this machine's processor:

    python examples/own_operator.py

The command line can then reopen and resume the studies: they contain a copy of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import deepgen as dg
from deepgen.extend import (
    Answer,
    Cpu,
    Kernel,
    LaunchPlan,
    Operator,
    Param,
    ScalarArg,
    Signature,
    Source,
    Space,
    Step,
    Target,
    TensorArg,
    Tolerance,
    Word,
    Work,
    least_work,
)

# --- a vector addition ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VectorAdd(Operator):
    """c = a + b."""

    name: ClassVar[str] = "vadd"
    words: ClassVar[tuple[Word, ...]] = (Word("n", "numbers in each vector", needed=True),)

    n: int

    def signature(self) -> Signature:
        return Signature(
            (
                Param("a", "input", "f32", ("n",)),
                Param("b", "input", "f32", ("n",)),
                Param("c", "output", "f32", ("n",)),
            )
        )

    def sizes(self) -> Mapping[str, int]:
        return {"n": self.n}

    def work(self) -> Work:
        return least_work(self, {"f32": self.n})

    def reference(self, inputs: Mapping[str, Any]) -> Mapping[str, Answer]:
        return {"c": Answer(inputs["a"].astype(np.float64) + inputs["b"])}

    @classmethod
    def examples(cls) -> tuple[VectorAdd, ...]:
        return cls(1), cls(1000)


VADD = r"""
#include <stdint.h>

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));

void vadd(const float *a, const float *b, float *c, int64_t n) {
    int64_t i = 0;
    for (; i + LANES * UNROLL <= n; i += LANES * UNROLL)
        for (int u = 0; u < UNROLL; u++) {
            const int64_t at = i + u * LANES;
            *(vec *)(c + at) = *(const vec *)(a + at) + *(const vec *)(b + at);
        }
    for (; i < n; i++) c[i] = a[i] + b[i];
}
"""


class VectorAddFamily:
    """Vectors of LANES numbers, UNROLL of them per loop iteration."""

    name = "c_vadd"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(operator, VectorAdd):
            return "it supports vadd only"
        return None if isinstance(target, Cpu) else "it supports CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        lanes = space.knob("LANES", [1, 4, 8, 16])
        unroll = space.knob("UNROLL", [1, 2, 4, 8])
        space.require(lanes * unroll <= 64, "a turn of the loop fits the registers")
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        args = (TensorArg("a"), TensorArg("b"), TensorArg("c"), ScalarArg("i64", "n"))
        return Kernel(
            name="vadd",
            language="c",
            sources=(Source("vadd.c", VADD),),
            flags=tuple(f"-D{knob}={value}" for knob, value in config.items()),
            plan=LaunchPlan((Step("vadd", args),)),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"LANES": 4, "UNROLL": 4}


# --- a row-wise softmax ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSoftmax(Operator):
    """y = exp(x - max) / sum of exp(x - max), along each row."""

    name: ClassVar[str] = "row_softmax"
    words: ClassVar[tuple[Word, ...]] = (Word("rows", "rows", needed=True), Word("cols", "columns", needed=True))

    rows: int
    cols: int

    def signature(self) -> Signature:
        shape = ("rows", "cols")
        return Signature((Param("x", "input", "f32", shape), Param("y", "output", "f32", shape)))

    def sizes(self) -> Mapping[str, int]:
        return {"rows": self.rows, "cols": self.cols}

    def work(self) -> Work:
        # One comparison, subtraction, exponential, addition and product for each number.
        return least_work(self, {"f32": 5 * self.rows * self.cols})

    def reference(self, inputs: Mapping[str, Any]) -> Mapping[str, Answer]:
        x = inputs["x"].astype(np.float64)
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return {"y": Answer(e / e.sum(axis=1, keepdims=True), scale=np.zeros(()))}

    def tolerance(self, output: str, probe: str = "normal") -> Tolerance:
        # Everything is positive, so the errors of exp and of the sum are relative to the result.
        return Tolerance(absolute=0.0, relative=2.0**-23 * (16 + self.cols**0.5))

    @classmethod
    def examples(cls) -> tuple[RowSoftmax, ...]:
        return cls(3, 7), cls(64, 100)


SOFTMAX = r"""
#include <math.h>
#include <stdint.h>

void row_softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++, x += cols, y += cols) {
        float most = x[0];
        for (int64_t c = 1; c < cols; c++) most = x[c] > most ? x[c] : most;
        float sums[SUMS] = {0};
        int64_t c = 0;
        for (; c + SUMS <= cols; c += SUMS)
            for (int s = 0; s < SUMS; s++) sums[s] += y[c + s] = expf(x[c + s] - most);
        float sum = 0;
        for (; c < cols; c++) sum += y[c] = expf(x[c] - most);
        for (int s = 0; s < SUMS; s++) sum += sums[s];
#if DIVIDE
        for (c = 0; c < cols; c++) y[c] /= sum;
#else
        const float factor = 1 / sum;
        for (c = 0; c < cols; c++) y[c] *= factor;
#endif
    }
}
"""


class RowSoftmaxFamily:
    """SUMS partial sums per row; the last step divides, or multiplies by the inverse."""

    name = "c_row_softmax"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(operator, RowSoftmax):
            return "it supports row_softmax only"
        return None if isinstance(target, Cpu) else "it supports CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("SUMS", [1, 2, 4, 8, 16])
        space.knob("DIVIDE", [0, 1])
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        args = (TensorArg("x"), TensorArg("y"), ScalarArg("i64", "rows"), ScalarArg("i64", "cols"))
        return Kernel(
            name="row_softmax",
            language="c",
            sources=(Source("row_softmax.c", SOFTMAX),),
            flags=tuple(f"-D{knob}={value}" for knob, value in config.items()),
            plan=LaunchPlan((Step("row_softmax", args),)),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"SUMS": 4, "DIVIDE": 0}


def main() -> None:
    added = dg.tune(VectorAdd(1 << 16), target="cpu", generator=VectorAddFamily(), trials=8)
    a, b = np.ones(1000, np.float32), np.arange(1000, dtype=np.float32)
    assert (added.best().load()(a, b) == a + b).all()  # any length: sizes are derived from the arrays
    print(f"vadd: {added.best().seconds * 1e6:.1f} us, {added.folder}")

    rows = dg.tune(RowSoftmax(64, 500), target="cpu", generator=RowSoftmaxFamily(), trials=8)
    y = rows.best().load()(np.random.default_rng(0).standard_normal((3, 7), dtype=np.float32))
    assert np.allclose(y.sum(axis=1), 1.0)
    print(f"row_softmax: {rows.best().seconds * 1e6:.1f} us, {rows.folder}")


if __name__ == "__main__":
    main()
