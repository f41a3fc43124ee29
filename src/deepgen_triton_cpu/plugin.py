"""What this package brings to deepgen, by the entry points in pyproject.toml. Imports little until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepgen.extend import Target, Toolchain


def toolchain(target: Target, paths: Mapping[str, str]) -> Toolchain:
    """Triton, with the compiler of the C that its kernels become."""
    from deepgen.extend import toolchain_for, triton_for
    from deepgen_triton_cpu.toolchain import TritonCpu

    return TritonCpu(triton_for(target, paths), toolchain_for(target, "c", paths))
