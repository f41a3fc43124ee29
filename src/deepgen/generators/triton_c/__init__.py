"""Triton kernels on processors: Triton's own IR of a kernel (TTIR) becomes C, one call of it for the whole grid."""

from deepgen.generators.triton_c.lower import Lowered, lower
from deepgen.generators.triton_c.ttir import RELEASE, ttir_of

__all__ = ["RELEASE", "Lowered", "lower", "ttir_of"]
