"""Kernels made by rules from tensor expressions."""
