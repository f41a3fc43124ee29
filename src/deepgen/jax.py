"""deepgen for JAX on CPUs: a library's kernels as functions that JAX traces and XLA calls through its FFI.

import deepgen.jax
kernels = deepgen.jax.functions(library)
jax.jit(kernels.gemm_f32_nn)(a, b)
"""

from __future__ import annotations

from deepgen.frontends.jax import Functions, JaxFunction, functions

__all__ = ["Functions", "JaxFunction", "functions"]
