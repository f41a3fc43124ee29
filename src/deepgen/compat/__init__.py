"""Kernel Tuner's calls, carried out by deepgen: a script changes one import.

from deepgen.compat import tune_kernel  # instead of: from kernel_tuner import tune_kernel
"""

from __future__ import annotations

from deepgen.compat.results import (
    CompilationFailedConfig,
    ErrorConfig,
    InvalidConfig,
    RuntimeFailedConfig,
    store_metadata_file,
    store_output_file,
)
from deepgen.compat.run import run_kernel
from deepgen.compat.tune import tune_kernel

__all__ = [
    "CompilationFailedConfig",
    "ErrorConfig",
    "InvalidConfig",
    "RuntimeFailedConfig",
    "run_kernel",
    "store_metadata_file",
    "store_output_file",
    "tune_kernel",
]
