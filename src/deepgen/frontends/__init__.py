"""How users reach deepgen: Python, the command line, torch, JAX, Triton."""
