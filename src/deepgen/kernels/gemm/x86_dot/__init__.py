"""GEMM by dot products of vectors on x86: 8-bit integers, bf16 and f16."""
