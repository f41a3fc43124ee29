"""The program that a kernel becomes where no Python is needed: a runner in C, linked statically with the kernel."""
