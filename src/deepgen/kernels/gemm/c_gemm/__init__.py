"""GEMM in plain C, for any processor."""
