"""The files of the older GEMM tool: its tuning configs and space files as spaces and kernels, and its results."""
