"""2-D convolution on the plain arithmetic units of GPUs, written once for CUDA and HIP."""
