"""GEMM in bf16 and 8-bit integers on x86: AMX tiles, and vectors with dot-product instructions."""
