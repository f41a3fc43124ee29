"""VTA, a simulated accelerator: its target, its kernels and its simulator."""
