"""Constant weights: anything derived from them is computed once, and runs do not read them again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compiled import COMPILERS, NO_COMPILER

import deepgen as dg
from deepgen import generators, targets
from deepgen.compiler.family import Rules
from deepgen.operators import Operator
from deepgen.operators.compare import compare
from deepgen.run.call.native import NativeKernel
from deepgen.toolchains import build_once

FAMILY = "rules_constant_weights"
PRODUCT = dg.operator("gemm", M=9, N=21, K=18, dtype="f32", layout="nt")
CONV = dg.operator("dilated_conv2d", N=1, H=5, W=6, CI=6, CO=9, k=3, pad=1, dilation=1, dtype="i8")


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
@pytest.mark.parametrize(("operator", "weight"), [(PRODUCT, "B"), (CONV, "weight")], ids=["gemm", "conv"])
def test_weights_are_read_ahead_of_time_only(operator: Operator, weight: str) -> None:
    cpu, family = targets.resolve("cpu"), generators.by_name(FAMILY)
    kernel = family.emit(operator, cpu, family.default(operator, cpu))
    inputs = operator.inputs(0)
    arrays: dict[str, Any] = {
        t.name: inputs[t.name].copy() if t.name in inputs else np.zeros(t.shape, t.dtype.numpy())
        for t in operator.tensors()
    }
    flat = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
    bound = NativeKernel(kernel, build_once(kernel, cpu).binary).bind(flat, operator.scalars())
    bound.prepare()
    arrays[weight][...] = 99
    (out,) = (t for t in operator.tensors() if t.role == "output")
    for turn in range(2):
        arrays[out.name][...] = turn
        bound.run()
        want = operator.reference(inputs)[out.name]
        assert compare(arrays[out.name], want, out.dtype, operator.tolerance(out.name)).ok


def test_a_kernel_without_copies_of_weights_prepares_nothing() -> None:
    cpu, family = targets.resolve("arm:neon"), generators.by_name(FAMILY)
    assert isinstance(family, Rules)
    along = next(sketch for sketch in family.sketches(PRODUCT, cpu) if sketch.name == "vectors_r0")
    assert not family.emit(PRODUCT, cpu, {"sketch": along.name, **along.usual()}).plan.prepare


def test_threads_pack_panels_of_their_own_but_where_weights_are_packed_ahead() -> None:
    product, cpu = dg.operator("gemm", M=512, N=512, K=512), targets.resolve("x86:avx512")
    cpu = replace(cpu, cores=2, l2_bytes=1 << 20)  # the default depends on these, and a target takes them from its host
    each = generators.by_name("rules").default(product, cpu)
    assert each["at_B"] == "block" and each["i0_1"] * each["i0_2"] >= 512  # no other block reads these panels
    assert generators.by_name("rules_constant_weights").default(product, cpu)["at_B"] == "once"


@pytest.mark.parametrize("dtype", ["f32", "i8"])
@pytest.mark.parametrize("sizes", [(4096, 4096, 64), (3008, 1000, 256), (100, 1000, 64), (7, 33, 65)])
def test_defaults_are_configs_of_their_spaces(sizes: tuple[int, int, int], dtype: str) -> None:
    product, family = dg.operator("gemm", **dict(zip("MNK", sizes, strict=True)), dtype=dtype), Rules()
    for cpu in (targets.resolve("x86:amx"), targets.resolve("x86:avx2"), targets.resolve("x86:amx").limited_to(1)):
        assert not family.space(product, cpu).explain(family.default(product, cpu))


@pytest.mark.parametrize("family", ["rules", "rules_constant_weights"])
def test_what_cannot_be_copied_whole_is_not_by_default(family: str) -> None:
    """A copy of B takes more than a GiB, and in the last case so does one of A; there are fewer columns than threads in
    one case.
    """
    sizes = [(10, 10618, 30920, "nn"), (116, 35571, 38063, "nt"), (47187, 2694, 63229, "tn"), (1, 30, 64205, "tn")]
    rules = generators.by_name(family)
    for m, n, k, layout in sizes:
        product = dg.gemm(m, n, k, layout=layout)
        for name in ("x86:avx512", "arm:neon"):
            cpu = targets.resolve(name)
            assert not rules.space(product, cpu).explain(rules.default(product, cpu)), product.describe()


def test_it_is_not_taken_unless_it_is_named() -> None:
    assert generators.find(CONV, targets.resolve("cpu")).name == "rules"
    assert generators.by_name(FAMILY).refuses(dg.operator("mean", rows=4, cols=4), targets.resolve("cpu")) is not None
