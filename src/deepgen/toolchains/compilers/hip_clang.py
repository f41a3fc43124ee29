"""HIP kernels through clang's AMDGPU backend and lld, or a vendor's build of them; no GPU or ROCm is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deepgen.targets import Target
from deepgen.toolchains import elf
from deepgen.toolchains.base import BuildLimits, Built, Recipe
from deepgen.toolchains.compilers import gpu_facts, judge
from deepgen.toolchains.compilers.judge import failed, run_judged, write_sources
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, Kernel, completed, digest

_BINARY, _ASSEMBLY = "kernel.hsaco", "kernel.s"
# Without a vendor's headers and device library: kernels include their own dialect, so every clang can build them.
_OPTIONS = (
    "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib",
    "-std=c++17", "-O3", "-ffp-contract=fast", "-I.",
)  # fmt: skip
_REGISTER_BYTES = 4


@dataclass(frozen=True)
class HipClang:
    """A clang with the AMDGPU backend. `vendor` is empty for plain LLVM."""

    version: str
    path: str
    identity: str  # its `--version` text, down to the patch level
    vendor: str = ""
    name: str = "hip-clang"

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}-{digest([self.identity, *_OPTIONS], 16)}"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        log = self._compile(kernel, target, folder, _BINARY, (), limits, group)
        try:
            image = (folder / _BINARY).read_bytes()
            entries = {str(k[".name"]): usage(k) for k in elf.kernels(image)}
            code = elf.code_bytes(image)
        except (OSError, ValueError, KeyError) as error:
            raise failed(self.name, f"reported success but wrote {error}", log) from None
        plan = judge.completed(kernel.plan, judge.symbols_of(self.name, kernel, entries, log))
        facts = gpu_facts.summary(entries, completed(kernel, plan), target)
        return Built(_BINARY, "hsaco", {**facts, "code_bytes": code}, log, plan)

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        with Group() as group:
            self._compile(kernel, target, folder, _ASSEMBLY, ("-S",), BuildLimits(), group)
        return (folder / _ASSEMBLY).read_text(errors="replace")

    def _compile(
        self,
        kernel: Kernel,
        target: Target,
        folder: Path,
        output: str,
        kind: tuple[str, ...],
        limits: BuildLimits,
        group: Group,
    ) -> str:
        if "hip" not in target.languages:
            raise BadInput(f"{self.name} cannot build kernels for {target.name}", allowed="hip targets")
        write_sources(kernel, folder)
        return run_judged(self.name, self._argv(kernel, target, kind, output), folder, limits, group).log

    def recipe(self, kernel: Kernel, target: Target) -> Recipe:
        return Recipe(self._argv(kernel, target, (), _BINARY))

    def _argv(self, kernel: Kernel, target: Target, kind: tuple[str, ...], output: str) -> tuple[str, ...]:
        arch = f"--offload-arch={target.built_for}"
        return self.path, *_OPTIONS, arch, *kind, "-o", output, *kernel.flags, kernel.sources[0].name


def described(path: str, description: str) -> HipClang:
    """The compiler at a path, from its `--version` text. Raises ValueError if it is not clang."""
    first = description.splitlines()[0] if description.strip() else ""
    match = re.search(r"clang version (\d+\.\d+\.\d+)", description)
    if match is None:
        raise ValueError(f"it describes itself as {first!r}")
    vendor = "AMD" if "AMD clang" in description or "roc-" in description else ""
    vendor = "Hygon" if re.search(r"\bdtk\b|hygon", description, re.I) else vendor
    return HipClang(match[1], path, description.strip(), vendor)


def usage(kernel: dict[str, object]) -> gpu_facts.Usage:
    """The resource usage of a kernel, from the notes of its code object."""

    def number(key: str) -> int:
        value = kernel.get(key, 0)
        return value if isinstance(value, int) else 0

    spilled = (number(".vgpr_spill_count") + number(".sgpr_spill_count")) * _REGISTER_BYTES
    return gpu_facts.Usage(
        registers=number(".vgpr_count"),
        spill_bytes=spilled,
        stack_bytes=number(".private_segment_fixed_size"),
        shared_bytes=number(".group_segment_fixed_size"),
        scalar_registers=number(".sgpr_count"),
    )
