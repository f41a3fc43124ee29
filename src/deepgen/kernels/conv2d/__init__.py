"""Families of convolution kernels."""
