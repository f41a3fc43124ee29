"""The CPU as a Triton backend, found by Triton through the entry point `triton.backends`.

Triton imports `compiler` and `driver` whenever it is imported itself: what they need beside Triton is imported when a
kernel is compiled or run.
"""
