"""Lowering for GPUs: grids of blocks of threads, memory that a block shares, barriers."""
