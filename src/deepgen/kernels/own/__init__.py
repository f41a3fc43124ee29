"""Users' own kernels: C, C++, CUDA and HIP sources with knobs, tuned like deepgen's own families."""

from __future__ import annotations

from deepgen.kernels.own.arguments import constant, inout, input, output, scalar, texture, workspace
from deepgen.kernels.own.description import launch
from deepgen.kernels.own.own import OwnKernel, kernel

__all__ = ["OwnKernel", "constant", "inout", "input", "kernel", "launch", "output", "scalar", "texture", "workspace"]
