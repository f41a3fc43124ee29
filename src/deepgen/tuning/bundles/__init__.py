"""Bundles: studies whose kernels are measured on another machine."""
