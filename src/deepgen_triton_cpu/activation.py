"""Makes this machine's processor the device of Triton."""

from __future__ import annotations

from deepgen.vocabulary import Missing


def activate() -> None:
    """Makes the processor the device that Triton's calls run on; `import deepgen.triton_cpu` does so."""
    try:
        import triton
        from triton.backends import Backend, backends
        from triton.runtime import driver
    except ImportError as error:
        raise Missing(
            "Triton", blocks="its kernels cannot be compiled", remedy="pip install 'deepgen-kernels[triton]'"
        ) from error
    from deepgen_triton_cpu.lowering.ttir import require_release

    require_release(triton.__version__)
    from deepgen_triton_cpu.backend.compiler import BACKEND, CpuBackend
    from deepgen_triton_cpu.backend.driver import CpuDriver

    if all(backend.compiler is not CpuBackend for backend in backends.values()):
        backends[BACKEND] = Backend(CpuBackend, CpuDriver)
    driver.set_active(CpuDriver())


__all__ = ["activate"]
