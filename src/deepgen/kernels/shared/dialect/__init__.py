"""One dialect for CUDA and HIP, which families on GPUs are written in, and its emulation on a processor."""
