"""A tuned kernel called as a Python function: many shapes, fresh arrays, bias, and errors in words."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from deepgen import targets
from deepgen.generators.templates.x86_fma.fma_gemm import X86Gemm
from deepgen.operators import Gemm, gemm
from deepgen.runtime.loaded import load
from deepgen.vocabulary import BadInput

NATIVE = targets.resolve("cpu")
FAMILY = X86Gemm()
pytestmark = pytest.mark.skipif(FAMILY.refuses(gemm(8, 8, 8), NATIVE) is not None, reason="needs AVX2")


def loaded(operator: Gemm):  # type: ignore[no-untyped-def]
    return load(FAMILY.emit(operator, NATIVE, FAMILY.default(operator, NATIVE)), operator, NATIVE)


def test_calls_follow_their_arrays_and_shapes_from_any_thread() -> None:
    call = loaded(gemm(48, 40, 64, layout="nt"))

    def wrong(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        m, n, k = 1 + seed % 50, 1 + seed % 37, 1 + seed % 61
        a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (n, k)))
        return not np.allclose(call(a, b), a @ b.T, atol=1e-3)

    with ThreadPoolExecutor(3) as pool:
        assert not any(pool.map(wrong, [*range(30), *range(30)]))


def test_a_bias_is_asked_for_where_the_kernel_adds_one() -> None:
    call = loaded(gemm(16, 32, 48, layout="nt", bias=True, activation="relu"))
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape, dtype=np.float32) for shape in ((16, 48), (32, 48), (32,)))
    out = np.empty((16, 32), np.float32)
    assert call(a, b, bias=bias, out=out) is out
    assert np.allclose(out, np.maximum(a @ b.T + bias, 0), atol=1e-3)
    with pytest.raises(BadInput, match="A, B, C"):
        call(a, b)
    with pytest.raises(BadInput, match="bias is"):
        call(a, b, bias=bias[:5].copy())


def test_what_would_give_wrong_numbers_is_refused() -> None:
    call = loaded(gemm(32, 32, 32))
    both = np.ones((64, 32), np.float32)
    a, b, over = both[:32], both[32:], both[16:48]
    for out, name in ((a, "A"), (b, "B"), (over, "A")):
        with pytest.raises(BadInput, match=f"out overlaps {name}, which is read"):
            call(a, b, out=out)
    assert (call(a, b, out=np.empty((32, 32), np.float32)) == 32).all()
    with pytest.raises(BadInput, match="list and ndarray"):
        call([[1.0]], b)
