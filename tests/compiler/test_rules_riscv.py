"""Kernels by rules are also correct on RISC-V: the compiler's vectors become vectors of the target's length."""

from __future__ import annotations

import pytest

import deepgen as dg
import needs
from deepgen import generators
from deepgen.operators import Operator
from deepgen.run.measure import Task, open_runner
from deepgen.toolchains import build_once

CASES = {
    "layer_norm": ("rules", dg.operator("layer_norm", rows=9, cols=37)),
    "depthwise_conv2d": ("rules", dg.operator("depthwise_conv2d", N=1, H=5, W=6, C=16, k=3, pad=1)),
    "gemm with weights packed ahead": ("rules_constant_weights", dg.operator("gemm", M=9, N=21, K=18, layout="nt")),
}


@pytest.mark.parametrize(("family", "operator"), CASES.values(), ids=CASES)
def test_the_default_is_right_under_qemu(family: str, operator: Operator) -> None:
    target = needs.qemu("riscv:rv64gcv_zvl256b")
    made = generators.by_name(family)
    kernel = made.emit(operator, target, made.default(operator, target))
    artifact = build_once(kernel, target)
    runner = open_runner(Task(operator, target))
    try:
        measured = runner.measure(kernel, artifact)
        assert measured.ok, measured.detail
        assert sum(count for name, count in measured.counters.items() if name.startswith("vector")) > 0.0
        assert runner.verify(kernel, artifact, 3, "normal").ok
    finally:
        runner.close()
