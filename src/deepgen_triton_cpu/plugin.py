"""What this package adds to deepgen, through the entry points in pyproject.toml. Imports are lazy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepgen.extend import Lowering, Target, Toolchain


def toolchain(target: Target, paths: Mapping[str, str]) -> Toolchain:
    """Triton, with the compiler for the C code of its kernels."""
    from deepgen.extend import toolchain_for, triton_for
    from deepgen_triton_cpu.toolchain import TritonCpu

    return TritonCpu(triton_for(target, paths), toolchain_for(target, "c", paths))


def lowering() -> Lowering:
    from deepgen_triton_cpu import lowering

    return lowering


def activate() -> None:
    """Make the CPU the device that Triton's calls run on; `import deepgen.triton_cpu` does so."""
    from deepgen.extend import Missing, install_extra

    try:
        import triton
        from triton.backends import Backend, backends
        from triton.runtime import driver
    except ImportError as error:
        raise Missing("Triton", blocks="its kernels cannot be compiled", remedy=install_extra("triton")) from error
    from deepgen_triton_cpu.lowering.ttir import require_release

    require_release(triton.__version__)
    from deepgen_triton_cpu.backend.compiler import BACKEND, CpuBackend
    from deepgen_triton_cpu.backend.driver import CpuDriver

    if all(backend.compiler is not CpuBackend for backend in backends.values()):
        backends[BACKEND] = Backend(CpuBackend, CpuDriver)
    driver.set_active(CpuDriver())
