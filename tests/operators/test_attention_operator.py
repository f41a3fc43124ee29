"""Attention guarantees: exact references of all options, and a tolerance that only good kernels meet."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simt_emulation as emulation

import needs
from deepgen import operators
from deepgen.operators import Answer, Array, Attention, TensorFacts, attention
from deepgen.operators.attention import PROBES
from deepgen.operators.compare import Comparison, compare
from deepgen.operators.expr.interpret import answers
from deepgen.targets import resolve
from deepgen.vocabulary import BadInput, Kernel, Source
from deepgen.vocabulary.dtypes import dtype, narrow, widen

OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True, "kv_heads": 1},
    {"causal": True, "window": 3},
    {"window": 4, "softcap": 2.0, "layout": "bshd"},
    {"dtype": "f32", "causal": True, "scale": 0.5, "v_width": 24},
    {"dtype": "f16", "layout": "bshd", "kv_heads": 1, "v_width": 8},
    {"bias": True, "sinks": True, "lse": True, "causal": True},
    {"dtype": "f32", "layout": "bshd", "alibi": True, "lse": True, "softcap": 3.0},
    {"dtype": "f8e4m3", "scales": True, "kv_heads": 1, "causal": True, "bias": True},
    {"dtype": "f8e4m3", "scales": True, "layout": "bshd", "sinks": True, "lse": True, "softcap": 3.0},
]
OPERATORS = [attention(2, 2, *lengths, 16, **options) for options in OPTIONS for lengths in ((9, 13), (13, 9))]


def named(operator: Attention) -> str:
    return operator.slug()


def judged(operator: Attention, o: Array, probe: str = "normal") -> Comparison:
    answer = operator.reference(operator.inputs(3, probe))["o"]
    return compare(o, answer, dtype(operator.result), operator.tolerance("o", probe))


def plainly(operator: Attention, probe: str = "normal", lost: int | None = None, *, shift: bool = True) -> Array:
    """Like a kernel: in f32, with weights rounded to the format of v; without key `lost`, if given. Weights of 8 bits
    are at most 16, where a kernel's may be 256."""
    of, result, most_of_all = dtype(operator.dtype), dtype(operator.result), 16 if operator.format.bits == 8 else 1
    order = (0, 1, 2, 3) if operator.layout == "bhsd" else (0, 2, 1, 3)
    inputs = operator.inputs(3, probe)
    q, k, v = (widen(inputs[n], of).astype(np.float32).transpose(order) for n in "qkv")
    if operator.scales:
        q, k, v = (x * inputs[f"{n}_scales"][:, :, None, None] for n, x in (("q", q), ("k", k), ("v", v)))
    k, v = (np.repeat(x, operator.heads // operator.kv_heads, 1) for x in (k, v))
    with np.errstate(all="ignore"):
        scores = (q @ k.swapaxes(-1, -2)) * np.float32(operator.factor)
        if operator.softcap:
            scores = np.float32(operator.softcap) * np.tanh(scores / np.float32(operator.softcap))
        places, keys = np.arange(operator.queries)[:, None], np.arange(operator.keys)
        if operator.alibi:
            apart = np.abs(places + operator.keys - operator.queries - keys).astype(np.float32)
            scores = scores - inputs["slopes"][:, None, None] * apart
        if operator.bias:
            scores = scores + widen(inputs["bias"], result).astype(np.float32)
        seen = np.ones(scores.shape[-2:], bool)
        for condition in operator.sees(places, keys):
            seen &= condition
        if lost is not None:
            seen[:, lost] = False
        most = np.where(seen, scores, -1e30).max(-1, keepdims=True) if shift else np.float32(0)
        weights = np.where(seen, np.exp(scores - most), np.float32(0))
        total = weights.sum(-1, keepdims=True)
        if operator.sinks:
            total = total + np.exp(inputs["sinks"][:, None, None] - most)
        rounded = widen(narrow(weights * np.float32(most_of_all), of), of).astype(np.float32) / most_of_all
        return narrow(np.ascontiguousarray((rounded @ v / np.where(total > 0, total, 1)).transpose(order)), result)


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_it_survives_files_and_words(operator: Attention) -> None:
    assert operators.from_json(operator.to_json()) == operator
    assert Attention.make(operator.parameters()) == operator


def test_words_stand_for_each_other() -> None:
    short = Attention.make({"B": 4, "H": 16, "S": 4096, "D": 128, "causal": True})
    assert short == attention(4, 16, 4096, 4096, 128, causal=True)
    assert Attention.make({"B": 1, "H": 8, "HK": 2, "SQ": 1, "SK": 99, "D": 192, "DV": 128}).sizes() == {
        "B": 1, "H": 8, "HK": 2, "SQ": 1, "SK": 99, "D": 192, "DV": 128,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: attention(0, 1, 8, 8, 8), "B is 0"),
        (lambda: attention(1, 6, 8, 8, 8, kv_heads=4), "HK=4 with H=6"),
        (lambda: attention(1, 1, 8, 8, 8, dtype="i8"), "dtype 'i8'"),
        (lambda: attention(1, 1, 8, 8, 8, layout="sbhd"), "layout 'sbhd'"),
        (lambda: attention(1, 1, 8, 8, 8, window=-1), "window is -1"),
        (lambda: attention(1, 1, 8, 8, 8, scale=-1.0), "scale is -1.0"),
        (lambda: attention(1, 1, 8, 8, 8, scales=True), "scales with dtype bf16"),
        (lambda: attention(1, 1, 8, 8, 8, softcap=float("nan")), "softcap is nan"),
        (lambda: attention(1, 1, 8, 8, 8).inputs(0, "odd"), "unknown probe 'odd'"),
        (lambda: Attention.make({"B": 1, "H": 1, "D": 8}), "needs a value for SQ and SK"),
        (lambda: Attention.make({"B": 1, "H": 1, "S": 8, "D": 8, "N": 1}), "no parameter 'N'"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make()


def test_sizes_and_strides_come_from_a_calls_arrays() -> None:
    tuned = attention(1, 2, 8, 8, 16, kv_heads=1)
    q = TensorFacts((3, 6, 5, 16), "bf16", (480, 16, 96, 1))  # heads adjacent in memory
    arrays = {"q": q, "k": TensorFacts((3, 2, 7, 16), "bf16"), "v": TensorFacts((3, 2, 7, 16), "bf16")}
    found = tuned.bind(arrays)
    assert found == attention(3, 6, 5, 7, 16, kv_heads=2)
    assert found.strided(arrays)["stride_q_2"] == 96


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_work_is_that_of_keys_which_are_seen(operator: Attention) -> None:
    rows, keys = np.arange(operator.queries)[:, None], np.arange(operator.keys)
    seen = np.ones((operator.queries, operator.keys), bool)
    for condition in operator.sees(rows, keys):
        seen &= condition
    assert operator.flops() == 2 * 4 * int(seen.sum()) * (operator.width + operator.v_width)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_its_expression_computes_the_same(operator: Attention, probe: str) -> None:
    inputs, expression = operator.inputs(3, probe), operator.expression()
    assert all(array.flags.c_contiguous for array in inputs.values())
    wide = {t.name: widen(inputs[t.name], dtype(t.dtype)) for t in expression.tensors}
    results = answers(expression, wide)
    for name, want in operator.reference(inputs).items():
        np.testing.assert_allclose(results[name].values, want.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_some_elements_are_those_of_the_whole(operator: Attention) -> None:
    inputs = operator.inputs(3)
    for name, whole in operator.reference(inputs).items():
        places = np.arange(0, whole.values.size, 7)
        some = operator.reference_at(inputs, name, places)
        np.testing.assert_allclose(some.values, whole.values.reshape(-1)[places], rtol=1e-13)
        np.testing.assert_allclose(some.scale, whole.scale.reshape(-1)[places], rtol=1e-6)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("operator", [*OPERATORS, attention(1, 2, 70, 1500, 64, causal=True)], ids=named)
def test_a_simple_kernel_is_right(operator: Attention, probe: str) -> None:
    found = judged(operator, plainly(operator, probe), probe)
    assert found.ok, found


@pytest.mark.parametrize("keys", [40, 1500, 6000])
@pytest.mark.parametrize("name", ["bf16", "f16", "f32", "f8e4m3"])
def test_a_lost_key_is_found(name: str, keys: int) -> None:
    operator = attention(1, 1, 16, keys, 32, dtype=name)
    assert not judged(operator, plainly(operator, "exact", keys // 3), "exact").ok


def test_a_kernel_that_subtracts_no_maximum_is_wrong() -> None:
    operator = attention(1, 1, 9, 50, 32)
    assert not judged(operator, plainly(operator, "large", shift=False), "large").ok


def test_a_bias_may_stand_for_all_heads_and_batches() -> None:
    tuned = attention(2, 4, 8, 8, 16, bias=True)
    arrays = {name: TensorFacts((3, 4, 5, 16), "bf16") for name in "qkv"} | {
        "bias": TensorFacts((5, 5), "bf16", (5, 1))
    }
    strides = tuned.bind(arrays).strided(arrays)
    assert [strides[f"stride_bias_{i}"] for i in range(4)] == [0, 0, 5, 1]


def test_scales_may_stand_for_all_heads_and_batches() -> None:
    tuned = attention(2, 4, 8, 8, 16, kv_heads=2, dtype="f8e4m3", scales=True)
    arrays = {"q": TensorFacts((3, 4, 5, 16), "f8e4m3")}
    arrays |= {name: TensorFacts((3, 2, 5, 16), "f8e4m3") for name in "kv"}
    arrays |= {"q_scales": TensorFacts((3, 4), "f32"), "k_scales": TensorFacts((1, 1), "f32", (1, 1))}
    arrays |= {"v_scales": TensorFacts((2,), "f32", (1,))}
    strides = tuned.bind(arrays).strided(arrays)
    assert [strides[f"stride_{name}_scales_{i}"] for name in "qkv" for i in range(2)] == [4, 1, 0, 0, 0, 1]
    assert [str(t.dtype) for t in tuned.tensors() if t.name in ("q", "o")] == ["f8e4m3", "bf16"]


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    operator = attention(1, 1, 9, 4, 16, causal=True)
    assert not operator.reference(operator.inputs(3))["o"].values[:, :, :5].any()


def built(kernel: Kernel, folder: Path) -> ctypes.CDLL:
    simt = resources.files("deepgen.kernels.shared.dialect")
    headers = (Source(name, (simt / name).read_text()) for name in ("dialect.h", "emulate.h"))
    harness = """
        #include "dialect.h"
        #include "attention_reference.cu"
        extern "C" void clear() { emulate::machine.ranges.clear(); }
        extern "C" void buffer(char* begin, i64 bytes, int writable, int once) {
            emulate::machine.ranges.push_back({begin, bytes, writable != 0, once != 0, {}});
        }
        extern "C" const char* run_attention_reference(void** args, int grid, int threads, int shared) {
            return emulate::launch(attention_reference, args, grid, threads, shared);
        }"""
    return emulation.compiled(replace(kernel, sources=(*kernel.sources, *headers)), folder, harness, "-std=c++17")


def emulated(operator: Attention, inputs: Mapping[str, Array], kernel: Kernel, lib: ctypes.CDLL) -> dict[str, Answer]:
    shapes = {t.name: t.shape for t in operator.tensors() if t.role == "output"}
    tensors = {**inputs}
    for name, shape in shapes.items():
        tensors |= {name: np.zeros(shape), f"want_{name}": np.zeros(shape), f"scale_{name}": np.ones(shape, np.float32)}
    written = [f"{part}_{name}" for name in shapes for part in ("want", "scale")]
    assert emulation.steps(kernel, lib, operator, tensors, {}, written) == ""
    return {name: Answer(tensors[f"want_{name}"], tensors[f"scale_{name}"]) for name in shapes}


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("operator", [OPERATORS[i] for i in (2, 5, 6, 8, 11, 13, 14, 17, 18)], ids=named)
def test_the_device_computes_what_the_host_does(operator: Attention, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("cuda")
    assert kernel is not None
    library = built(kernel, tmp_path)
    for probe in ("normal", "exact", "large"):
        inputs = operator.inputs(3, probe)
        results = emulated(operator, inputs, kernel, library)
        for name, want in operator.reference(inputs).items():
            np.testing.assert_allclose(results[name].values, want.values, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(results[name].scale, want.scale, rtol=1e-5)


def test_the_devices_reference_builds() -> None:
    kernel = OPERATORS[6].reference_kernel("cuda")
    assert kernel is not None and OPERATORS[6].reference_kernel("hip") is None
    assert needs.built_here(kernel, resolve("cuda:sm_80")).facts["spill_bytes"] == 0
