"""deepgen for JAX on CPUs: a library's kernels as functions that JAX traces and XLA calls through its FFI.

import deepgen.jax
kernels = deepgen.jax.functions(library)
jax.jit(kernels.gemm_f32_nn)(a, b)
"""

from __future__ import annotations

from deepgen.vocabulary.errors import Missing, install_extra

try:
    from jax import ffi as _ffi  # noqa: F401
except ImportError as _error:
    raise Missing("jax (0.5 or newer)", blocks="deepgen.jax cannot be used", remedy=install_extra("jax")) from _error

from deepgen.frontends.jax.functions import Functions, JaxFunction, functions

__all__ = ["Functions", "JaxFunction", "functions"]
