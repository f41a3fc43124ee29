"""A matrix product in plain C, for the runner of RISC-V kernels."""

from __future__ import annotations

from deepgen.operators import gemm
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

OPERATOR = gemm(6, 5, 7)
LOOPS = """
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            float sum = 0;
            for (long k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }
"""


def kernel_of(body: str, **numbers: int) -> Kernel:
    """A function of the operator's tensors and sizes, and of these extra numbers."""
    head = ", ".join(("const float *A", "const float *B", "float *C", *(f"long {name}" for name in (*"MNK", *numbers))))
    text = f"#include <stdlib.h>\n#include <string.h>\nvoid f({head}) {{ {body} }}"
    args = (*map(TensorArg, "ABC"), *(ScalarArg("i64", size) for size in (*"MNK", *numbers.values())))
    return Kernel("own", "c", (Source("own.c", text),), ("-O1",), LaunchPlan((Step("f", args),)))
