"""GEMM with the vector instructions of RISC-V, for registers of any length."""
