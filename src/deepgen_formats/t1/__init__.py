"""T1 files: kernels and spaces in the format that several tuners share."""
