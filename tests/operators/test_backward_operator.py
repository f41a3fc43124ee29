"""The backward pass guarantees: exact references, those of torch's autograd, and a tolerance that lost pairs exceed."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simt_emulation as emulation

import deepgen as dg
import needs
from deepgen import operators
from deepgen.operators import Array, AttentionBackward, TensorFacts, attention_backward
from deepgen.operators.attention_backward import PROBES
from deepgen.operators.compare import Comparison, compare
from deepgen.targets import resolve
from deepgen.vocabulary import BadInput, Kernel, Source
from deepgen.vocabulary.dtypes import dtype, narrow, widen

OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True, "kv_heads": 1},
    {"causal": True, "window": 3, "scale": 0.5},
    {"window": 4, "softcap": 2.0, "layout": "bshd"},
    {"dtype": "f32", "causal": True, "v_width": 24},
    {"dtype": "f16", "layout": "bshd", "kv_heads": 1, "v_width": 8},
]
OPERATORS = [attention_backward(2, 2, *lengths, 16, **options) for options in OPTIONS for lengths in ((9, 13), (13, 9))]


def named(operator: AttentionBackward) -> str:
    return operator.slug()


def wide(operator: AttentionBackward, inputs: dict[str, Array]) -> dict[str, Array]:
    return {name: widen(array, dtype("f32" if name == "lse" else operator.dtype)) for name, array in inputs.items()}


def plainly(operator: AttentionBackward, probe: str, lost: tuple[int, int] | None = None) -> dict[str, Comparison]:
    """Like a kernel: in f32, weights and their gradients rounded to 16 bits; without one pair, if asked for."""
    of, laid, per = dtype(operator.dtype), operator.forward.laid, operator.per_group
    inputs = operator.inputs(3, probe)
    numbers = {name: laid(array).astype(np.float32) for name, array in wide(operator, inputs).items() if name != "lse"}
    q, k, v, out, dout = (numbers[name] for name in ("q", "k", "v", "o", "dout"))
    k, v = (np.repeat(x, per, 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * np.float32(operator.forward.factor)
    share = np.tanh(scores / np.float32(operator.softcap)) if operator.softcap else np.float32(0) * scores
    scores = share * np.float32(operator.softcap) if operator.softcap else scores
    low, high = operator.forward.ends(operator.keys)
    every = np.arange(operator.keys)
    seen = (every >= low[:, None]) & (every < high[:, None])
    if lost is not None:
        seen[lost] = False
    with np.errstate(all="ignore"):
        p = np.where(seen, np.exp(scores - inputs["lse"][..., None]), np.float32(0))
    ds = p * (dout @ v.swapaxes(-1, -2) - (dout * out).sum(-1, keepdims=True)) * (1 - share * share)
    p, ds = (widen(narrow(x, of), of).astype(np.float32) for x in (p, ds))
    factor = np.float32(operator.forward.factor)

    def grouped(x: Array) -> Array:
        return x.reshape(operator.batch, operator.kv_heads, per, *x.shape[2:]).sum(2)

    results = {
        "dq": ds @ k * factor,
        "dk": grouped(ds.swapaxes(-1, -2) @ q) * factor,
        "dv": grouped(p.swapaxes(-1, -2) @ dout),
    }
    reference = operator.reference(inputs)
    return {
        name: compare(
            narrow(np.ascontiguousarray(laid(x)), of), reference[name], of, operator.tolerance(name, probe)
        )
        for name, x in results.items()
    }  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_it_survives_files_and_words(operator: AttentionBackward) -> None:
    assert operators.from_json(operator.to_json()) == operator
    assert AttentionBackward.make(operator.parameters()) == operator
    assert dg.operator("attention_backward", **operator.parameters()) == operator


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: attention_backward(1, 6, 8, 8, 8, kv_heads=4), "HK=4 with H=6"),
        (lambda: attention_backward(1, 1, 8, 8, 16, dtype="f8e4m3"), "dtype 'f8e4m3'"),
        (lambda: attention_backward(1, 1, 8, 8, 8).inputs(0, "odd"), "unknown probe 'odd'"),
        (lambda: AttentionBackward.make({"B": 1, "H": 1, "D": 8}), "needs a value for SQ and SK"),
        (lambda: AttentionBackward.make({"B": 1, "H": 1, "S": 8, "D": 8, "bias": True}), "no parameter 'bias'"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make()


def test_sizes_and_strides_come_from_a_calls_arrays() -> None:
    tuned = attention_backward(1, 2, 8, 8, 16, kv_heads=1)
    rows, columns = TensorFacts((3, 6, 5, 16), "bf16", (480, 16, 96, 1)), TensorFacts((3, 2, 7, 16), "bf16")
    arrays = {"q": rows, "o": rows, "dout": rows, "k": columns, "v": columns, "lse": TensorFacts((3, 6, 5), "f32")}
    fits = tuned.bind(arrays)
    assert fits == attention_backward(3, 6, 5, 7, 16, kv_heads=2)
    assert fits.strided(arrays)["stride_dout_2"] == 96


def test_five_products_are_counted() -> None:
    assert attention_backward(2, 3, 8, 10, 16).flops() == 2 * 3 * 8 * 10 * 16 * 2 * 5
    assert attention_backward(2, 3, 8, 8, 16, causal=True, v_width=8).flops() == 2 * 3 * 36 * 2 * (3 * 16 + 2 * 8)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_some_elements_are_those_of_the_whole(operator: AttentionBackward, probe: str) -> None:
    inputs = operator.inputs(3, probe)
    assert all(array.flags.c_contiguous for array in inputs.values())
    for name, whole in operator.reference(inputs).items():
        places = np.arange(0, whole.values.size, 7)
        some = operator.reference_at(inputs, name, places)
        np.testing.assert_allclose(some.values, whole.values.reshape(-1)[places], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(some.scale, whole.scale.reshape(-1)[places], rtol=1e-5)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("operator", [*OPERATORS, attention_backward(1, 2, 70, 1500, 64, causal=True)], ids=named)
def test_a_simple_kernel_is_right(operator: AttentionBackward, probe: str) -> None:
    for name, one in plainly(operator, probe).items():
        assert one.ok, (name, one)


@pytest.mark.parametrize("name", ["bf16", "f16", "f32"])
def test_a_lost_pair_is_found(name: str) -> None:
    operator = attention_backward(1, 1, 16, 3000, 32, dtype=name)
    verdicts = plainly(operator, "exact", (7, 1000))
    assert not any(one.ok for one in verdicts.values())


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 3.0}], ids=str)
def test_it_is_the_derivative_that_autograd_computes(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    operator = attention_backward(2, 4, 7, 7, 16, kv_heads=2, dtype="f32", **options)
    inputs = operator.inputs(1)
    forward = operator.forward.reference({name: inputs[name] for name in "qkv"})
    inputs |= {"o": forward["o"].values.astype(np.float32), "lse": forward["lse"].values.astype(np.float32)}
    q, k, v = (torch.tensor(inputs[name], dtype=torch.float64, requires_grad=True) for name in "qkv")
    scores = q @ k.repeat_interleave(2, 1).mT * operator.forward.factor
    if operator.softcap:
        scores = operator.softcap * torch.tanh(scores / operator.softcap)
    if operator.causal:
        scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    (torch.softmax(scores, -1) @ v.repeat_interleave(2, 1)).backward(torch.tensor(inputs["dout"], dtype=torch.float64))
    for name, want in (("dq", q), ("dk", k), ("dv", v)):
        np.testing.assert_allclose(operator.reference(inputs)[name].values, want.grad, rtol=1e-4, atol=1e-5)


def test_a_query_that_sees_no_key_has_no_part() -> None:
    operator = attention_backward(1, 1, 9, 4, 16, causal=True)
    inputs = operator.inputs(3)
    assert np.isneginf(inputs["lse"][..., :5]).all()
    results = operator.reference(inputs)
    assert not results["dq"].values[:, :, :5].any() and all(np.isfinite(one.values).all() for one in results.values())


def built(kernel: Kernel, folder: Path) -> ctypes.CDLL:
    simt = resources.files("deepgen.kernels.shared.dialect")
    headers = (Source(name, (simt / name).read_text()) for name in ("dialect.h", "emulate.h"))
    harness = '#include "dialect.h"\n' + emulation.harness(kernel)
    return emulation.compiled(replace(kernel, sources=(*kernel.sources, *headers)), folder, harness, "-std=c++17")


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("operator", [OPERATORS[i] for i in (3, 5, 6, 10)], ids=named)
def test_the_device_computes_what_the_host_does(operator: AttentionBackward, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("cuda")
    assert kernel is not None
    library = built(kernel, tmp_path)
    shapes = {t.name: t.shape for t in operator.tensors() if t.role == "output"}
    for probe in ("normal", "large"):
        inputs = operator.inputs(3, probe)
        tensors: dict[str, Array] = {**inputs}
        for name, shape in shapes.items():
            tensors |= {f"want_{name}": np.zeros(shape), f"scale_{name}": np.ones(shape, np.float32)}
        written = [name for name in tensors if "_" in name]
        assert emulation.steps(kernel, library, operator, tensors, {}, written) == ""
        for name, want in operator.reference(inputs).items():
            np.testing.assert_allclose(tensors[f"want_{name}"], want.values, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(tensors[f"scale_{name}"], want.scale, rtol=1e-5)


def test_the_devices_reference_builds() -> None:
    kernel = OPERATORS[6].reference_kernel("cuda")
    assert kernel is not None and OPERATORS[6].reference_kernel("hip") is None
    assert needs.built_here(kernel, resolve("cuda:sm_80")).facts["spill_bytes"] == 0


def test_torchs_operators_take_the_same_tensors() -> None:
    """Its baselines call them directly: without data, which need no GPU, their arguments are checked all the same."""
    torch = pytest.importorskip("torch")
    from deepgen.baselines.torch_gpu import SdpaBackward, SdpaBackwardFlash

    operator, target = attention_backward(1, 4, 64, 80, 64, kv_heads=4), resolve("cuda:sm_90a")
    few, many, lse = (torch.zeros(1, 4, *s, dtype=torch.bfloat16, device="meta") for s in ((64, 64), (80, 64), (64,)))
    for kind in (SdpaBackward, SdpaBackwardFlash):
        results = kind()._call(torch, operator, (few, few, many, many, few), lse.float())
        assert [one.shape for one in results] == [few.shape, many.shape, many.shape]
        assert kind().missing(operator, target) is None
        assert "first key" in (kind().missing(replace(operator, causal=True), target) or "")
        assert "soft cap" in (kind().missing(replace(operator, window=3), target) or "")
