"""The CPU as a Triton backend, found by Triton through the entry point `triton.backends`.

Triton imports `compiler` and `driver` whenever it is imported itself: their dependencies other than Triton are imported
only when a kernel is compiled or run.
"""
