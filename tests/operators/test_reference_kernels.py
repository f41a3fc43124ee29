"""References of expressions as kernels match numpy's, values and scales, in C and in GPU arithmetic."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from dataclasses import replace
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simt_emulation as emulation
from expressions import expressions
from hypothesis import given
from hypothesis import strategies as st

import deepgen as dg
from deepgen.operators import Answer, Operator, Tolerance, conv2d, gemm_w4, softmax
from deepgen.operators.base import Array
from deepgen.operators.compare import compare, floor, scale_format
from deepgen.operators.expr.nodes import COMPARE, UNARY, Expression
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.operators.expr.reference_kernels import reference_kernel
from deepgen.run.measure.base import Helper
from deepgen.run.measure.host_reference import HostReference
from deepgen.run.measure.references import sampled
from deepgen.targets import resolve
from deepgen.toolchains import build_once
from deepgen.vocabulary import Kernel, Missing, Source
from deepgen.vocabulary.dtypes import dtype, narrow
from deepgen.vocabulary.parallel import in_parts

COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("clang-19")
NUMBERS = count()


def sums_of_minima() -> Expression:
    """Equal numbers that are added in turn, between different ones."""
    x = dg.tensor("x", (700, 3), "f32")
    least = dg.scan("least", (700, 3), lambda i, j: x[i, j], axis=0, op="min")
    return dg.expression(dg.scan("y", (700, 3), lambda i, j: least[i, j] * 0.5, axis=0))


OPERATORS: list[Operator] = [
    ExpressionOperator(sums_of_minima()),
    dg.operator("rms_norm", rows=5, cols=300, dtype="bf16"),
    dg.operator("layer_norm", rows=40, cols=17, dtype="f16", epilogue="bias,gelu"),
    dg.operator("mean", rows=3, cols=1100, dtype="f64"),
    dg.operator("scan", M=3, N=5, K=7, axis="1", dtype="f32", epilogue="tanh"),
    dg.operator("scan", M=3, N=5, K=7, dtype="i8"),
    dg.operator("bmm", B=2, M=9, N=8, K=33, dtype="f16"),
    dg.operator("depthwise_conv2d", N=2, H=9, W=8, C=5, k=3, pad=1, dtype="f32", epilogue="bias,relu"),
    dg.operator("elementwise", rows=9, cols=300, dtype="bf16", epilogue="residual,silu,sigmoid"),
    dg.operator("bmm", B=2, M=40, N=40, K=33, dtype="bf16", epilogue="bias,gelu"),
    conv2d(2, 9, 8, 5, 3, 3, pad=1, stride=2, dtype="bf16"),
    conv2d(2, 9, 8, 5, 3, 3, pad=1, dtype="i8", layout="nchw"),
    softmax(4, 300, dtype="bf16"),
    gemm_w4(3, 21, 130, group=64, zeros=True),
    gemm_w4(3, 21, 130, group=32, dtype="f16", weight_layout="packed"),
    softmax(3, 70, dtype="f64"),
]


def named(operator: Operator) -> str:
    return operator.describe().replace(" ", "-")


def in_c(operator: Operator, kernel: Kernel, folder: Path, *flags: str) -> HostReference:
    assert COMPILER is not None
    place = folder / f"reference{next(NUMBERS)}"
    place.mkdir()
    for source in kernel.sources:
        (place / source.name).write_text(source.text)
    command = [COMPILER, *(flags or kernel.flags), "-shared", "-fPIC", "-o", "reference.so", "reference.c", "-lm"]
    subprocess.run(command, cwd=place, check=True)
    loaded = HostReference.load(Helper(kernel, place / "reference.so"), threads=2)
    assert loaded is not None
    return loaded


def alike(operator: Operator, probe: str, got: dict[str, Answer], want: Any) -> bool:
    """Within a hundredth of the kernels' tolerance, or the whole tolerance where this computes in f64."""
    for tensor in operator.tensors():
        if tensor.role == "input":
            continue
        of, tolerance, answer = tensor.dtype, operator.tolerance(tensor.name, probe), want[tensor.name]
        share = 1.0 if of.name == "f64" else 0.01
        within = Tolerance(share * tolerance.absolute, share * tolerance.relative, share * floor(of, tolerance))
        values = compare(got[tensor.name].values, answer, dtype("i64" if of.integer else "f64"), within)
        sizes = np.broadcast_to(answer.scale, answer.values.shape).astype(np.float64)
        scale = np.broadcast_to(got[tensor.name].scale, sizes.shape)
        if not (values.ok and np.allclose(scale, sizes, rtol=1e-4, atol=0.0)):
            return False
    return True


needs_c = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed")


@needs_c
@given(expressions(), st.integers(0, 9))
def test_random_expressions_in_c(tmp_path_factory: pytest.TempPathFactory, expression: Expression, seed: int) -> None:
    operator = ExpressionOperator(expression)
    kernel = reference_kernel(expression, "c")
    inputs, want = operator.inputs(seed), operator.reference(operator.inputs(seed))
    for name, answer in want.items():
        places = np.arange(0, answer.values.size, 2)
        some = operator.reference_at(inputs, name, places)
        np.testing.assert_allclose(some.values, answer.values.reshape(-1)[places], rtol=1e-9, atol=1e-9)
        scale = np.broadcast_to(answer.scale, answer.values.shape).reshape(-1)[places]
        np.testing.assert_allclose(np.broadcast_to(some.scale, places.shape), scale, rtol=1e-4)
    if kernel is not None:
        got = in_c(operator, kernel, tmp_path_factory.getbasetemp(), "-O0", "-w").answers(operator, inputs, "normal")
        assert isinstance(got, dict), got
        assert alike(operator, "normal", got, want)


def everything(of: str) -> Expression:
    """All functions and comparisons of two floats, one after the other along an axis."""
    x, y = dg.tensor("x", (40,), of), dg.tensor("y", (40,), of)
    wide = "f64" if of == "f64" else "f32"

    def element(i: Any, which: Any) -> Any:
        a, b = x[i].cast(wide), y[i].cast(wide)
        third = (a * b).cast(of).cast(wide)  # with its own rounding error
        ways = [getattr(dg, op)(one) for op in UNARY if op not in ("neg", "abs") for one in (a, third)]
        ways += [-a, abs(third), a / third, third / a, abs(a) ** third, dg.minimum(a, third), dg.maximum(third, b)]
        less = {"lt": a < third, "le": third <= b, "eq": a == b, "ne": a != third}
        ways += [dg.where(less[op], third, b) for op in COMPARE]
        ways.append(dg.where((a < third) & (b < third) | (a < 0), a, third + 1))
        result = ways[0]
        for place, way in enumerate(ways[1:], 1):
            result = dg.where(which < place, result, way)
        return result

    return dg.expression(dg.compute("z", (40, 36), element))


@needs_c
@pytest.mark.parametrize("of", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f32 as in HIP"])
def test_all_functions_and_formats_in_c(of: str, tmp_path: Path) -> None:
    of, _, own = of.partition(" as in ")
    expression = everything(of)
    operator = ExpressionOperator(expression)
    inputs = operator.inputs(3)
    tiny = {"f8e4m3": 2.0**-9, "f8e5m2": 2.0**-16, "f16": 2.0**-24}.get(of, 2.0**-126)
    odd = [np.nan, 0.0, -0.0, 1.0, tiny, -tiny, *(() if of == "f8e4m3" else (np.inf, -np.inf))]
    for name in inputs:
        inputs[name][: len(odd)] = narrow(np.array(odd), dtype(of))
    inputs["y"][: len(odd)] = inputs["y"][: len(odd)][::-1].copy()
    kernel = reference_kernel(expression, "c")
    assert kernel is not None
    want = operator.reference(inputs)
    flags = ("-O1", "-w", *(("-DDG_OWN",) if own else ()))
    got = in_c(operator, kernel, tmp_path, *flags).answers(operator, inputs, "normal")
    assert isinstance(got, dict), got
    assert alike(operator, "normal", got, want)


@needs_c
def test_functions_of_our_own_are_those_of_c(tmp_path: Path) -> None:
    names = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos")
    header = resources.files("deepgen.operators.expr") / "reference.h"
    (tmp_path / "reference.h").write_text(header.read_text())
    lines = [f"f64 own_{name}(f64 x) {{ return dg_{name}(x); }}" for name in names]
    text = "#define DG_HOST 1\n#define DG_OWN 1\n" + '#include "reference.h"\n' + "\n".join(lines)
    (tmp_path / "own.c").write_text(text)
    command = [str(COMPILER), "-O1", "-w", "-shared", "-fPIC", "-o", "own.so", "own.c", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library, rng = ctypes.CDLL(str(tmp_path / "own.so")), np.random.default_rng(0)
    for name in names:
        function = library[f"own_{name}"]
        function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
        scale = rng.choice([1e-9, 1e-3, 0.1, 1.0, 5.0, 40.0], 2000)
        numbers = rng.standard_normal(2000) * scale
        numbers = np.abs(numbers) if name == "log" else np.maximum(numbers, -0.99) if name == "log1p" else numbers
        for x in numbers.tolist():
            assert function(x) == pytest.approx(getattr(math, name)(x), rel=2e-15, abs=1e-16), (name, x)
        for x in (0.0, 1e300, -1e300, np.inf, -np.inf, np.nan, 1e-300, -700.0, -744.0):
            if name in ("sin", "cos") and abs(x) > 1e9:
                continue
            with np.errstate(all="ignore"):
                want = getattr(np, name)(x) if name != "erf" else math.erf(x)
            np.testing.assert_allclose(function(x), want, rtol=1e-14, err_msg=f"{name}({x})")


@needs_c
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_operators_in_c(operator: Operator, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("c")
    if kernel is None:
        assert operator.name in ("bmm", "conv2d")
        return
    reference = in_c(operator, kernel, tmp_path)
    for probe in operator.probes():
        inputs = operator.inputs(3, probe)
        got = reference.answers(operator, inputs, probe)
        assert isinstance(got, dict), got
        assert alike(operator, probe, got, operator.reference(inputs)), probe


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_some_elements_are_those_of_the_whole(operator: Operator) -> None:
    for probe in operator.probes():
        inputs = operator.inputs(3, probe)
        for name, want in operator.reference(inputs).items():
            places = sampled(want.values.shape, operator.reference_rows)
            got = operator.reference_at(inputs, name, places)
            whole = np.broadcast_to(want.scale, want.values.shape).reshape(-1)[places]
            np.testing.assert_allclose(got.values, want.values.reshape(-1)[places], rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(np.broadcast_to(got.scale, places.shape), whole, rtol=1e-4)


def emulated(operator: Operator, kernel: Kernel, folder: Path, probe: str = "normal") -> dict[str, Answer]:
    simt = resources.files("deepgen.kernels.shared.dialect")
    headers = tuple(Source(name, (simt / name).read_text()) for name in ("dialect.h", "emulate.h"))
    harness = '#include "dialect.h"\n' + emulation.harness(kernel)
    library = emulation.compiled(replace(kernel, sources=(*kernel.sources, *headers)), folder, harness, "-std=c++17")
    tensors: dict[str, Array] = dict(operator.inputs(3, probe))
    for tensor in operator.tensors():
        if tensor.role != "input":
            tensors[f"want_{tensor.name}"] = np.zeros(tensor.shape, np.int64 if tensor.dtype.integer else np.float64)
            tensors[f"scale_{tensor.name}"] = np.ones(tensor.shape, scale_format(tensor.dtype).numpy())
    written = [name for name in tensors if name.startswith(("want_", "scale_"))]
    assert emulation.steps(kernel, library, operator, tensors, {}, written) == ""
    outputs = [t.name for t in operator.tensors() if t.role != "input"]
    return {name: Answer(tensors[f"want_{name}"], tensors[f"scale_{name}"]) for name in outputs}


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_operators_as_gpus_compute_them(operator: Operator, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("cuda")
    assert kernel is not None
    got = emulated(operator, kernel, tmp_path)
    assert alike(operator, "normal", got, operator.reference(operator.inputs(3)))


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize(
    ("operator", "probe"),
    [
        (dg.operator("elementwise", rows=24, cols=40, dtype="f64", epilogue="silu"), "wide"),
        (dg.operator("rms_norm", rows=24, cols=40, dtype="f64"), "wide"),
        (softmax(24, 40, dtype="f64"), "large"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_scales_of_f64_may_be_smaller_than_any_f32(operator: Operator, probe: str, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("cuda")
    assert kernel is not None
    got, want = emulated(operator, kernel, tmp_path, probe), operator.reference(operator.inputs(3, probe))
    assert (want["y"].scale < 1e-46).any()
    assert alike(operator, probe, got, want)


@pytest.mark.parametrize(("target", "first"), [("cuda:sm_90a", 0), ("cuda:sm_80", 1), ("hip:gfx90a", 1)])
def test_they_build_wherever_kernels_do(target: str, first: int) -> None:
    chip = resolve(target)
    for operator in OPERATORS[first::3]:
        kernel = operator.reference_kernel(chip.kind)
        assert kernel is not None
        try:
            assert build_once(kernel, chip).facts["code_bytes"]
        except Missing as error:
            pytest.skip(str(error))


def test_one_binary_serves_all_shapes() -> None:
    first, other = (softmax(*shape, dtype="bf16").reference_kernel("cuda") for shape in ((4, 300), (777, 50304)))
    assert first is not None and other is not None
    assert first.sources == other.sources and first.name == other.name and first.plan != other.plan


@needs_c
def test_a_wrong_one_is_not_believed(tmp_path: Path) -> None:
    operator = softmax(40, 300)
    kernel = operator.reference_kernel("c")
    assert kernel is not None
    inputs = operator.inputs(3)
    for was, instead, words in (
        ("fn_exp(f64 x) { return exp(x)", "fn_exp(f64 x) { return exp(x * 1.001)", "a different value"),
        ("(T)(x))", "(T)((x) * (sizeof(T) == 4 ? 2 : 1)))", "a different scale"),
    ):
        source, header = kernel.sources
        harmed = replace(kernel, sources=(source, Source(header.name, header.text.replace(was, instead))))
        answer = in_c(operator, harmed, tmp_path, "-O1", "-w").answers(operator, inputs, "normal")
        assert isinstance(answer, str) and words in answer


def test_work_is_shared_and_errors_are_not_lost() -> None:
    done: list[int] = []
    in_parts(1000, 3, lambda first, last: done.extend(range(first, last)))
    assert sorted(done) == list(range(1000))
    with pytest.MonkeyPatch.context() as patch:  # a process that may not start more threads
        patch.setattr("threading.Thread.start", lambda thread: (_ for _ in ()).throw(RuntimeError("can't start")))
        in_parts(1000, 3, lambda first, last: done.extend(range(first, last)))
    assert len(done) == 2000
    with pytest.raises(ZeroDivisionError):
        in_parts(10, 2, lambda first, last: ctypes.c_int(first // 0))


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> HostReference:
    operator = softmax(4, 300)
    kernel = operator.reference_kernel("c")
    assert kernel is not None
    return in_c(operator, kernel, tmp_path_factory.mktemp("judging"))


@needs_c
@given(
    st.sampled_from(["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u8", "i16", "i32", "i64"]),
    st.integers(0, 99),
    st.sampled_from([0.0, 1e-3, 0.1]),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_c_compares_as_numpy_does(
    judging: HostReference, name: str, seed: int, relative: float, each: bool, kind: type
) -> None:
    of, rng = dtype(name), np.random.default_rng(seed)
    if of.integer:
        values: Array = rng.integers(max(of.whole[0], -100), 100, 3000)
        got, want = values.astype(of.numpy()), Answer(values + (rng.random(3000) < 0.001))
    else:
        values = rng.standard_normal(3000) * rng.choice([1.0, 1e-6, 1e4, 1e38], 3000)
        values[rng.integers(3000, size=20)] = rng.choice([np.nan, np.inf, -np.inf, 0.0], 20)
        with np.errstate(all="ignore"):
            got = narrow(values, of)
            off = values * (1 + rng.standard_normal(3000) * 0.01 * (rng.random(3000) < 0.01))
            scale = np.abs(rng.standard_normal(3000 if each else ())).astype(kind)
            want = Answer(off.astype(rng.choice([np.float32, np.float64])), np.asarray(scale))
    tolerance = Tolerance(relative, relative)
    judged, right = judging.compare(got, want, of, tolerance), compare(got, want, of, tolerance)
    assert replace(judged, error=0.0) == replace(right, error=0.0)
    assert judged.error == pytest.approx(right.error, rel=1e-12)
