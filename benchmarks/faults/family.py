"""A family of small matrix products, half of them bad, as a plug-in that `deepgen tune --family` finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.extend import Cpu, Kernel, LaunchPlan, Operator, ScalarArg, Source, Space, Step, Target, TensorArg

NAME = "disturbed_gemm"
# What each lane of the space does in addition to the product; other lanes are correct.
FAULTS = {
    4: "this is no C",
    5: "*(volatile int *)16 = 1;",
    6: "for (;;) pause();",
    7: "C[N + 2] += 0.5f;",
}

_TEXT = """#include <stdint.h>
#include <unistd.h>

void product(const float *A, const float *B, float *C, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; i++) {
        for (int64_t j = 0; j < N; j++) C[i * N + j] = 0;
        for (int64_t k = 0; k < K; k++)
            for (int64_t j = 0; j < N; j++) C[i * N + j] += A[i * K + k] * B[k * N + j];
    }
    FAULT
}
"""


class DisturbedGemm:
    """The family."""

    name = NAME

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return None if isinstance(target, Cpu) and operator.name == "gemm" else "it supports gemm on CPUs only"

    def space(self, operator: Operator, target: Target) -> Space:
        space = Space(self.name)
        space.knob("LANE", range(8))
        space.knob("UNROLL", range(1, 9))
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        tensors, sizes = (TensorArg(name) for name in "ABC"), (ScalarArg("i64", size) for size in "MNK")
        text = f"/* {config['LANE']} */ {_TEXT.replace('FAULT', FAULTS.get(config['LANE'], ''))}"
        flags = ("-O2", "-funroll-loops", f"--param=max-unroll-times={config['UNROLL']}")
        steps = (Step("product", (*tensors, *sizes)),)
        plan = LaunchPlan(steps, requires=(("batch == 1", "one product at a time"),))
        return Kernel("product", "c", (Source("product.c", text),), flags, plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return {"LANE": 0, "UNROLL": 1}
