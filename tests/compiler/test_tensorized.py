"""Sums by instructions for small formats: found where applicable, and correct at every edge.

Instructions of other machines are executed one product at a time in C, so that the surrounding code runs here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compiled import COMPILERS, NO_COMPILER, in_child, library, run
from test_spaces import configs, lowered

import deepgen as dg
from deepgen import generators, targets
from deepgen.compiler.intrinsics.dots import EMULATED
from deepgen.compiler.passes.ir import Function
from deepgen.compiler.rules.sketch import sketches, space_of
from deepgen.operators import Operator
from deepgen.operators.compare import compare
from deepgen.operators.expr.nodes import Expression, HasExpression
from deepgen.targets import Cpu
from deepgen.toolchains.compilers import c

Case = tuple[Operator, dict[str, Any], Function]

# `DEEPGEN_SAMPLES=50 pytest tests/compiler/test_tensorized.py` takes minutes.
SAMPLES = int(os.environ.get("DEEPGEN_SAMPLES", "1"))
INTEGER = ("amx_i8", "x86_dpbssd_512", "x86_dpbssd_256", "arm_sdot")


def processor(name: str) -> Cpu:
    found = targets.resolve(name)
    assert isinstance(found, Cpu)
    return found


AMX, VNNI, BF16, OLDER = (processor(f"x86:{arch}") for arch in ("amx", "avx512_vnni", "avx512_bf16", "avx2_vnni"))
ARM = processor("arm:neon_dot")


def gemm(dtype: str, m: int, n: int, k: int, layout: str = "nn", **words: Any) -> Operator:
    return dg.operator("gemm", M=m, N=n, K=k, layout=layout, dtype=dtype, **words)


def conv(dtype: str, layout: str, **words: Any) -> Operator:
    sizes = {"N": 2, "H": 10, "W": 8, "CI": 62, "CO": 20, "k": 3, "pad": 1, "dilation": 1}
    return dg.operator("dilated_conv2d", **{**sizes, **words}, layout=layout, dtype=dtype)


WHOLE = {
    "gemm": gemm("i8", 24, 40, 128),
    "gemm with edges everywhere": gemm("i8", 20, 37, 61, "nt"),
    "gemm with an epilogue": gemm("i8", 18, 32, 64, epilogue="bias"),
    "gemm of few": gemm("i8", 3, 19, 7),
    "gemm with both turned": gemm("i8", 16, 33, 60, "tt"),
    "bmm": dg.operator("bmm", B=3, M=8, N=24, K=64, dtype="i8"),
    "conv": conv("i8", "nhwc"),
    "conv with a stride": conv("i8", "nhwc", stride=2, H=15, W=15),
    "conv, channels first": conv("i8", "nchw"),
    "conv of one pixel": conv("i8", "nhwc", k=1, pad=0, epilogue="residual"),
    "transposed conv": dg.operator("conv_transpose2d", N=1, H=4, W=7, CI=64, CO=20, k=4, stride=2, pad=1, dtype="i8"),
}
FEW = {  # channels of the result: no axis fills a vector
    "conv to few": conv("i8", "nhwc", N=1, H=5, W=7, CI=8, CO=9),
    "conv to few, channels first": conv("i8", "nchw", N=1, H=5, W=7, CI=9, CO=10),
}
ROWS = {  # a filter's height is 1; channels are not a whole group, so they are read padded
    "conv by rows": conv("i8", "nhwc", CI=33, CO=9, k=(1, 3), pad=(0, 1)),
    "conv by columns": conv("i8", "nhwc", CI=35, CO=18, k=(3, 1), pad=(1, 0)),
}
ODD = {  # images whose widths no number of rows divides, so they are read padded
    "conv of odd images": conv("bf16", "nhwc", N=1, H=5, W=19, pad=0),
    "conv of odd images, channels first": conv("bf16", "nchw", N=1, H=7, W=23, CI=70),
    "pixels of odd images": conv("bf16", "nchw", N=1, H=4, W=41, CI=18, k=1, pad=0, stride=2),
}
FLOATS = {
    "gemm in bf16": gemm("bf16", 24, 40, 64),
    "gemm in bf16 with edges everywhere": gemm("bf16", 20, 37, 61, "nt"),
    "conv in bf16": conv("bf16", "nhwc", CI=32),
}


VECTORS = {
    "gemv": dg.operator("gemv", M=13, K=128, dtype="i8"),
    "gemv in bf16": dg.operator("gemv", M=13, K=64, dtype="bf16", epilogue="bias,relu"),
}


def some(*names: str) -> dict[str, Operator]:
    return {name: WHOLE[name] for name in names}


def expressed(operator: Operator) -> Expression:
    assert isinstance(operator, HasExpression)
    return operator.expression()


def cases(operators: dict[str, Operator], cpu: Any, *instructions: str) -> Iterator[Case]:
    for operator in operators.values():
        for sketch, config in configs(expressed(operator), cpu, SAMPLES):
            if sketch.name in instructions:
                yield operator, config, lowered(sketch, config, cpu)


def check(found: list[Case], folder: Path, *flags: str) -> None:
    assert found
    built = library([function for *_, function in found], folder, *flags)

    def work(say: Callable[[str], None]) -> None:
        loaded = ctypes.CDLL(str(built))
        for n, (operator, config, function) in enumerate(found):
            say(f"{operator.describe()}: {config}")
            inputs = operator.inputs(n)
            given = [inputs[t.name] for t in expressed(operator).tensors]
            (got,) = run(loaded, n, function, given, config["THREADS"])
            (out,) = (t for t in operator.tensors() if t.role == "output")
            want = operator.reference(inputs)[out.name]
            got = got.reshape(out.shape)
            assert compare(got, want, out.dtype, operator.tolerance(out.name)).ok, f"{operator.describe()}: {config}"

    assert not (wrong := in_child(work)), wrong


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
@pytest.mark.parametrize(
    ("cpu", "instruction", "operators"),
    [
        (AMX, "amx_i8", WHOLE),
        (AMX, "amx_bf16", {**FLOATS, **ODD}),
        (VNNI, "x86_dpbssd_512", some("gemm of few", "conv with a stride")),
        (VNNI, "x86_dpbssd_512", {**FEW, **ROWS}),
        (OLDER, "x86_dpbssd_256", some("gemm with both turned")),
        (BF16, "x86_dpbf16_512", FLOATS),
        (ARM, "arm_sdot", some("bmm", "conv, channels first")),
        (VNNI, "x86_dpbssd_512_each", {"gemv": VECTORS["gemv"]}),
        (BF16, "x86_dpbf16_512_each", {"gemv": VECTORS["gemv in bf16"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_config_computes_the_expression(cpu: Any, instruction: str, operators: Any, tmp_path: Path) -> None:
    check(list(cases(operators, cpu, instruction)), tmp_path, "-O0", f"-D{EMULATED}")


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_tiles_of_the_first_operand_take_turns_where_a_block_has_many(tmp_path: Path) -> None:
    """Five tiles of sums in a column, which leave two registers for five tiles of the first operand."""
    operator = gemm("i8", 50, 32, 128)
    (sketch,) = (s for s in sketches(expressed(operator), AMX) if s.name == "amx_i8")
    config = {**sketch.usual(), "i0_3": 10, "i0_2": 5, "i1_2": 1, "i0_1": 1, "i1_1": 1}
    assert not space_of("rules", [sketch]).explain(config)
    check([(operator, config, lowered(sketch, config, AMX))], tmp_path, "-O0", f"-D{EMULATED}")


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
def test_by_the_instructions_of_this_machine(tmp_path: Path) -> None:
    here = processor("cpu")
    found = list(cases(some("gemm with edges everywhere", "conv"), here, *INTEGER))
    if not found:
        pytest.skip("this machine has none of them")
    check(found, tmp_path, *c.isa_flags(here.machine, here.isa, "gcc", 99))  # with optimisation: tiles need constants


def text(operator: Operator, cpu: Cpu = AMX, **knobs: int) -> str:
    """The kernel of the default config, except for these knobs."""
    family = generators.by_name("rules")
    return family.emit(operator, cpu, {**family.default(operator, cpu), **knobs}).sources[0].text


@pytest.mark.parametrize("columns", [64, 40])
def test_groups_are_packed_in_vectors_where_columns_are_no_whole_panels_too(columns: int) -> None:
    for cpu, lanes in ((AMX, 16), (ARM, 4)):
        assert "interleave4_i8x" in text(gemm("i8", 64, columns, 64), cpu)
        assert f"transpose{lanes}_u32(&B_packed[" in text(gemm("i8", 64, columns, 64, "nt"), cpu)
    assert "interleave2_u16x8" in text(gemm("bf16", 64, columns, 64))


def test_what_is_left_of_a_panel_is_packed_by_a_whole_vector_again() -> None:
    panels_of_12 = text(gemm("i8", 64, 48, 64), ARM, i1_2=3, i1_1=1)
    assert panels_of_12.count(" interleave4_i8x8(&") == 2 and "i8x4" not in panels_of_12


def test_what_products_of_signed_bytes_add_too_much_is_taken_off_once() -> None:
    tile = text(gemm("i8", 8, 32, 64), VNNI, i0_2=4, i1_2=2, i1_1=1)
    assert tile.count(" = x86_dpbssd_512_over(") == 8 and tile.count(" = x86_dpbssd_512_excess(") == 2
    assert tile.count("= sub_i32x16(C_sum_") == 8
    twice = text(gemm("i8", 8, 32, 64), VNNI, i0_2=4, i1_2=2, i1_1=1, r0_1=2)
    assert twice.count(" = x86_dpbssd_512_over(") == 16 and twice.count(" = x86_dpbssd_512_excess(") == 4
    assert twice.count("= sub_i32x16(C_sum_") == 8
    row = text(gemm("i8", 8, 32, 64), VNNI, i0_2=1, i1_2=2, i1_1=1)
    assert "_over(" not in row and row.count(" = x86_dpbssd_512(") == 2  # no other row shares it
    assert "_over(" not in text(gemm("i8", 8, 32, 64), ARM)


def test_sums_in_tiles_are_stored_where_they_belong_if_nothing_else_is_done_with_them() -> None:
    assert "_store(&C[" in text(gemm("i8", 64, 64, 64))
    assert "_store(&C_sum[" in text(gemm("bf16", 64, 64, 64))  # these are rounded
    assert "_store(&C_sum[" in text(gemm("i8", 64, 40, 64))  # columns beyond the edge cannot be written


def test_a_matrix_times_a_vector_is_read_in_whole_vectors_of_bytes() -> None:
    names = [s.name for s in sketches(expressed(VECTORS["gemv"]), AMX)]
    assert names == ["x86_dpbssd_512_each"]  # AMX and copies in groups only serve matrices
    short = dg.operator("gemv", M=13, K=60, dtype="i8")
    assert not any("dpb" in s.name for s in sketches(expressed(short), AMX))  # instructions cannot be partial


def test_whole_numbers_are_left_to_instructions_and_floats_are_tried_both_ways() -> None:
    assert [s.name for s in sketches(expressed(gemm("i8", 64, 64, 64)), AMX)] == ["amx_i8", "x86_dpbssd_512"]
    names = [s.name for s in sketches(expressed(gemm("bf16", 64, 64, 64)), AMX)]
    assert names[:2] == ["amx_bf16", "x86_dpbf16_512"] and any(name.startswith("vectors") for name in names)


def test_few_channels_and_filters_of_one_row_are_left_to_instructions_too() -> None:
    for operator in (*FEW.values(), *ROWS.values()):
        assert [s.name for s in sketches(expressed(operator), VNNI)] == ["x86_dpbssd_512"]
    few = dg.operator("conv2d", N=1, H=5, W=7, CI=8, CO=7, k=3, pad=1, dtype="i8")
    assert not any("dpb" in s.name for s in sketches(expressed(few), VNNI))  # less than half a vector


def test_products_that_no_instruction_does_are_left_to_vectors() -> None:
    # There is no sum along channels.
    alone = dg.operator("depthwise_conv2d", N=1, H=8, W=8, C=16, k=3, pad=1, dtype="i8")
    squares = dg.tensor("A", (32, 32), "i8")
    k = dg.reduce_axis("k", 32)
    same = dg.compute("C", (32, 32), lambda i, j: dg.sum(squares[i, k].cast("i32") * squares[j, k].cast("i32"), k))
    for expression in (expressed(alone), dg.expression(same)):
        assert not any(s.name in INTEGER for s in sketches(expression, AMX))
