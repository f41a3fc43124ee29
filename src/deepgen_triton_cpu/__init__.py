"""Triton kernels on CPUs: lowering from Triton's IR to C, and the CPU as a Triton device."""
