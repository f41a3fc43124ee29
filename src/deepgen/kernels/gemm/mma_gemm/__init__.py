"""GEMM on tensor cores by warp-wide products, sm_80 and later."""
