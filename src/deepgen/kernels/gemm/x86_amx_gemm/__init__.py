"""GEMM in bf16 and 8-bit integers on AMX tiles."""
