"""The spaces that rules define for GPUs: every config gives a kernel that computes the expression."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import pytest
import simt_emulation as simt
from compiled import in_child
from emulated import library, run

import deepgen as dg
import needs
from deepgen import targets
from deepgen.compiler.family import Rules
from deepgen.compiler.passes.ir import Program, Store, walk
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.rules.gpu.likely import near_usual
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.compiler.rules.sketch import Sketch, space_of
from deepgen.operators.compare import compare
from deepgen.operators.expr.nodes import Expression, Unary, reads
from deepgen.operators.expr.nodes import walk as walk_value
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.operators.named import convolutions
from deepgen.operators.named.rows import Scan
from deepgen.targets.gpu import Gpu
from deepgen.toolchains import find
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group

# `DEEPGEN_SAMPLES=20 pytest tests/compiler/test_gpu_spaces.py` takes minutes: this many configs of each sketch.
SAMPLES = int(os.environ.get("DEEPGEN_SAMPLES", "0"))
AT_ONCE = 40  # programs per library
ARCHES = ["cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942"]


def chip(name: str) -> Gpu:
    found = targets.resolve(name)
    assert isinstance(found, Gpu)
    return found


def conv(kind: Any = convolutions.DilatedConv2d, **given: Any) -> Expression:
    made: Expression = kind.make({"k": 3, "pad": 1, "dtype": "f16", **given}).expression()
    return made


H200, MI210 = chip("cuda:sm_90a"), chip("hip:gfx90a")
PLAIN = {
    "gemm f32": cases.gemm(20, 24, 16),
    "gemv": cases.gemv(7, 300),
    "attention": cases.attention(20, 24, 8, 32),
    "convolution": cases.conv(9, 4, 8, 3),
    "depthwise": cases.depthwise(10, 8),
    "depthwise, nchw": conv(convolutions.DepthwiseConv2d, N=2, H=9, W=16, C=4, layout="nchw"),
    "depthwise, strided": conv(convolutions.DepthwiseConv2d, N=1, H=9, W=24, C=4, stride=2, layout="nchw"),
    "softmax": cases.softmax(5, 300),
    "softmax of columns": cases.softmax(5, 30, 0),
    "layer norm": cases.layer_norm(6, 200),
    "scan": cases.scan((4, 30, 16), 1),
    "scan of rows": cases.scan((3, 5, 24), 2),
    "scan of rows in f16": Scan.make({"M": 3, "N": 7, "K": 40, "dtype": "f16"}).expression(),
    "scan of rows that lanes have several parts of": Scan.make({"M": 3, "N": 2, "K": 300, "dtype": "f16"}).expression(),
    "scan of rows of an odd length": cases.scan((4, 6, 17), 2),
    "scan of long rows": Scan.make({"M": 1, "N": 2, "K": 2056, "dtype": "f16"}).expression(),
    "scan of rows in pieces": Scan.make({"M": 1, "N": 2, "K": 8208, "dtype": "f16", "epilogue": "relu"}).expression(),
    "maxima so far of rows in pieces": cases.scan((3, 5000), 1, op="max"),
    "total": cases.total(500),
    "rows of any length": cases.elementwise(5, 21),
    "transposed": cases.transposed(35, 40),
    "transposed bf16 of odd lengths": cases.transposed(67, 33, "bf16"),
    "columns in two parts": cases.columns(1, 64, 40),
    "columns in parts of two lengths": cases.columns(2, 69, 48, "bf16"),
    "maxima of columns": cases.columns(3, 129, 33, op="max"),
    "long rows in parts": cases.long_rows(2, 12301),
    "two products of one matrix": cases.projections(12, 16, (20, 9)),
    "a product of a product": cases.layers(12, 16, 20, 9),
}
MATRICES = {
    "f16": cases.gemm(64, 48, 64, "f16"),
    "bf16, bias": cases.gemm(70, 64, 96, "bf16", transposed=True, epilogue=True),
    "i8": cases.gemm(48, 64, 128, "i8", transposed=True),
    "nhwc": conv(N=2, H=8, W=16, CI=32, CO=32, dilation=1),
    "strided": conv(N=4, H=9, W=17, CI=16, CO=32, stride=2, dilation=1),
    "dilated": conv(N=16, H=7, W=7, CI=16, CO=32, pad=2, dilation=2, dtype="bf16"),
    "nchw": conv(N=2, H=8, W=16, CI=16, CO=16, dilation=1, layout="nchw"),
    "three channels": conv(N=2, H=8, W=16, CI=3, CO=32, dilation=1),
    "two products of one matrix": cases.projections(48, 128, (64, 32), "i8"),
    "i8, no whole steps": cases.gemm(48, 64, 40, "i8", transposed=True),
    "transposed": conv(convolutions.TransposedConv2d, N=2, H=8, W=8, CI=32, CO=32, k=4, stride=2),
    "transposed, one tap": conv(convolutions.TransposedConv2d, N=2, H=5, W=7, CI=32, CO=32, k=1, stride=2, pad=0),
}
WIDE = {
    "nt": cases.gemm(128, 64, 128, "f16", transposed=True),
    "nn, bias": cases.gemm(70, 128, 96, "bf16", epilogue=True),
    "nn, i8": cases.gemm(70, 64, 128, "i8", epilogue=True),
    "nhwc": conv(N=2, H=8, W=16, CI=64, CO=64, dilation=1),
    "nchw": conv(N=1, H=8, W=16, CI=64, CO=64, dilation=1, layout="nchw"),
    "transposed, one tap": conv(convolutions.TransposedConv2d, N=2, H=8, W=8, CI=64, CO=64, k=1, stride=2, pad=0),
    "one tap, nchw": conv(N=2, H=9, W=8, CI=64, CO=64, k=1, pad=0, dilation=1, layout="nchw", epilogue="bias,residual"),
}
FLAT = {
    "nhwc": conv(N=3, H=5, W=7, CI=64, CO=64, dilation=1),
    "strided, epilogue": conv(
        N=3, H=9, W=9, CI=64, CO=64, k=1, pad=0, stride=2, dilation=1, epilogue="bias,relu,residual"
    ),
    "dilated, nchw": conv(N=2, H=6, W=6, CI=64, CO=64, pad=2, dilation=2, dtype="bf16", layout="nchw"),
    "strided, nchw": conv(N=3, H=9, W=9, CI=64, CO=64, k=1, pad=0, stride=2, dilation=1, layout="nchw"),
    "i8": conv(N=2, H=5, W=7, CI=128, CO=64, dilation=1, dtype="i8"),
    "line": convolutions.Conv1d.make(
        {"N": 2, "L": 40, "CI": 64, "CO": 64, "k": 3, "pad": 1, "dtype": "f16"}
    ).expression(),
}
SPLIT = {
    "nn and bias": cases.gemm(35, 32, 1024, "f16", epilogue=True),
    "i8": cases.gemm(64, 64, 1024, "i8", transposed=True),
}
emulated = pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)


def configs(sketch: Sketch) -> list[dict[str, Any]]:
    """One that is cheap to emulate, and some others."""
    space = space_of(sketch.name, [sketch])
    return [near_usual(sketch), *(dict(config) for config in space.sample(SAMPLES, seed=1))]


def right(programs: list[tuple[str, Expression, dict[str, Any], Program]], folder: Path, warp: int = 32) -> None:
    """Assert that there are programs, and that all compute their expressions."""
    assert programs
    for start in range(0, len(programs), AT_ONCE):
        part = programs[start : start + AT_ONCE]
        loaded = library([program for *_, program in part], folder / str(start), warp)

        def work(say: Callable[[str], None], loaded: Any = loaded, part: Any = part) -> None:
            for n, (name, expression, config, program) in enumerate(part):
                say(f"{name} {config}")
                operator = ExpressionOperator(expression)
                inputs = operator.inputs(1)
                error, results = run(loaded, n, program, [inputs[b.name] for b in program.inputs])
                assert not error, f"{name} {config}: {error}"
                answers, tensors = operator.reference(inputs), {t.name: t for t in operator.tensors()}
                for buffer, result in zip(program.outputs, results, strict=True):
                    tolerance = operator.tolerance(buffer.name)
                    whole = result.reshape(tensors[buffer.name].shape)
                    found = compare(whole, answers[buffer.name], tensors[buffer.name].dtype, tolerance)
                    assert found.ok, f"{name} {config}: {found}"

        assert not (wrong := in_child(work)), wrong


def lowered(
    kinds: dict[str, Expression], gpu: Gpu, wanted: Callable[[Sketch], bool]
) -> list[tuple[str, Expression, dict[str, Any], Program]]:
    return [
        (f"{name}, {sketch.name}", expression, config, lower(sketch.expression, sketch.schedule(config), warp=gpu.warp))
        for name, expression in kinds.items()
        for sketch in gpu_sketches(expression, gpu)
        if wanted(sketch)
        for config in configs(sketch)
    ]


@pytest.mark.slow
@emulated
def test_configs_on_plain_arithmetic_units_compute_their_expressions(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    right(lowered(PLAIN, H200, lambda sketch: not sketch.name.startswith("matrix")), tmp_path / "all")


@pytest.mark.slow
@emulated
def test_configs_on_matrix_units_compute_their_expressions(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    right(lowered(MATRICES, H200, lambda sketch: sketch.name.startswith("matrix")), tmp_path / "all")


@pytest.mark.slow
@emulated
def test_configs_on_matrix_units_of_four_warps_compute_their_expressions(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    programs = lowered(WIDE, H200, lambda sketch: sketch.name.startswith("wide"))
    assert {name.partition(", wide")[0] for name, *_ in programs} == set(WIDE)
    right(programs, tmp_path / "all")


@pytest.mark.slow
@emulated
def test_configs_with_all_places_of_images_in_a_row_compute_their_expressions(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    programs = lowered(FLAT, H200, lambda sketch: sketch.name.startswith("flat"))
    assert {name.partition(", flat")[0] for name, *_ in programs} == set(FLAT)
    right(programs, tmp_path / "all")


@emulated
def test_long_sums_with_few_results_are_split_among_blocks(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    programs = lowered(SPLIT, H200, lambda sketch: "split4" in sketch.name)
    assert {name.split(", ")[0] for name, *_ in programs} == set(SPLIT)
    for _, expression, _, program in programs:
        *_, results = (stage for stage in expression.stages if stage.reduce)
        # Parts in a workspace, and a launch that sums them in order.
        assert [buffer.elements for buffer in program.scratch] == [4 * results.shape[0] * results.shape[1]]
        assert len(program.launches) == 2
    right(programs, tmp_path / "all")


def test_sums_of_many_results_are_not_split() -> None:
    for expression in (cases.gemm(4096, 4096, 4096, "f16"), cases.gemm(32, 64, 256, "f16")):
        assert not any("split" in sketch.name for sketch in gpu_sketches(expression, H200))


def test_small_windows_of_many_images_have_threads_along_the_images() -> None:
    x, taps = dg.tensor("x", (77824, 4, 4), "f16"), [dg.reduce_axis(name, 3) for name in "hw"]
    pooled = dg.expression(
        dg.compute("y", (77824, 2, 2), lambda n, h, w: dg.sum(x[n, h + taps[0], w + taps[1]], *taps))
    )
    (sketch, *_) = gpu_sketches(pooled, H200)
    assert sketch.name == "threads" and sketch.usual()["i0_threads"] == 32


def variance(rows: int, cols: int, axis: int) -> Expression:
    x, over = dg.tensor("x", (rows, cols), "bf16"), dg.reduce_axis("k", (rows, cols)[axis])

    def at(i: Any) -> Any:
        return (x[i, over] if axis else x[over, i]).cast("f32")

    mean = dg.compute("mean", ((rows, cols)[1 - axis],), lambda i: dg.sum(at(i), over) / (rows, cols)[axis])
    away = dg.compute("away", mean.shape, lambda i: dg.sum((at(i) - mean[i]) * (at(i) - mean[i]), over))
    return dg.expression(dg.compute("y", mean.shape, lambda i: away[i].cast("bf16")))


def places(rows: int, cols: int) -> Expression:
    """The index of the first maximum of each row."""
    x, over = dg.tensor("x", (rows, cols), "f16"), dg.reduce_axis("k", cols)
    most = dg.compute("most", (rows,), lambda i: dg.max(x[i, over], over))
    return dg.expression(
        dg.compute("y", (rows,), lambda i: dg.min(dg.where(x[i, over] == most[i], over.cast("i64"), cols), over))
    )


@emulated
def test_rows_that_are_read_several_times_are_loaded_once_into_registers(tmp_path: Path) -> None:
    kinds = {"softmax": cases.softmax(5, 300), "variance": variance(6, 520, 1), "places": places(3, 77)}
    programs = lowered(kinds, H200, lambda sketch: sketch.name == "kept")
    assert {name.partition(",")[0] for name, *_ in programs} == set(kinds)
    for name, *_, program in programs:
        (launch,) = program.launches
        stores = [one for one in walk(launch.body) if isinstance(one, Store)]
        assert {s.buffer for s in stores if "x" in {r.tensor for r in reads(s.value)}} == {"x.row"}, name
    (tmp_path / "all").mkdir()
    right(programs, tmp_path / "all")


def test_what_is_costly_in_a_row_is_computed_once() -> None:
    (sketch, *_) = gpu_sketches(cases.softmax(5, 300), H200)
    program = lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32)
    stores = [one for one in walk(program.launches[0].body) if isinstance(one, Store)]
    costly = {s.buffer for s in stores for node in walk_value(s.value) if isinstance(node, Unary) and node.op == "exp"}
    assert costly == {"kept"}


def test_short_rows_under_many_are_reduced_as_columns_first() -> None:
    x, over = dg.tensor("x", (4000, 100, 4)), [dg.reduce_axis("i", 4000), dg.reduce_axis("j", 4)]
    sums = dg.expression(dg.compute("y", (100,), lambda c: dg.sum(x[over[0], c, over[1]], *over)))
    (sketch, *_) = gpu_sketches(sums, H200)
    assert "columns" in sketch.name


@emulated
def test_reductions_that_read_one_another_are_split_among_blocks_as_well(tmp_path: Path) -> None:
    kinds = {
        "of columns": variance(4000, 40, 0),
        "of few rows": variance(2, 140_000, 1),
        "softmax": cases.softmax(1, 140_000),
    }
    older = chip("cuda:sm_80")  # without clusters, whose blocks reduce such rows in one launch
    programs = [one for one in lowered(kinds, older, lambda sketch: "_split" in sketch.name) if "split" in one[0]]
    assert {name.partition(",")[0] for name, *_ in programs} == set(kinds)
    (tmp_path / "all").mkdir()
    right(programs, tmp_path / "all")
    for expression in kinds.values():
        (sketch, *_) = gpu_sketches(expression, older)
        assert len(lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches) > 1


def test_rows_that_no_block_has_room_for_are_scanned_all_the_same() -> None:
    for rows, length in ((6, 2056), (30, 4096), (100, 4096), (2, 9000), (1, 5), (7, 1)):
        scan = Scan.make({"M": 1, "N": rows, "K": length, "dtype": "f16"}).expression()
        for gpu in (H200, MI210):
            (sketch, *_) = gpu_sketches(scan, gpu)
            assert lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=gpu.warp).launches


def test_filters_of_one_tap_with_channels_first_are_lowered_whatever_the_config() -> None:
    one = conv(N=2, H=16, W=16, CI=64, CO=64, k=1, pad=0, dilation=1, layout="nchw")
    found = gpu_sketches(one, H200)
    assert {sketch.name.partition("_")[0] for sketch in found} == {"flat", "matrix", "wide"}
    for sketch in found:
        launches = 1 + sketch.name.count("packed")
        for config in space_of(sketch.name, [sketch]).sample(SAMPLES or 4, seed=1):
            assert len(lower(sketch.expression, sketch.schedule(config), warp=H200.warp).launches) == launches


@emulated
def test_rows_of_any_length_are_scanned_in_pieces(tmp_path: Path) -> None:
    def scan(*shape: int) -> Expression:
        x = dg.tensor("x", shape, "f16")
        total = dg.scan("total", shape, lambda *at: x[at].cast("f32"), axis=len(shape) - 1)
        return dg.expression(dg.compute("y", shape, lambda *at: total[at].cast("f16")))

    kinds = {"short": scan(37), "one": scan(8009), "rows": scan(3, 5003), "even": scan(2, 8192)}
    for name, expression in kinds.items():
        (sketch, *_) = gpu_sketches(expression, H200)
        assert sketch.name.startswith("scan_lanes") and "threads" not in sketch.name, name
    (tmp_path / "all").mkdir()
    right(lowered(kinds, H200, lambda sketch: sketch.name.startswith("scan_lanes")), tmp_path / "all")
    # So many pieces that they are themselves scanned in pieces.
    (sketch, *_) = gpu_sketches(scan(30_000_001), H200)
    assert len(lower(sketch.expression, sketch.schedule(near_usual(sketch)), warp=32).launches) == 5


@emulated
def test_wavefronts_of_64_lanes_reduce_and_scan_rows_too(tmp_path: Path) -> None:
    few = {name: PLAIN[name] for name in ("gemv", "layer norm", "scan of rows in f16")}
    (tmp_path / "all").mkdir()
    right(lowered(few, MI210, lambda sketch: sketch.name in ("rows", "kept", "scan_lanes")), tmp_path / "all", warp=64)


@pytest.mark.parametrize("name", ARCHES if SAMPLES else ARCHES[1:3])
def test_configs_build(name: str, tmp_path: Path) -> None:
    gpu, family = chip(name), Rules()
    language = "cuda" if name.startswith("cuda") else "hip"
    toolchain = needs.toolchain(gpu, language)
    few = [PLAIN["softmax"], MATRICES["nhwc"]] if not SAMPLES else [*PLAIN.values(), *MATRICES.values()]
    for number, expression in enumerate(few):
        operator = ExpressionOperator(expression)
        default, space = family.default(operator, gpu), family.space(operator, gpu)
        assert space.contains(default)
        for n, config in enumerate([default, *space.sample(SAMPLES, seed=1)]):
            made = tmp_path / f"{number} {n}"
            made.mkdir()
            with Group() as group:
                built = toolchain.build(family.emit(operator, gpu, config), gpu, made, BuildLimits(), group)
            assert (made / built.binary).stat().st_size > 1000


def test_a_default_on_matrix_units_copies_ahead_and_keeps_its_sums_in_registers(tmp_path: Path) -> None:
    family, operator = Rules(), ExpressionOperator(conv(N=16, H=56, W=56, CI=64, CO=64, dilation=1))
    kernel = family.emit(operator, H200, {**family.default(operator, H200), "depth": 2})
    text = kernel.sources[0].text
    assert "copy_async_or_zero<16>(x_padded_" in text  # with its border of zeros
    assert "store_shared<" not in text
    toolchain = needs.toolchain(H200, "cuda")
    with Group() as group:
        built = toolchain.build(kernel, H200, tmp_path, BuildLimits(), group)
    assert built.facts["spill_bytes"] == 0


def test_threads_that_reduce_rows_together_build_with_every_nvrtc(tmp_path: Path) -> None:
    family, operator = Rules(), ExpressionOperator(PLAIN["gemv"])
    kernel = family.emit(operator, H200, family.default(operator, H200))
    assert "over_threads<" in kernel.sources[0].text
    for n, path in enumerate(find._libraries("")):
        (made := tmp_path / str(n)).mkdir()
        with Group() as group:
            find.nvrtc_for(H200, {"nvrtc": str(path)}).build(kernel, H200, made, BuildLimits(), group)


def test_what_is_computed_from_reductions_for_a_product_is_stored_first() -> None:
    """So that the second product of attention has its operands in shared memory."""
    assert dict(gpu_sketches(cases.attention(64, 96, 32, 64), H200)[0].by)["y"] == "Shared-Tiles"
