"""From a Triton kernel to a shared library for this machine's CPU, as stages of Triton's compiler."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from triton.backends.compiler import BaseBackend, GPUTarget

if TYPE_CHECKING:
    from deepgen_triton_cpu.lowering.ttir import Options

BACKEND = "deepgen_cpu"
_GIVEN_UP = "extern_libs"  # libraries of GPU code


class CpuBackend(BaseBackend):  # type: ignore[misc]
    """Its stages: Triton's IR, C, and the library that a C compiler builds from it."""

    binary_ext = "so"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == BACKEND)

    def hash(self) -> str:
        from deepgen_triton_cpu.lowering import digest

        return f"{BACKEND}-{self.target.arch}-{digest()}"

    def parse_options(self, options: dict[str, Any]) -> Options:
        from deepgen_triton_cpu.lowering.ttir import Options

        fields = Options.__dataclass_fields__
        chosen = {n: v for n, v in options.items() if n in fields and n != _GIVEN_UP and v is not None}
        return Options(**chosen)

    def pack_metadata(self, metadata: Any) -> tuple[int, int]:
        return metadata.scratch, metadata.num_threads

    def get_codegen_implementation(self, options: Any) -> dict[str, Any]:
        from deepgen_triton_cpu.lowering.ttir import front_end

        return front_end()[0]

    def get_module_map(self) -> dict[str, ModuleType]:
        from deepgen_triton_cpu.lowering.ttir import front_end

        return front_end()[1]

    def load_dialects(self, context: Any) -> None:
        """Triton's own dialects are enough."""

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any) -> None:
        from triton import __version__

        from deepgen_triton_cpu.lowering.ttir import require_release, simplify

        require_release(__version__)
        stages["ttir"] = lambda module, metadata: simplify(module)
        stages["c"] = _to_c
        stages["so"] = lambda text, metadata: _to_library(text, metadata, options)


def _to_c(module: Any, metadata: dict[str, Any]) -> str:
    from deepgen_triton_cpu.lowering import lower
    from deepgen_triton_cpu.lowering.ttir import generic

    lowered = lower(generic(module))
    # One byte of shared memory, which is unlimited here: programs divide by a kernel's usage.
    metadata |= {"name": lowered.name, "scratch": lowered.scratch, "shared": 1, "parameters": lowered.parameters}
    return lowered.text


def _to_library(text: str, metadata: dict[str, Any], options: Options) -> bytes:
    from deepgen.extend import Kernel, LaunchPlan, build_once, targets
    from deepgen_triton_cpu.lowering.lower import flags, sources

    name = metadata["name"]
    kernel = Kernel(name, "c", sources(text, name), flags(options.enable_fp_fusion), LaunchPlan(()))
    return Path(build_once(kernel, targets.resolve("cpu")).binary).read_bytes()
