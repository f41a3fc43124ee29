"""Families of GEMM kernels."""
