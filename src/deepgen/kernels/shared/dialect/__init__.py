"""A common dialect of CUDA and HIP for the GPU families, and its emulation on a CPU."""
