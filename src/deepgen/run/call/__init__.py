"""Built kernels in a process: loading them, binding them to arrays, calling them. No timing and no verdicts."""
