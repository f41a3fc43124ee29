"""A library's kernels as JAX functions, on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen import targets
from deepgen.libraries import Entry, Library, NotServed, Timed
from deepgen.libraries.c.functions import functions_of
from deepgen.operators import TensorFacts
from deepgen.vocabulary import BadInput

CPU = targets.resolve("cpu")


@pytest.fixture
def jax() -> Any:
    """Imported when a test begins; otherwise every process that collects tests would wait for the import."""
    found = pytest.importorskip("jax", reason="jax is not installed (extra jax)")
    pytest.importorskip("jax.ffi")
    return found


@pytest.fixture
def functions(jax: Any) -> Callable[..., Any]:
    from deepgen.frontends.jax import functions

    return functions


@pytest.mark.slow
def test_kernels_are_traced_and_right(jax: Any, functions: Callable[..., Any], library: Library) -> None:
    kernels = functions(library)
    assert set(kernels) == {"gemm_f32_nn", "softmax_f32"} and not kernels.without
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((50, 33), np.float32), rng.standard_normal((33, 70), np.float32)

    @jax.jit
    def layer(x: object, y: object) -> object:
        return kernels.softmax_f32(kernels.gemm_f32_nn(x, y) * 2)

    np.testing.assert_allclose(layer(a, b), jax.nn.softmax(2 * (a @ b)), rtol=1e-4, atol=1e-5)
    assert "custom_call" in layer.lower(a, b).as_text(), "XLA calls the kernel itself"
    twice = jax.vmap(kernels.gemm_f32_nn)(np.stack([a, -a]), np.stack([b, b]))
    np.testing.assert_allclose(twice, np.stack([a @ b, -(a @ b)]), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_kernels_of_fixed_shapes(jax: Any, functions: Callable[..., Any], expressed_ones: Path) -> None:
    kernels = functions(expressed_ones)
    assert not kernels.without
    x = np.arange(12, dtype=np.float32)
    mean = jax.jit(kernels.mean_f32)
    assert mean(x.reshape(2, 6)).tolist() == [2.5, 8.5] and mean(x[:8].reshape(1, 8)).tolist() == [3.5]
    [doubled] = (kernels[name] for name in kernels if name.startswith("doubled"))
    assert jax.jit(doubled)(x[3:5]).tolist() == [6, 8]
    with pytest.raises(NotServed, match="mean_f32: no kernel was tuned for x 3x4"):
        mean(x.reshape(3, 4))


@pytest.mark.usefixtures("jax")
def test_kernels_that_arrays_do_not_tell_apart_do_not_serve() -> None:
    """With twice the dilation and twice the padding, the arrays have the same shapes."""
    from deepgen.jax import JaxFunction

    words = {"N": 1, "L": 8, "CI": 1, "CO": 1, "k": 3}
    alike = [dg.operator("conv1d", **words, pad=steps, dilation=steps) for steps in (1, 2)]
    [function] = functions_of(
        Entry(CPU, True, None, False, "x", {}, f"{i}", "", (), (Timed(one, 1.0, (1.0, 1.0), {}),), None, None, {})
        for i, one in enumerate(alike)
    )
    made = JaxFunction(function, None, "target")  # type: ignore[arg-type]
    facts = {"x": TensorFacts((1, 8, 1), "f32"), "weight": TensorFacts((3, 1, 1), "f32")}
    with pytest.raises(NotServed, match="differ in pad, dilation"):
        made._bound(facts)
    assert JaxFunction(replace(function, entries=function.entries[:1]), None, "target")._bound(facts) == alike[0]  # type: ignore[arg-type]


def test_what_does_not_fit_is_told_while_tracing(jax: Any, functions: Callable[..., Any], library: Library) -> None:
    kernels = functions(str(library.folder))
    gemm = jax.jit(kernels.gemm_f32_nn)
    a = np.ones((64, 64), np.float32)
    with pytest.raises(NotServed, match="no kernel of a shape near"):
        gemm(np.ones((9000, 64), np.float32), np.ones((64, 9000), np.float32))
    with pytest.raises(BadInput, match=r"gemm_f32_nn is given 1 arrays \(A, B\)"):
        gemm(a)
    with pytest.raises(BadInput, match=r"B is float16 \(an array of float32\)"):
        gemm(a, a.astype(np.float16))
    with pytest.raises(BadInput, match="the same K in both"):
        gemm(a, a[:3])
    kernels.without = {"conv2d_f32_nhwc": "stride cannot be derived from its arrays"}
    with pytest.raises(
        AttributeError, match=r"no function 'conv2d_f32_nhwc' \(stride cannot be derived from its arrays\); there"
    ):
        kernels.conv2d_f32_nhwc  # noqa: B018
    with pytest.raises(AttributeError, match="no function 'gemm_f64_nn'; there are: gemm_f32_nn, softmax_f32"):
        kernels.gemm_f64_nn  # noqa: B018
