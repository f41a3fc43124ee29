"""Expert kernels, by operator and family, and kernels that users bring."""
