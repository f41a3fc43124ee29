"""GEMM of a few rows or columns against a large matrix: every byte of it read once."""
