"""Studies whose kernels are measured on another machine, by a bundle that travels there."""
