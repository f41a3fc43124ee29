"""A library's kernels as a library for C and C++, and as a Python package that needs neither deepgen nor a compiler."""
