"""Kernel Tuner's API, implemented by deepgen: a script only changes one import.

from deepgen_formats.kernel_tuner import tune_kernel  # instead of: from kernel_tuner import tune_kernel
"""

from __future__ import annotations

from deepgen_formats.kernel_tuner.results import (
    CompilationFailedConfig,
    ErrorConfig,
    InvalidConfig,
    RuntimeFailedConfig,
    store_metadata_file,
    store_output_file,
)
from deepgen_formats.kernel_tuner.tune import run_kernel, tune_kernel

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
