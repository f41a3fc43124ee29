"""Kernels of grouped products: those of GEMM's families, with other work for each block."""

from __future__ import annotations

from deepgen.operators import Gemm
from deepgen.operators.grouped_gemm import GroupedGemm


def as_batch(operator: GroupedGemm) -> Gemm:
    """A batch of products of about the same work: each expert has the same share of the rows."""
    each = -(-operator.rows // operator.experts)
    rows, depth = (operator.m, each) if operator.gradient else (each, operator.k)
    return operator.product(rows, depth, batch=operator.experts)
