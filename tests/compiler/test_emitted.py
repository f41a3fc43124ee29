"""The text of a few kernels, and that they compute correct results and compile without warnings."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from compiled import COMPILERS, NO_COMPILER, library, run
from expressions import naive

import deepgen as dg
from deepgen import generators
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Inline,
    Layout,
    LayoutPlace,
    Reorder,
    Schedule,
    Split,
)
from deepgen.compiler.text import c
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import as_operator
from deepgen.targets import resolve
from deepgen.toolchains import build_once
from deepgen.vocabulary import ScalarArg, WorkspaceArg


def gemm() -> tuple[Expression, Schedule]:
    """Tiles of two rows and one vector, with edges on all sides; packed panels of B."""
    a, b, k = dg.tensor("A", (7, 5)), dg.tensor("B", (5, 10)), dg.reduce_axis("k", 5)
    product = dg.compute("C", (7, 10), lambda i, j: dg.sum(a[i, k] * b[k, j], k))
    return dg.expression(product, name="gemm"), (
        CacheWrite("C", "sums", "register"),
        Split("C", "i0", (2,)),
        Split("C", "i1", (4,)),
        Reorder("C", ("i0.0", "i1.0", "i0.1", "i1.1")),
        Annotate("C", "i0.0", "parallel"),
        Annotate("C", "i0.1", "unroll"),
        Annotate("C", "i1.1", "vector"),
        ComputeAt("sums", "C", "i1.0"),
        Reorder("sums", ("r0", "i0", "i1")),
        Annotate("sums", "i0", "unroll"),
        Annotate("sums", "i1", "vector"),
        CacheRead("B", "panels", "global", ("sums",)),
        Layout("panels", (LayoutPlace(1, 4), LayoutPlace(0, 1), LayoutPlace(1, 1, 4))),
        CacheRead("A", "strip", "global", ("sums",)),
        ComputeAt("strip", "C", "i0.0"),
    )


def conv2d() -> tuple[Expression, Schedule]:
    """3 x 3 taps with a border of zeros that is never stored; channels in vectors."""
    x, w = dg.tensor("x", (6, 6, 3)), dg.tensor("w", (3, 3, 3, 8))
    r, s, channel = dg.reduce_axis("r", 3), dg.reduce_axis("s", 3), dg.reduce_axis("c", 3)
    padded = dg.compute(
        "padded",
        (8, 8, 3),
        lambda h, v, n: dg.where((h >= 1) & (h < 7) & (v >= 1) & (v < 7), x[h - 1, v - 1, n], 0),
    )
    y = dg.compute(
        "y",
        (6, 6, 8),
        lambda h, v, n: dg.sum(padded[h + r, v + s, channel] * w[r, s, channel, n], r, s, channel),
    )
    return dg.expression(y, name="conv2d"), (
        Inline("padded"),
        CacheWrite("y", "sums", "register"),
        Split("y", "i1", (2,)),
        Annotate("y", "i1.1", "unroll"),
        Annotate("y", "i2", "vector"),
        ComputeAt("sums", "y", "i1.0"),
        Reorder("sums", ("r0", "r1", "r2", "i0", "i1", "i2")),
        Annotate("sums", "i1", "unroll"),
        Annotate("sums", "i2", "vector"),
    )


def softmax() -> tuple[Expression, Schedule]:
    """Row by row in bf16, computed in f32."""
    x, k = dg.tensor("x", (5, 9), "bf16"), dg.reduce_axis("k", 9)
    most = dg.compute("most", (5,), lambda i: dg.max(x[i, k].cast("f32"), k))
    powers = dg.compute("powers", (5, 9), lambda i, j: dg.exp(x[i, j].cast("f32") - most[i]))
    total = dg.compute("total", (5,), lambda i: dg.sum(powers[i, k], k))
    y = dg.compute("y", (5, 9), lambda i, j: (powers[i, j] / total[i]).cast("bf16"))
    return dg.expression(y, name="softmax"), (
        Annotate("y", "i0", "parallel"),
        Annotate("y", "i1", "vector"),
        ComputeAt("total", "y", "i0"),
        ComputeAt("powers", "y", "i0"),
        Annotate("powers", "i1", "vector"),
        ComputeAt("most", "y", "i0"),
        Annotate("most", "r0", "vector"),
    )


def scan() -> tuple[Expression, Schedule]:
    """Running sums down the columns, several columns at once."""
    x = dg.tensor("x", (6, 10), "i32")
    return dg.expression(dg.scan("y", (6, 10), lambda i, j: x[i, j], axis=0), name="scan"), (
        Split("y", "i1", (8,)),
        Reorder("y", ("i1.0", "i0", "i1.1")),
        Annotate("y", "i1.0", "parallel"),
        Annotate("y", "i1.1", "vector"),
    )


CASES: Mapping[str, Callable[[], tuple[Expression, Schedule]]] = {
    "gemm": gemm,
    "conv2d": conv2d,
    "softmax": softmax,
    "scan": scan,
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_kernels(name: str, golden: Callable[[str, str], str]) -> None:
    text = c.emit(lower(*CASES[name]()), f"deepgen_{name}")
    assert not (difference := golden(f"rules/{name}.c", text)), difference


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_kernels_are_right_and_compile_without_a_warning(tmp_path: Path) -> None:
    cases = [make() for make in CASES.values()]
    functions = [lower(expression, schedule) for expression, schedule in cases]
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-psabi")
    loaded = ctypes.CDLL(str(library(functions, tmp_path, *warnings)))
    numbers = np.random.default_rng(0)
    for n, ((expression, _), function) in enumerate(zip(cases, functions, strict=True)):
        bf16 = expression.tensors[0].dtype == "bf16"
        whole = [numbers.integers(-4, 5, t.shape) for t in expression.tensors]
        stored = [(x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if bf16 else x for x in whole]
        (got,) = run(loaded, n, function, stored, threads=2)
        result = (got.astype(np.uint32) << 16).view(np.float32) if bf16 else got
        (want,) = naive(
            expression,
            {
                t.name: x.astype(np.int64 if t.dtype == "i32" else float)
                for t, x in zip(expression.tensors, whole, strict=True)
            },
        ).values()
        np.testing.assert_allclose(result, want, rtol=2**-8 if bf16 else 0)


STRANGE = """
    linux asm NULL unix INFINITY NAN M_PI typeof bool true errno fmaxf memcpy float4 float32x4_t vaddq_f32 int
    pool_run pool_part load_part store_part widen_f16 float_of_bits
    """.split()  # noqa: SIM905


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_tensors_may_have_any_name(tmp_path: Path) -> None:
    tensors = [dg.tensor(name, (8,)) for name in STRANGE]
    result = dg.compute("EOF", (8,), lambda i: dg.exp(sum(t[i] for t in tensors)))
    function = lower(dg.expression(result, name="restrict"), ())
    loaded = ctypes.CDLL(str(library([function], tmp_path)))
    (got,) = run(loaded, 0, function, [np.full(8, n % 3 - 1) for n in range(len(STRANGE))], threads=1)
    np.testing.assert_allclose(got, np.exp(sum(n % 3 - 1 for n in range(len(STRANGE)))), rtol=1e-4)


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
@pytest.mark.parametrize("name", ["pool_run", "loop_parts"])
def test_tensors_may_have_names_of_the_headers_that_kernels_include(name: str) -> None:
    x = dg.tensor(name, (67,), "f32")
    operator, target = as_operator(dg.compute("out", (67,), lambda i: dg.exp(x[i]) * 2.0)), resolve("cpu")
    family = generators.find(operator, target)
    build_once(family.emit(operator, target, family.default(operator, target)), target)


def test_a_kernel_asks_for_the_workspace_of_its_threads() -> None:
    function = lower(*gemm())
    (step,) = c.kernel(function, threads=3).plan.steps
    assert step.entry == "deepgen_gemm"
    assert [arg.tensor for arg in step.args[:3]] == ["A", "B", "C"]  # type: ignore[union-attr]
    workspace, threads = step.args[3:]
    assert isinstance(workspace, WorkspaceArg) and threads == ScalarArg("i32", 3)
    assert workspace.bytes == function.shared_bytes + 3 * function.thread_bytes
    assert function.shared_bytes >= 3 * 5 * 4 * 4 and function.thread_bytes >= 2 * 5 * 4
