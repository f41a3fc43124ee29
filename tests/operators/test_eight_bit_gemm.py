"""A GEMM of 8-bit floats: its formats, its inputs and their reference, which every study of it needs."""

from __future__ import annotations

import numpy as np
import pytest

from deepgen import operators
from deepgen.operators import gemm
from deepgen.operators.compare import compare
from deepgen.vocabulary.dtypes import dtype, narrow, widen

both = pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])


@both
def test_results_are_bf16_unless_told(name: str) -> None:
    op = gemm(3, 4, 5, dtype=name)
    assert (op.a, op.b, op.c, op.acc) == (name, name, "bf16", "f32")
    assert gemm(3, 4, 5, dtype=name, c="f32").c == "f32"
    assert operators.from_json(op.to_json()) == op
    assert gemm(3, 4, 5, dtype="f16").c == "f16" and gemm(3, 4, 5, dtype="u8").c == "i32"


@both
def test_the_reference_multiplies_the_rounded_numbers(name: str) -> None:
    op = gemm(5, 6, 64, dtype=name, layout="nt")
    given = op.inputs(2)
    a, b = (widen(given[tensor], dtype(name)) for tensor in ("A", "B"))
    assert given["A"].dtype == np.uint8 and 0.8 < a.std() < 1.2
    np.testing.assert_array_equal(op.reference(given)["C"].values, a @ b.T)


@both
@pytest.mark.parametrize("c", ["bf16", "f16", "f32"])
def test_every_probe_can_be_judged(name: str, c: str) -> None:
    op = gemm(16, 8, 1024, dtype=name, c=c, layout="nt")
    for probe in op.probes():
        given = op.inputs(1, probe)
        result = op.reference(given)["C"].values
        assert np.isfinite(result).all() or probe == "special"
        with np.errstate(over="raise"):
            narrow(result, dtype(c)) if probe != "special" else None


@both
def test_probes_reach_the_ends_of_the_format(name: str) -> None:
    op, of = gemm(64, 64, 256, dtype=name, layout="nt"), dtype(name)
    largest, normal = (448.0, 2.0**-6) if name == "f8e4m3" else (57344.0, 2.0**-14)
    large = np.abs(widen(op.inputs(0, "large")["A"], of))
    assert largest / 8 < large.max() < largest
    tiny = np.abs(widen(op.inputs(0, "denormal")["A"], of))
    assert (tiny[-1] < normal).mean() > 0.9 and (tiny[-1] > 0).mean() > 0.5 and (tiny[:-1] > normal).mean() > 0.9


@pytest.mark.parametrize(("name", "infinities"), [("f8e4m3", 0), ("f8e5m2", 2)])
def test_special_values_are_those_of_the_format(name: str, infinities: int) -> None:
    given = gemm(8, 8, 8, dtype=name).inputs(0, "special")
    for tensor in ("A", "B"):
        values = widen(given[tensor], dtype(name))
        assert np.isnan(values).sum() == 1 and np.isinf(values).sum() == infinities


@pytest.mark.parametrize("asked", [{"dtype": "f32"}, {"dtype": "f8e4m3"}, {"dtype": "f16", "c": "f32"}])
def test_large_inputs_do_not_hide_the_product(asked: dict[str, str]) -> None:
    """The rounding of a correct kernel stays within the tolerance, and a missing product does not."""
    op = gemm(64, 64, 64, layout="nt", bias=True, scales="row", **asked)
    given = op.inputs(0, "large")
    a, b, bias, scale = (widen(given[t.name], t.dtype).astype(np.float32) for t in op.tensors()[:4])
    result = a @ b.T * scale[:, None] + bias
    want, bound = op.reference(given)["C"], op.tolerance("C", "large")
    assert compare(narrow(result, op.dtypes[2]), want, op.dtypes[2], bound).ok
    allowed = bound.absolute * want.scale + bound.relative * np.abs(want.values)
    lost = np.abs(np.outer(a[:, 0] * scale, b[:, 0]))
    assert (lost > allowed).mean() > 0.3
