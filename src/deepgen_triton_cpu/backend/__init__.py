"""The processor as a device of Triton's, found by Triton through the entry point `triton.backends`.

Triton imports `compiler` and `driver` whenever it is imported itself: what they need beside Triton is imported when a
kernel is compiled or run.
"""
