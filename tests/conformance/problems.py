"""The problems on which operators and generators are tried: deepgen's own, and the examples of installed plug-ins."""

from __future__ import annotations

from deepgen.operators import OPERATORS, Operator, conv2d, gemm, softmax

OWN: list[Operator] = [
    gemm(64, 64, 64),
    gemm(33, 65, 17, layout="nt"),
    gemm(1, 512, 300, layout="tt"),
    gemm(128, 96, 64, layout="tn"),
    gemm(48, 80, 100, dtype="bf16", layout="nt"),
    gemm(48, 80, 100, dtype="f64"),
    gemm(48, 80, 100, dtype="i8"),
    gemm(16, 4096, 4096, dtype="bf16", layout="nt"),
    gemm(1024, 3, 512, dtype="bf16", layout="nt"),
    softmax(9, 37),
    softmax(512, 4096, dtype="bf16"),
    conv2d(2, 13, 17, 5, 19, 3, stride=2, pad=1),
    conv2d(1, 28, 28, 32, 64, 1, dtype="i8", layout="nchw"),
]
PLUGGED = [example for kind in OPERATORS.working() if kind.name not in OPERATORS.own for example in kind.examples()]
PROBLEMS = [*OWN, *PLUGGED]
