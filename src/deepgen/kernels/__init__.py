"""Expert kernels, by operator and family, and users' own kernels."""
