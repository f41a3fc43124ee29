"""`deepgen_formats.kernel_tuner`: what a call describes, what it returns, and its error messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepgen import targets
from deepgen.tuning.search import recorded
from deepgen.vocabulary import BadInput, ConstantCopy, ScalarArg, TensorArg
from deepgen_formats.kernel_tuner import (
    CompilationFailedConfig,
    RuntimeFailedConfig,
    run_kernel,
    store_output_file,
    tune_kernel,
)
from deepgen_formats.kernel_tuner.kernel import kernel_of

SCALE = """
extern "C" void scale(float *y, const float *x, float factor, int n) {
#if STEP == 3
#error "no such step"
#endif
    for (int i = 0; i < (STEP == 4 ? n - 1 : n); i++) y[i] = factor * x[i];
}
"""
N = 1000
X = np.arange(N, dtype=np.float32)
Y = np.zeros_like(X)
ARGUMENTS = [Y, X, np.float32(3), np.int32(N)]


def called(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "kernel_name": "scale",
        "kernel_source": SCALE,
        "problem_size": N,
        "arguments": ARGUMENTS,
        "tune_params": {"STEP": [1]},
        "lang": "C",
        "quiet": True,
    }
    return tune_kernel(**{**given, **changed})


def test_failures_are_rows_that_say_why(tmp_path: Path) -> None:
    cache = tmp_path / "scale.json"
    results, env = called(tune_params={"STEP": [1, 3, 4]}, answer=[3 * X, None, None, None], cache=cache)
    right, broken, wrong = sorted(results, key=lambda row: row["STEP"])
    assert env["best_config"] == right and "time" in right
    assert isinstance(broken["__error__"], CompilationFailedConfig) and "no such step" in broken["__error__"]
    assert isinstance(wrong["__error__"], RuntimeFailedConfig) and "wrong" in wrong["__error__"]
    # The written file can be read for replay, and by a search without a device.
    known = recorded.read(cache)
    assert sorted(m.verdict.value for m in known.measurements.values()) == ["build_failed", "correct", "crashed"]
    again, _ = called(tune_params={"STEP": [1, 3, 4]}, cache=cache, simulation_mode=True)
    assert [row["time"] for row in again if "time" in row] == pytest.approx([right["time"]])
    store_output_file(tmp_path / "out", results, {"STEP": []})
    written = json.loads((tmp_path / "out.json").read_text())
    assert sorted(row["invalidity"] for row in written["results"]) == ["compile", "correct", "runtime"]


def test_a_kernel_is_run_once() -> None:
    y, x, factor, n = run_kernel("scale", SCALE, N, ARGUMENTS, {"STEP": 1}, lang="C")
    np.testing.assert_array_equal(y, 3 * X)
    assert x is X and (factor, n) == (3, N) and not Y.any(), "what was passed is as it was"


def described(**more: Any) -> Any:
    source = """
    __constant__ float weights[4];
    template <typename T, int width> __global__ void k(T* y, T* x, int n) {
        y[grid_size_x] = x[TILE] * weights[kernel_tuner];
    }
    """
    given: dict[str, Any] = {"block_size_x": [32, 64], "TILE": [1, 3]}
    return kernel_of("k<float, TILE>", source, (1000, 10), [Y, X, np.int32(8)], given, **more)


def test_a_gpu_kernel_is_launched_as_kernel_tuner_would() -> None:
    kernel = described(
        grid_div=(["block_size_x", "TILE"], [], None),
        smem_args={"size": lambda p: p["block_size_x"] * 4},
        cmem_args={"weights": np.ones(4, np.float32)},
        answer=[X, None, None],
        restrictions=lambda p: p["TILE"] == 3 or p["block_size_x"] == 32,
    )
    target, operator = targets.resolve("cuda:sm_90a"), kernel.operator()
    assert kernel.family.space(operator, target).count() == 3
    emitted = kernel.family.emit(operator, target, {"block_size_x": 64, "TILE": 3})
    (step,) = emitted.plan.steps
    assert (step.grid, step.block, step.shared_bytes) == ((6, 10, 1), (64, 1, 1), 256)
    assert step.args == (TensorArg("y"), TensorArg("x"), ScalarArg("i32", "n"))
    assert emitted.plan.constants == (ConstantCopy("weights", "weights"),)
    assert {"-DTILE=3", "-Dgrid_size_x=6", "-Dkernel_tuner=1"} <= set(emitted.flags)
    by_name = {t.name: (t.role, t.checked) for t in kernel.description.tensors}
    assert by_name == {"y": ("inout", True), "x": ("inout", False), "weights": ("input", True)}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"texmem_args": {"tex": X}}, "argument tex is a texture"),
        ({"verify": lambda a, b: True}, "verify is given"),
        ({"observers": [object()]}, "observers are given"),
        ({"lang": "OpenCL"}, "lang is 'OpenCL'"),
        ({"compiler": "gfortran"}, "compiler is 'gfortran'"),
        ({"strategy": "guess"}, "strategy is 'guess'"),
        ({"arguments": ARGUMENTS[:3]}, "scale takes 4 parameters in scale.cpp, but 3 arguments are given"),
        ({"arguments": [*ARGUMENTS[:3], N]}, "argument 3 is int 1000"),
        ({"arguments": [*ARGUMENTS[:3], np.float64(N)]}, "argument 3 of scale, n, is f64"),
        ({"tune_params": {"STEP": [1], "BLOCK": [1, 2]}}, "knob BLOCK is a macro that scale.cpp never uses"),
        ({"answer": [X, None]}, "answer has 2 entries"),
        ({"answer": [X[:10], None, None, None]}, r"answer 0 has the shape \(10,\)"),
        ({"restrictions": ["STEP < WIDTH"]}, "names 'WIDTH'"),
        ({"restrictions": ["STEP > 1"]}, "restrictions exclude every config"),
        ({"objective": "energy"}, "objective is 'energy'"),
        ({"metrics": {"speed": lambda p: p["speed"]}}, "a metric raised KeyError: 'speed'"),
        ({"metrics": {"speed": "width / time"}}, "metric 'width / time' names 'width'"),
        ({"kernel_source": "missing.cu"}, "there is no file"),
        ({"kernel_source": lambda p: SCALE}, "kernel_source is a function"),
        ({"simulation_mode": True}, "simulation_mode needs a cache"),
    ],
)
def test_what_is_not_served_is_said_by_name(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        called(**changed)
