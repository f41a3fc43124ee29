"""Baselines compute the same operator on the same buffers, and give a reason if they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from deepgen import baselines, targets
from deepgen.baselines import cutlass_dsl
from deepgen.operators import Array, Gemm, Operator, conv2d, gemm, softmax
from deepgen.operators.compare import compare
from deepgen.run.measure import Contender, RunnerOptions, Task, open_runner
from deepgen.tuning.finals import asked_for
from deepgen.vocabulary import BadInput, Verdict

X86 = targets.resolve("cpu")
OPERATORS = [
    *(gemm(17, 13, 19, layout=layout) for layout in ("nn", "nt", "tn", "tt")),
    gemm(17, 13, 19, layout="nt", batch=3),
    *(gemm(16, 32, 24, dtype=dtype) for dtype in ("f64", "f16", "bf16")),
    gemm(16, 32, 24, alpha=0.5, beta=2.0),
    gemm(16, 32, 24, alpha=0.5),
    gemm(16, 32, 24, dtype="bf16", bias=True, activation="relu"),
    gemm(16, 32, 24, bias=True, activation="gelu"),
    gemm(16, 32, 24, activation="silu"),
]


COMPILED = "torch-compile"  # takes seconds for each operator
SLOW = {COMPILED, "tvm"}


def names(operator: Gemm) -> list[str]:
    return [name for name in baselines.find(operator, X86) if name not in SLOW]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.describe().replace(" ", "-"))
def test_each_baseline_gives_the_reference_wherever_it_says_it_can_run(operator: Gemm) -> None:
    inputs = operator.inputs(seed=3)
    want = operator.reference(inputs)["C"]
    [output] = [t for t in operator.tensors() if t.name == "C"]
    for name in names(operator):
        tensors: dict[str, Array] = {**{k: v.copy() for k, v in inputs.items()}}
        tensors.setdefault("C", np.full(output.shape, 3, output.dtype.numpy()))
        baselines.by_name(name).prepare(operator, tensors, 1)()
        # A result that is rounded more than once may be off by one more unit in the last place per rounding.
        found = compare(tensors["C"], want, output.dtype, operator.tolerance("C"))
        assert found.error <= (1.0 if operator.activation == "none" else 3.0), f"{name}: {found}"
        for given, array in inputs.items():
            assert given == "C" or np.array_equal(tensors[given], array), f"{name} changed {given}"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_what_torch_compiles_gives_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled, because compiling takes half a minute here."""
    monkeypatch.setattr("torch.compile", lambda function, **_: function)
    operator = gemm(16, 32, 24, layout="nt", bias=True, activation="relu")
    inputs = operator.inputs(seed=3)
    tensors: dict[str, Array] = {**inputs, "C": np.full((16, 32), 3, np.float32)}
    assert baselines.by_name(COMPILED).missing(operator, X86) is None
    baselines.by_name(COMPILED).prepare(operator, tensors, 1)()
    [output] = [t for t in operator.tensors() if t.name == "C"]
    found = compare(tensors["C"], operator.reference(inputs)["C"], output.dtype, operator.tolerance("C"))
    assert found.error <= 3.0


def test_softmax_is_compared_with_torch() -> None:
    operator = softmax(5, 40)
    assert ("torch" in baselines.find(operator, X86)) is (find_spec("torch") is not None)
    if find_spec("torch"):
        inputs = operator.inputs(seed=3)
        tensors = {**inputs, "y": np.zeros((5, 40), np.float32)}
        baselines.by_name("torch").prepare(operator, tensors, 1)()
        np.testing.assert_allclose(tensors["y"], operator.reference(inputs)["y"].values, rtol=1e-5)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942", "sim"])
@pytest.mark.parametrize(
    "operator", [gemm(64, 64, 64), softmax(8, 8), conv2d(1, 8, 8, 8, 8, 3, layout="nchw")], ids=lambda o: o.name
)
def test_each_says_why_it_cannot_run_somewhere(operator: Operator, target: str) -> None:
    """In words, and without importing what it needs."""
    for name in baselines.BASELINES.own:
        why = baselines.by_name(name).missing(operator, targets.resolve(target))
        assert why is None or (isinstance(why, str) and " " in why), name


def test_what_cutlass_and_tvm_need_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        return None

    def not_there(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("deepgen.baselines.tvm_schedules.find_spec", absent)
    monkeypatch.setattr("deepgen.baselines.cutlass_dsl.version", not_there)
    on_gpu, half = targets.resolve("cuda:sm_90a"), gemm(64, 64, 64, dtype="bf16", layout="nt")
    assert "pip install apache-tvm" in str(baselines.by_name("tvm").missing(gemm(64, 64, 64), X86))
    assert "'nvidia-cutlass-operators[heuristics]'" in str(baselines.by_name("cutlass-dsl").missing(half, on_gpu))
    monkeypatch.setattr("deepgen.baselines.cutlass_dsl.version", str)
    monkeypatch.setattr("deepgen.baselines.cutlass_dsl.find_spec", absent)
    assert "pip install nvidia-matmul-heuristics" in str(baselines.by_name("cutlass-dsl").missing(half, on_gpu))


def test_kernels_that_heuristics_propose_come_first() -> None:
    design = cutlass_dsl.CutlassDesign
    kernels = [
        design((64, 64), (1, 1)),
        design((128, 64), (1, 1)),
        design((128, 128), (1, 1)),
        design((128, 128), (2, 1)),
    ]
    wanted = [
        design((128, 128), (2, 1)),
        design((64, 256), (1, 1)),
        design((128, 64), (2, 4)),
        design((128, 128), (1, 1)),
    ]
    assert cutlass_dsl.ranked(kernels, wanted) == [3, 2, 1, 0]
    assert cutlass_dsl.ranked(kernels, []) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tvm") is None, reason="TVM is not installed (apache-tvm)")
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_tvm_gives_the_reference(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepgen.baselines.tvm_schedules._TILES", ((4, 16, 4),))
    operator = gemm(18, 20, 24, layout=layout)
    inputs = operator.inputs(seed=3)
    tensors = {name: aligned(array) for name, array in {**inputs, "C": np.zeros((18, 20), np.float32)}.items()}
    cores = os.sched_getaffinity(0)
    try:
        baselines.by_name("tvm").prepare(operator, tensors, 1)()
    finally:
        os.sched_setaffinity(0, cores)  # TVM's thread pool pins its caller to one core
    np.testing.assert_allclose(tensors["C"], operator.reference(inputs)["C"].values, rtol=1e-4, atol=1e-5)


def aligned(array: Array) -> Array:
    """A copy aligned to 64 bytes, like the worker's buffers."""
    raw = np.zeros(array.nbytes + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    copy: Array = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_some_take_part_by_name_only() -> None:
    operator = gemm(64, 64, 64, layout="nt")
    able = baselines.find(operator, X86)
    assert not {"openblas", "onednn", *SLOW} & {*baselines.raced(able)}
    assert asked_for(["openblas", "cublaslt"], able, operator) == (["openblas"] if "openblas" in able else [])
    assert "numpy" in asked_for(True, able, operator)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None or find_spec("torch") is None, reason="needs triton and torch")
def test_the_product_in_triton_gives_the_reference(tmp_path: Path) -> None:
    """With Triton's interpreter, which must be enabled before Triton is imported."""
    script = tmp_path / "interpreted.py"
    script.write_text(
        "import torch\n"
        "from deepgen.baselines import triton_kernel as t\n"
        "a, b, c = torch.randn(40, 70), torch.randn(24, 70).mT, torch.empty(40, 24)\n"
        "m, k, n = 40, 70, 24\n"
        "t.product[(6,)](a, b, c, m, n, k, *a.stride(), *b.stride(), c.stride(0), 16, 16, 32, 2)\n"
        "torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-4)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_numpy_is_always_there_for_a_plain_product() -> None:
    assert "numpy" in names(gemm(8, 8, 8))
    assert ("torch" in names(gemm(8, 8, 8))) is (find_spec("torch") is not None)


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (gemm(8, 8, 8, dtype="i8"), "f32 or f64 only"),
        (gemm(8, 8, 8, beta=1.0), "alpha, beta"),
        (gemm(8, 8, 8, activation="relu"), "activation"),
    ],
)
def test_why_one_cannot_run_is_said(operator: Gemm, words: str) -> None:
    assert words in str(baselines.by_name("numpy").missing(operator, X86))
    assert "sim" in str(baselines.by_name("numpy").missing(gemm(8, 8, 8), targets.resolve("sim")))


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(BadInput, match="numpy, torch"):
        baselines.by_name("eigen")


@pytest.mark.slow
def test_baselines_race_in_the_worker_on_read_only_inputs(tmp_path: Path) -> None:
    operator = gemm(64, 64, 64, layout="nt")
    runner = open_runner(Task(operator, X86), RunnerOptions(cache=tmp_path))
    entries = [Contender(name) for name in names(operator)]
    results = runner.compare(entries, rounds=3, seed=0)
    assert [m.verdict for m in results] == [Verdict.CORRECT] * len(entries), [m.detail for m in results]
    assert all(len(m.samples) == 3 for m in results)
    [unknown] = runner.compare([Contender("nobody")], rounds=3, seed=0)
    assert (unknown.verdict, "unknown baseline" in unknown.detail) == (Verdict.REFUSED, True)
    runner.close()
