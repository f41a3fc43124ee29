"""One emitter for C, CUDA and HIP: what differs between them, and what is the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cases
import numpy as np
import pytest
import simt_emulation as simt
from compiled import in_child
from emulated import library, run

import deepgen as dg
from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.compiler.intrinsics.matrix import WARPGROUP
from deepgen.compiler.passes.ir import Alloc, Barrier, Buffer, Call, Fence, For, Function, If, Seq, Store
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.rules.gpu.likely import near_usual
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.compiler.schedule.steps import SERIAL, UNROLL
from deepgen.compiler.text import c, gpu
from deepgen.compiler.text.dialect import CUDA, HIP, C, Dialect, Names
from deepgen.compiler.text.values import Scope
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import Const, Read
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary import BadInput

ROW, COLUMN = iterator("i"), iterator("j")


@pytest.mark.parametrize(
    ("dialect", "texts"),
    [
        (C, ("((i) / 3) - v_j * 2 - 5", "quotient(-v_j, 3)", "-v_j", "0")),
        (CUDA, ("(int)((u32)(i_) / 3u) + j_ * -2 - 5", "quotient(j_ * -1, 3)", "j_ * -1", "0")),
    ],
)
def test_indices(dialect: Dialect, texts: tuple[str, ...]) -> None:
    scope = Scope(Names(), {}, {"i": (0, 9), "j": (0, 3)}, dialect=dialect)
    assert tuple(map(scope.index, (ROW // 3 - COLUMN * 2 - 5, (COLUMN * -1) // 3, -COLUMN, ROW * 0))) == texts


def buffer(name: str, scope: str = "parameter", **words: int) -> Buffer:
    return Buffer(name, "f32", (8,), (1,), scope, **words)


def test_statements_of_c() -> None:
    one = Store("y", (ROW,), Const(1.0, "f32"))
    guarded = If((ROW - 2,), one, Store("t", (ROW,), Read("x", (ROW,), "f32"), reduce="sum"))
    loop = For("i", 8, SERIAL, Seq((Fence(), guarded)), limits=(COLUMN + 4,))
    body = For("j", 3, SERIAL, Alloc(buffer("t", "stack"), loop))
    text = c.emit(Function("f", (buffer("x"),), (buffer("y"),), body), "f")
    lines = [line.strip() for line in text.partition("(void)threads;")[2].splitlines()]
    assert lines[1:] == [
        "for (i64 v_j = 0; v_j < 3; v_j++) {", "{", "_Alignas(64) f32 t[8];",
        "for (i64 i = 0; i < least(8, v_j + 4); i++) {", '__asm__ volatile("" ::: "memory");',
        "if (i - 2 >= NOUGHT) {", "y[i] = 1.0f;", "} else {", "t[i] = (t[i] + x[i]);", "}", "}", "}", "}", "}",
    ]  # fmt: skip


@pytest.mark.parametrize("other", [Barrier(), For("i", 4, UNROLL, Call(WARPGROUP.begin))])
def test_what_only_gpus_have_is_refused_in_c(other: Barrier | For) -> None:
    with pytest.raises(BadInput, match="cannot be written in C"):
        c.emit(Function("f", (), (), other), "f")


def test_cuda_and_hip_have_one_text() -> None:
    chips = [targets.resolve(name) for name in ("cuda:sm_80", "hip:gfx1100")]
    operator, family = ExpressionOperator(cases.gemm(32, 32, 32, "f32", transposed=True)), Rules()
    config = family.default(operator, chips[0])
    first, second = (family.emit(operator, chip, config).sources[0] for chip in chips)
    assert (first.name, second.name) == (CUDA.file, HIP.file) and first.text == second.text


def below(x: Any) -> Any:
    return dg.tanh(x * 0.5) * 2.0 / (1.0 - dg.tanh(x * 0.5))


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
@pytest.mark.parametrize(
    ("name", "element", "exact"),
    [
        ("expm1", lambda x: below(dg.minimum(x, 0.0)), lambda x: np.expm1(np.minimum(x, 0))),
        ("log1p_exp", lambda x: dg.log(dg.exp(-abs(x)) + 1.0), lambda x: np.log1p(np.exp(-np.abs(x)))),
    ],
)
def test_functions_that_expressions_write_with_others_are_one_call(
    name: str, element: Any, exact: Any, tmp_path: Path
) -> None:
    x = dg.tensor("x", (4096,), "f32")
    target = targets.resolve("cuda:sm_90a")
    (sketch, *_) = gpu_sketches(dg.expression(dg.compute("y", (4096,), lambda i: element(x[i]))), target)  # type: ignore[arg-type]
    program = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)
    text = gpu.emit(program)
    assert f"{name}_f32(" in text and "tanh" not in text and "log_f32" not in text
    given = np.concatenate([-np.geomspace(1e-30, 80, 2048), np.geomspace(1e-30, 80, 2048)]).astype(np.float32)

    def work(_: Any) -> None:
        error, (result,) = run(library([program], tmp_path / "all"), 0, program, [given])
        assert not error, error
        want = exact(given.astype(np.float64))
        off = np.abs(result - want) / np.maximum(np.abs(want), np.finfo(np.float32).tiny)
        assert off.max() < 4 * np.finfo(np.float32).eps, off.max()

    assert not (wrong := in_child(work)), wrong


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
def test_gelu_in_16_bits_has_an_error_function_of_its_own(tmp_path: Path) -> None:
    """Only where results are rounded: its error is far below that of the rounding."""

    def gelu(dtype: str) -> Any:
        x = dg.tensor("x", (4096,), "f32")
        expression = dg.expression(dg.compute("y", (4096,), lambda i: (dg.erf(x[i]) + 1.0).cast(dtype)))
        (sketch, *_) = gpu_sketches(expression, targets.resolve("cuda:sm_90a"))  # type: ignore[arg-type]
        return lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)

    program = gelu("f16")
    assert "one_plus_erf_f32(" in gpu.emit(program) and "one_plus_erf" not in gpu.emit(gelu("f32"))
    names = [source.name for source in gpu.kernel(program, "hip", 64).sources]
    assert "rounded.h" in names and "clusters.h" not in names
    given = np.concatenate([-np.geomspace(1e-30, 4, 2048), np.geomspace(1e-30, 80, 2048)]).astype(np.float32)
    given[0], given[-1] = -np.inf, np.inf

    def work(_: Any) -> None:
        error, (result,) = run(library([program], tmp_path / "all"), 0, program, [given])
        assert not error, error
        want = np.array([math.erfc(-x) for x in given.astype(np.float64)])
        apart = np.abs(result.view(np.float16) - want) - 2e-5 * want  # beside the rounding
        assert np.all(apart <= np.maximum(want * 2**-11, 2**-25)), apart.max()

    assert not (wrong := in_child(work)), wrong


@pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)
def test_divisions_by_constants_are_rounded_as_divisions_are(tmp_path: Path) -> None:
    def by(number: float, dtype: str = "f32") -> Any:
        x = dg.tensor("x", (4096,), "f32")
        expression = dg.expression(dg.compute("y", (4096,), lambda i: (x[i] / number).cast(dtype)))
        (sketch, *_) = gpu_sketches(expression, targets.resolve("cuda:sm_90a"))  # type: ignore[arg-type]
        return lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)

    divisors = (3.0, -812.0, 0.1, 1.9999999, 1e6, 4.0)
    programs = [by(number) for number in divisors]
    assert ["divided_f32(" in gpu.emit(program) for program in programs] == [True] * 5 + [False]
    given = np.concatenate([np.geomspace(1e-25, 1e30, 4090), [0, np.inf, -np.inf, np.nan, 3e38, -7]]).astype(np.float32)

    def work(_: Any) -> None:
        made = library(programs, tmp_path / "all")
        for n, (number, program) in enumerate(zip(divisors, programs, strict=True)):
            error, (result,) = run(made, n, program, [given])
            assert not error, error
            with np.errstate(over="ignore"):
                want = given / np.float32(number)
            np.testing.assert_array_equal(result, want, str(number))

    assert not (wrong := in_child(work)), wrong


def test_functions_of_results_in_16_bits_and_inverses_have_instructions_of_their_own() -> None:
    def text(dtype: str, element: Any) -> str:
        x = dg.tensor("x", (64,), "f32")
        expression = dg.expression(dg.compute("y", (64,), lambda i: element(x[i]).cast(dtype)))
        (sketch, *_) = gpu_sketches(expression, targets.resolve("cuda:sm_90a"))  # type: ignore[arg-type]
        return gpu.emit(lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32))

    for element, name in ((dg.exp, "exp"), (dg.sigmoid, "sigmoid")):
        assert f"{name}_rounded_f32(" in text("bf16", element) and f"{name}_f32(" in text("f32", element)
    assert "inverse_f32(" in text("f32", lambda x: 1 / x)


def test_launches_begin_while_the_one_before_runs_where_the_chip_can_wait_for_it() -> None:
    x, over = dg.tensor("x", (1, 1 << 21), "f32"), dg.reduce_axis("k", 1 << 21)
    operator = ExpressionOperator(dg.expression(dg.compute("y", (1,), lambda i: dg.sum(x[i, over], over))))
    for name, early in (("cuda:sm_90a", True), ("cuda:sm_80", False), ("hip:gfx90a", False)):
        target = targets.resolve(name)
        kernel = Rules().emit(operator, target, Rules().default(operator, target))
        text = kernel.sources[0].text
        assert [step.overlaps for step in kernel.plan.steps] == [False, early]
        assert text.count("next_may_begin();") == text.count("wait_for_launch_before();") == early
        # What is waited for is no constant, which could be loaded before the wait.
        _, _, second = text.rpartition("DG_KERNEL")
        assert ("const f32* __restrict__ y_" in second) != early


def test_places_of_extremes_in_rows_that_are_kept_have_32_bits() -> None:
    target, expression = targets.resolve("cuda:sm_90a"), cases.place((5, 3000), 1, dg.max)
    (sketch, *_) = gpu_sketches(expression, target)  # type: ignore[arg-type]
    text = gpu.emit(lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32))
    assert sketch.name == "kept" and "i32, min_i32>" in text and "min_i64" not in text
