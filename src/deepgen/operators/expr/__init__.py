"""Tensor expressions: what to compute, element by element."""
