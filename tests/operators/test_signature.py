"""Signatures: a call's arrays determine the sizes, and a mismatch is reported by name."""

from __future__ import annotations

import json
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen.operators import Param, Signature, TensorFacts
from deepgen.operators.signature import ANY, ROWS, STRIDES, broadcast_strides, dense_strides, stride_scalars
from deepgen.vocabulary import BadInput

FORMATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "i8", "u8", "i32", "i64")


def param(name: str, *shape: int | str, role: str = "input", dtype: str = "f32", **more: object) -> Param:
    return Param(name, role, dtype, shape, **more)  # type: ignore[arg-type]


def facts(*shape: int, dtype: str = "f32") -> TensorFacts:
    return TensorFacts(shape, dtype)


def out(name: str, *shape: int | str, **more: object) -> Param:
    return param(name, *shape, role="output", **more)


# Kernel signatures as in other libraries, and what a call of each yields: its arrays, then the shapes of its results.
KERNELS: dict[str, tuple[Signature, dict[str, TensorFacts], dict[str, int], dict[str, tuple[int, ...]]]] = {
    "matmul": (
        Signature((param("A", "M", "K", strides=ROWS), param("B", "K", "N", strides=ROWS), out("C", "M", "N"))),
        {"A": facts(3, 4), "B": facts(4, 5)},
        {},
        {"C": (3, 5)},
    ),
    "softmax": (
        Signature((param("x", "rows", "cols", dtype="T"), out("y", "rows", "cols", dtype="T")), {"T": "bf16"}),
        {"x": facts(7, 9, dtype="bf16")},
        {},
        {"y": (7, 9)},
    ),
    "layer_norm": (
        Signature(
            (
                param("x", "rows", "cols"),
                param("weight", "cols"),
                param("bias", "cols", optional=True),
                Param("eps", "scalar", "f32", range=(0.0, 1.0)),
                out("y", "rows", "cols"),
                out("mean", "rows"),
                out("rstd", "rows"),
            )
        ),
        {"x": facts(7, 9), "weight": facts(9)},
        {},
        {"y": (7, 9), "mean": (7,), "rstd": (7,)},
    ),
    "cross_entropy": (
        Signature(
            (
                param("logits", "B", "V"),
                param("labels", "B", dtype="i64", range=(0, "V - 1")),
                out("loss", "B"),
            )
        ),
        {"logits": facts(6, 100), "labels": facts(6, dtype="i64")},
        {},
        {"loss": (6,)},
    ),
    "attention": (
        Signature(
            (
                param("q", "B", "H", "S", "D", dtype="T", strides=ANY),
                param("k", "B", "H_kv", "L", "D", dtype="T", strides=ANY),
                param("v", "B", "H_kv", "L", "D", dtype="T", strides=ANY),
                param("mask", "B", "H", "S", "L", optional=True, broadcast=True),
                Param("scale", "scalar", "f32"),
                out("o", "B", "H", "S", "D", dtype="T"),
                out("lse", "B", "H", "S"),
            ),
            {"T": "f16"},
        ),
        {
            "q": facts(2, 8, 5, 64, dtype="f16"),
            "k": facts(2, 2, 7, 64, dtype="f16"),
            "v": facts(2, 2, 7, 64, dtype="f16"),
            "mask": facts(5, 1),
        },
        {},
        {"o": (2, 8, 5, 64), "lse": (2, 8, 5)},
    ),
    "fused_moe": (
        Signature(
            (
                param("x", "tokens", "hidden"),
                param("w1", "experts", "2 * inner", "hidden"),
                param("w2", "experts", "hidden", "inner"),
                param("topk_weights", "tokens", "topk", range=(0.0, 1.0)),
                param("topk_ids", "tokens", "topk", dtype="i32", range=(0, "experts - 1")),
                out("y", "tokens", "hidden"),
            )
        ),
        {
            "x": facts(5, 16),
            "w1": facts(4, 24, 16),
            "w2": facts(4, 16, 12),
            "topk_weights": facts(5, 2),
            "topk_ids": facts(5, 2, dtype="i32"),
        },
        {},
        {"y": (5, 16)},
    ),
    "rope": (
        Signature(
            (
                param("q", "tokens", "heads", "dim", role="inout", strides=ROWS),
                param("k", "tokens", "kv_heads", "dim", role="inout", strides=ROWS),
                param("cos", "length", "dim // 2"),
                param("sin", "length", "dim // 2"),
                param("positions", "tokens", dtype="i64", range=(0, "length - 1")),
            )
        ),
        {
            "q": facts(5, 8, 64),
            "k": facts(5, 2, 64),
            "cos": facts(100, 32),
            "sin": facts(100, 32),
            "positions": facts(5, dtype="i64"),
        },
        {},
        {"q": (5, 8, 64), "k": (5, 2, 64)},
    ),
    "dropout": (
        Signature(
            (
                param("x", "n"),
                Param("p", "scalar", "f32", range=(0.0, 1.0)),
                Param("seed", "scalar", "i64"),
                out("y", "n", aliases=("x",)),
            )
        ),
        {"x": facts(11)},
        {},
        {"y": (11,)},
    ),
    "jacobi": (
        Signature(
            (param("u", "H", "W", role="inout"), param("f", "H", "W"), Param("steps", "scalar", "i32", range=(1, 99)))
        ),
        {"u": facts(6, 7), "f": facts(6, 7)},
        {},
        {"u": (6, 7)},
    ),
    "correlation": (
        Signature(
            (
                param("a", "N", "C", "H", "W"),
                param("b", "N", "C", "H", "W"),
                out("y", "N", "(2 * reach + 1) ** 2", "(H - 1) // stride + 1", "(W - 1) // stride + 1"),
            )
        ),
        {"a": facts(1, 3, 9, 8), "b": facts(1, 3, 9, 8)},
        {"reach": 2, "stride": 2},
        {"y": (1, 25, 5, 4)},
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_every_kind_can_be_declared_and_bound(name: str) -> None:
    signature, arrays, more, wanted = KERNELS[name]
    solved = signature.solve(arrays, more)
    shapes = {t.name: t.shape for t in solved.tensors()}
    assert {p.name: shapes[p.name] for p in signature.outputs} == wanted
    assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature
    given_too = {**arrays, **{n: facts(*shape, dtype=signature.dtype_of(signature[n])) for n, shape in wanted.items()}}
    assert signature.solve(given_too, more).sizes == solved.sizes


@pytest.mark.parametrize("name", KERNELS)
def test_one_array_more_in_one_dimension_is_refused_by_its_name(name: str) -> None:
    """Unless nothing else depends on that size."""
    signature, arrays, more, wanted = KERNELS[name]
    whole = {**arrays, **{n: facts(*shape, dtype=signature.dtype_of(signature[n])) for n, shape in wanted.items()}}
    sizes = signature.solve(whole, more).sizes
    for changed, told in whole.items():
        for place in range(len(told.shape)):
            shape = (*told.shape[:place], told.shape[place] + 1, *told.shape[place + 1 :])
            other = {**whole, changed: facts(*shape, dtype=told.dtype)}
            try:
                found = signature.solve(other, more)
            except BadInput as error:
                assert changed in str(error)
            else:
                assert found.sizes != sizes, f"{changed} may be {shape}, and nothing changes"


symbols = st.sampled_from(["a", "b", "c"])


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    count = draw(st.integers(1, 4))
    params = []
    for place in range(count):
        shape = tuple(draw(st.lists(st.one_of(symbols, st.integers(0, 3)), max_size=3)))
        params.append(
            Param(
                f"in{place}",
                draw(st.sampled_from(["input", "inout"])),
                draw(st.sampled_from([*FORMATS, "T"])),
                shape,
                optional=draw(st.booleans()),
                broadcast=draw(st.booleans()),
                strides=draw(st.sampled_from([*STRIDES])),
            )
        )
    known = sorted({s for p in params for s in p.shape if isinstance(s, str)})
    sizes = [*known, *(f"{s} + 1" for s in known), 2]
    shape = tuple(draw(st.lists(st.sampled_from(sizes), max_size=3)))
    return Signature((*params, Param("out", "output", "T", shape)), {"T": draw(st.sampled_from(FORMATS))})


@given(signatures(), st.data())
def test_arrays_made_from_a_signature_bind_to_their_sizes(signature: Signature, data: st.DataObject) -> None:
    sizes = {name: data.draw(st.integers(0, 5)) for name in ("a", "b", "c")}
    tensors = {t.name: t for t in signature.shaped(sizes)}
    arrays = {n: facts(*t.shape, dtype=t.dtype.name) for n, t in tensors.items() if n != "out"}
    solved = signature.solve(arrays, sizes)
    told = {s for p in signature.inputs + signature.outputs for s in p.shape if s in sizes and p.name in arrays}
    assert all(solved.sizes[name] == sizes[name] for name in told)
    assert {t.name: t.shape for t in solved.tensors()}["out"] == tensors["out"].shape
    assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature


@given(signatures(), st.data())
def test_any_arrays_bind_or_are_refused_by_name(signature: Signature, data: st.DataObject) -> None:
    arrays = {
        p.name: TensorFacts(
            tuple(data.draw(st.lists(st.integers(0, 3), max_size=4))), data.draw(st.sampled_from(FORMATS))
        )
        for p in signature.tensors
        if data.draw(st.booleans())
    }
    try:
        solved = signature.solve(arrays, {"a": 1, "b": 1, "c": 1})
    except BadInput as error:
        assert any(name in str(error) for name in arrays)
        return
    for tensor in solved.tensors():
        if tensor.name in arrays:
            shape = arrays[tensor.name].shape
            if not signature[tensor.name].broadcast:
                assert shape == tensor.shape
            else:
                assert all(f in (1, w) for f, w in zip(reversed(shape), reversed(tensor.shape), strict=False))


def test_broadcast_sizes_come_from_whoever_has_more() -> None:
    both = Signature((param("x", "m", "n", broadcast=True), param("y", "m", "n", broadcast=True), out("z", "m", "n")))
    otherwise = {"m": 64, "n": 64}
    for x, y, wanted in (
        (facts(3, 1), facts(1, 4), (3, 4)),
        (facts(4), facts(3, 4), (3, 4)),
        (facts(1, 4), facts(1, 4), (1, 4)),
        (facts(4), facts(4), (1, 4)),
        (facts(0, 4), facts(1, 4), (0, 4)),
    ):
        assert both.solve({"x": x, "y": y}, otherwise).tensors()[2].shape == wanted
    assert both.solve({"x": facts(4), "y": facts(4), "z": facts(5, 4)}, otherwise).sizes["m"] == 5
    with pytest.raises(BadInput, match=r"y has m=2 .* but x has m=3"):
        both.solve({"x": facts(3, 1), "y": facts(2, 4)}, otherwise)


def test_dtype_variables_are_one_format_in_a_call() -> None:
    signature = Signature((param("x", "n", dtype="T"), param("y", "n", dtype="T")), {"T": "f32"})
    assert signature.solve({"x": facts(2, dtype="f16"), "y": facts(2, dtype="f16")}, {}).dtypes == {"T": "f16"}
    with pytest.raises(BadInput, match=r"y is f32 \(f16, as the tensors before it\)"):
        signature.solve({"x": facts(2, dtype="f16"), "y": facts(2)}, {})
    with pytest.raises(BadInput, match=r"x is f64 2 \(f32\)"):
        Signature((param("x", "n", dtype="tf32"),)).solve({"x": facts(2, dtype="f64")}, {})
    assert Signature((param("x", "n", dtype="tf32"),)).solve({"x": facts(2)}, {}).sizes == {"n": 2}


def test_sizes_that_make_no_sense_are_refused() -> None:
    windows = Signature((param("x", "H"), out("y", "(H - k) // 2 + 1")))
    assert windows.solve({"x": facts(9)}, {"k": 3}).tensors()[1].shape == (4,)
    assert windows.solve({"x": facts(1)}, {"k": 3}).tensors()[1].shape == (0,)
    with pytest.raises(BadInput, match=r"y would have the size -1 \(\(H - k\) // 2 \+ 1\)"):
        windows.solve({"x": facts(0)}, {"k": 4}).tensors()
    with pytest.raises(BadInput, match="k"):
        windows.solve({"x": facts(9)}, {}).tensors()
    with pytest.raises(BadInput, match=r"x has 2 dimensions, 3x3 \(1: H\)"):
        windows.solve({"x": facts(3, 3)}, {"k": 1})
    with pytest.raises(BadInput, match="no parameter 'z'"):
        windows.solve({"z": facts(3)}, {"k": 1})


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda: Signature((param("x"), param("x"))), "two parameters are named 'x'"),
        (lambda: Signature((param("x", dtype="f7"),)), "unknown dtype 'f7'"),
        (lambda: Param("x", "both", "f32"), "role 'both'"),
        (lambda: Param("x", "scalar", "f32", ("n",)), "a scalar with a shape"),
        (lambda: param("x", strides="zigzag"), "strides 'zigzag'"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(bad: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        bad()  # type: ignore[operator]


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_strides_reach_every_element_once(shape: tuple[int, ...]) -> None:
    import numpy as np

    strides = dense_strides(shape)
    places = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(shape)]
    assert places == list(range(prod(shape)))
    assert list(stride_scalars("x", strides).values()) == list(strides)
    assert broadcast_strides(shape, strides, shape) == strides


def test_an_array_stands_still_along_what_it_is_broadcast_over() -> None:
    assert broadcast_strides((1, 5), (5, 1), (3, 5)) == (0, 1)
    assert broadcast_strides((5,), (2,), (3, 5)) == (0, 2)
    assert broadcast_strides((1, 4, 5), (99, 8, 1), (4, 5)) == (8, 1)  # a batch of one
