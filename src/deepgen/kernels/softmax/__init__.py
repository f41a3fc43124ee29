"""Families of softmax kernels."""
