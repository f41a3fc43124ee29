"""The functions that the pool's kernels compute, and calls of them that reveal most faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import deepgen as dg
from pool.fault import Call, Subject

N = 4096
_Y, _X, _N = dg.output("y", ("n",), "f32"), dg.input("x", ("n",), "f32"), dg.scalar("n", "i32")


def _elements(name: str, reference: Callable[..., Any], right: str, n: int = N, passes: int = 200) -> Subject:
    """An elementwise function."""
    text = "float *y, const float *x, int n"
    return Subject(name, (_Y, _X, _N), {"n": n}, reference, text, f"EACH(i, n) y[i] = {right};", passes)


SCALE = Subject(
    "scale",
    (_Y, _X, dg.scalar("factor", "f32", 2.0), _N),
    {"n": N},
    lambda x, factor: factor * x,
    "float *y, const float *x, float factor, int n",
    "EACH(i, n) y[i] = factor * x[i];",
)
# Enough elements that a few are far larger than the others.
EXP = _elements("exp_of_five_x", lambda x: np.exp(5 * x), "expf(5.0f * x[i])", 1 << 17, 2)
SIGMOID = Subject(
    "sigmoid",
    (dg.output("y", ("n",), "f64"), dg.input("x", ("n",), "f64"), _N),
    {"n": N},
    lambda x: 1 / (1 + np.exp(-x)),
    "double *y, const double *x, int n",
    "EACH(i, n) y[i] = 1 / (1 + exp(-x[i]));",
)
FLOOR = _elements("rounded_down", np.floor, "floorf(x[i])")
RELU = _elements("relu", lambda x: np.maximum(x, 0), "x[i] < 0 ? 0 : x[i]")
SIGNED = Subject(
    "with_sign_of",
    SCALE.arguments,
    {"n": N},
    lambda x, factor: np.copysign(x, np.float64(factor)),
    SCALE.parameters,
    "EACH(i, n) y[i] = copysignf(x[i], factor);",
)


def flagged(**ranged: tuple[int, int]) -> Subject:
    """One of two functions, chosen by a scalar whose range may be declared."""
    return Subject(
        "negated_unless",
        (_Y, _X, dg.scalar("flag", "i32", 1, **ranged), _N),
        {"n": N},
        lambda x, flag: x if flag else -x,
        "float *y, const float *x, int flag, int n",
        "EACH(i, n) y[i] = flag ? x[i] : -x[i];",
    )


PRODUCTS = Subject(
    "products",
    (_Y, dg.input("a", ("n",), "f32"), dg.input("b", ("n",), "f32"), _N),
    {"n": N},
    lambda a, b: a * b,
    "float *y, const float *a, const float *b, int n",
    "EACH(i, n) y[i] = a[i] * b[i];",
)
BYTES = Subject(
    "copied",
    (_Y, _X, dg.scalar("bytes", "i32", "4 * n")),
    {"n": N},
    lambda x: x,
    "float *y, const float *x, int bytes",
    "EACH(i, bytes / 4) y[i] = x[i];",
)


WHOLE = Subject(
    "threefold",
    (dg.output("y", ("n",), "i32"), dg.input("x", ("n",), "i32"), _N),
    {"n": N},
    lambda x: (3 * x.astype(np.uint32)).astype(np.int32),
    "int *y, const int *x, int n",
    "EACH(i, n) y[i] = 3u * x[i];",
)


def sums(terms: int) -> Subject:
    """Rows summed, one term after the other."""
    return Subject(
        f"sum_of_{terms}",
        (dg.output("y", ("rows",), "f32"), dg.input("x", ("rows", "n"), "f32"), dg.scalar("rows", "i32"), _N),
        {"rows": 4, "n": terms},
        lambda x: x.sum(axis=1),
        "float *y, const float *x, int rows, int n",
        "EACH(r, rows) { float sum = 0; for (int i = 0; i < n; i++) sum += x[(long)r * n + i]; y[r] = sum; }",
        passes=3,
        cells="rows",
    )


def drawn(count: int = N, seed: int = 7) -> Any:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def same(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, np.asarray(want, np.float32), rtol=1e-4, atol=1e-6)


def scaled_right(call: Call) -> None:
    """A plain call, as a user would make it."""
    x = drawn()
    same(call(x, factor=2.0), 2 * x)


def scaled_at(count: int) -> Callable[[Call], None]:
    def use(call: Call) -> None:
        x = drawn(count)
        same(call(x, factor=2.0), 2 * x)

    return use


def scaled_values(*values: float) -> Callable[[Call], None]:
    def use(call: Call) -> None:
        x = drawn()
        x[5 : 5 + len(values)] = values
        same(call(x, factor=2.0), 2 * x)

    return use
