"""Kernels for RISC-V: each runs in a process of its own under qemu, is verified, and is costed by its instructions."""
