"""Kernels of the user's own: C, C++, CUDA and HIP sources with knobs, tuned like deepgen's own families."""

from __future__ import annotations

from deepgen.generators.kernels.arguments import constant, inout, input, output, scalar, texture, workspace
from deepgen.generators.kernels.description import launch
from deepgen.generators.kernels.own import OwnKernel, kernel

__all__ = ["OwnKernel", "constant", "inout", "input", "kernel", "launch", "output", "scalar", "texture", "workspace"]
