"""Triton kernels on processors: from its IR to C, and the processor as a device of Triton."""
