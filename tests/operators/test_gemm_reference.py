"""A GEMM's device reference equals the host's: it is the only judge of results too large for the host."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import simt_emulation as emulation

from deepgen.operators import Answer, Gemm, GroupedGemm, Tolerance, gemm, grouped_gemm
from deepgen.operators.compare import compare, scale_format
from deepgen.targets import resolve
from deepgen.toolchains import build_once
from deepgen.vocabulary import Kernel, Missing, Source
from deepgen.vocabulary.dtypes import dtype

ALL = {"alpha": -0.5, "beta": 2.0, "bias": True, "activation": "relu"}
OPERATORS = [
    *(gemm(70, 67, 35, layout=layout, batch=2) for layout in ("nn", "nt", "tn", "tt")),
    *(gemm(9, 70, 33, dtype=name, layout="nt") for name in ("f64", "tf32", "f16", "bf16", "f8e4m3", "f8e5m2", "u8")),
    gemm(65, 3, 300, dtype="i8", a="u8", layout="tn"),
    gemm(1, 1, 1),
    gemm(9, 70, 33, dtype="bf16", scales="row", **ALL),
    gemm(9, 70, 33, dtype="f16", scales="column", layout="tt", batch=2, **{**ALL, "activation": "gelu"}),
    gemm(9, 70, 33, dtype="f8e4m3", scales="tensor", bias=True, activation="silu"),
    gemm(9, 70, 33, dtype="i8", c="bf16", scales="row", bias=True),
    gemm(9, 150, 300, dtype="f8e4m3", layout="nt", scales="1x128,128x128", **ALL),
    gemm(150, 9, 150, dtype="f8e5m2", layout="tn", scales="128x128,128x128", batch=2),
    gemm(9, 7, 130, dtype="f8e4m3", scales="1x128,1x128", c="f16"),
    gemm(9, 70, 33, dtype="bf16", layout="nt", batch=2, epilogue="gelu(x + bias[n]) * up[m, n] - scale[m] / 3"),
    gemm(9, 70, 33, dtype="f8e4m3", c="f8e4m3", layout="nt", epilogue="clamp(silu(x), -2, 2) * s[0] + f32(r[m, n])"),
    gemm(9, 70, 33, dtype="i8", c="f16", epilogue="tanh(x * scale[n]) + max(exp(-abs(x)), min(sigmoid(x), 0.5))"),
]
GROUPED = [
    grouped_gemm(5, 90, 20, 33, layout="nn", dtype="f16", scales="column"), grouped_gemm(4, 90, 20, 16, scales="row"),
    grouped_gemm(3, 70, 20, 50, layout="tn", scales="expert", dtype="f32"),
]  # fmt: skip


def built(kernel: Kernel, folder: Path) -> ctypes.CDLL:
    simt = resources.files("deepgen.kernels.shared.dialect")
    headers = (Source(name, (simt / name).read_text()) for name in ("dialect.h", "emulate.h"))
    harness = """
        #include "dialect.h"
        #include "gemm_reference.cu"
        extern "C" void clear() { emulate::machine.ranges.clear(); }
        extern "C" void buffer(char* begin, i64 bytes, int writable, int once) {
            emulate::machine.ranges.push_back({begin, bytes, writable != 0, once != 0, {}});
        }
        extern "C" const char* run_gemm_reference(void** args, int grid, int threads, int shared) {
            return emulate::launch(gemm_reference, args, grid, threads, shared);
        }"""
    return emulation.compiled(replace(kernel, sources=(*kernel.sources, *headers)), folder, harness, "-std=c++17")


def emulated(operator: Gemm | GroupedGemm, probe: str, kernel: Kernel, library: ctypes.CDLL) -> Answer:
    [shape] = [t.shape for t in operator.tensors() if t.name == "C"]
    of = dtype(operator.c)
    whole = of.integer
    tensors = {
        "C": np.zeros(shape),
        **operator.inputs(3, probe),
        "want_C": np.zeros(shape, np.int64 if whole else np.float64),
        "scale_C": np.ones(shape, scale_format(of).numpy()),
    }
    error = emulation.steps(kernel, library, operator, tensors, {}, ("want_C", "scale_C"))
    assert error == ""
    return Answer(tensors["want_C"], tensors["scale_C"])


def alike(got: Answer, want: Answer) -> bool:
    """Within f64 rounding: sums may be accumulated in another order."""
    of = dtype("i64" if got.values.dtype == np.int64 else "f64")
    sizes = np.broadcast_to(want.scale, want.values.shape).astype(np.float64)
    close = Tolerance(1e-12, 1e-12)
    return (
        compare(got.values, want, of, close).ok
        and compare(
            got.scale, Answer(sizes), dtype("f64" if got.scale.dtype == np.float64 else "f32"), Tolerance(0.0, 1e-5)
        ).ok
    )


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("operator", GROUPED, ids=lambda o: o.slug())
def test_so_it_does_for_experts(operator: GroupedGemm, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("cuda")
    assert kernel is not None
    library = built(kernel, tmp_path)
    for probe in ("normal", "large", "exact"):
        want = operator.reference(operator.inputs(3, probe))["C"]
        assert alike(emulated(operator, probe, kernel, library), want), probe


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.describe().replace(" ", "-"))
def test_the_device_computes_what_the_host_does(operator: Gemm, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("cuda")
    assert kernel is not None
    library = built(kernel, tmp_path)
    for probe in {"normal", "special", "denormal"} & set(operator.probes()) if operator.batch == 1 else ("normal",):
        want = operator.reference(operator.inputs(3, probe))["C"]
        assert alike(emulated(operator, probe, kernel, library), want), probe


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.describe().replace(" ", "-"))
def test_a_few_elements_are_those_of_the_whole(operator: Gemm) -> None:
    for probe in operator.probes():
        inputs = operator.inputs(3, probe)
        want = operator.reference(inputs)["C"]
        places = np.arange(0, want.values.size, 7)
        scale = np.broadcast_to(want.scale, want.values.shape).reshape(-1)[places]
        got = operator.reference_at(inputs, "C", places)
        got = replace(got, scale=np.broadcast_to(got.scale, places.shape).astype(scale.dtype))
        assert alike(got, Answer(want.values.reshape(-1)[places], scale)), probe


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "first"), [("cuda:sm_90a", 3), ("cuda:sm_80", 4), ("hip:gfx906", 3), ("hip:gfx90a", 4)]
)
def test_it_builds_wherever_kernels_do(target: str, first: int) -> None:
    """Each chip gets every other operator: the two differ in little but their formats' instructions."""
    chip = resolve(target)
    for operator in OPERATORS[first::2]:
        kernel = operator.reference_kernel(chip.kind)
        if kernel is None:
            assert chip.kind == "hip" and operator.activation in ("gelu", "silu")
            continue
        try:
            assert build_once(kernel, chip).facts["code_bytes"]
        except Missing as error:
            pytest.skip(str(error))


def test_what_its_arithmetic_does_not_cover_is_left_to_the_host() -> None:
    assert gemm(8, 8, 8, dtype="i8", alpha=0.5).reference_kernel("cuda") is None
    assert gemm(8, 8, 8, activation="gelu").reference_kernel("hip") is None
    assert gemm(8, 8, 8).reference_kernel("c") is None
