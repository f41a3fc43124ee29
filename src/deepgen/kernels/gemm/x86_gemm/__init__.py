"""f32 GEMM on x86 with AVX2 or AVX-512."""
