"""Running kernels: loading and calling them, measuring and verifying them."""
