"""Triton kernels for CPUs: a separate process lowers Triton's IR to C, and a C compiler builds it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from deepgen.extend import (
    BuildLimits,
    Built,
    Group,
    Kernel,
    Recipe,
    ScalarArg,
    Source,
    Target,
    Toolchain,
    Triton,
    WorkspaceArg,
)

_SCRATCH = "triton_scratch"
_FOLDER = str(Path(__file__).parents[1])
_LOWERED = "deepgen_triton_cpu.lowering:lowered"  # called in the process that runs Triton


@dataclass(frozen=True)
class TritonCpu:
    """One installed release of Triton, and a C compiler."""

    triton: Triton
    compiler: Toolchain
    name: str = "triton"

    @property
    def version(self) -> str:
        return self.triton.version

    @property
    def path(self) -> str:
        return self.triton.path

    @property
    def id(self) -> str:
        return f"{self.triton.id}-{self.compiler.id}"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        lowered = self._lowered(kernel, folder, limits, group)
        return replace(self.compiler.build(lowered, target, folder, limits, group), plan=lowered.plan)

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        with Group() as group:
            lowered = self._lowered(kernel, folder, BuildLimits(), group)
        return self.compiler.assembly(lowered, target, folder)

    def recipe(self, kernel: Kernel, target: Target) -> Recipe | None:
        """The recipe includes the C code, so that Triton is not needed to build it again."""
        with tempfile.TemporaryDirectory() as folder, Group() as group:
            lowered = self._lowered(kernel, Path(folder), BuildLimits(), group)
        recipe = self.compiler.recipe(lowered, target)
        return recipe and replace(recipe, files={**recipe.files, **{one.name: one.text for one in lowered.sources}})

    def _lowered(self, kernel: Kernel, folder: Path, limits: BuildLimits, group: Group) -> Kernel:
        """The kernel in C, with a launch that has scratch memory for each thread."""
        report = self.triton.made_elsewhere(_LOWERED, _FOLDER, kernel, folder, limits, group)
        (step,) = kernel.plan.steps
        *_, threads = step.args
        assert isinstance(threads, ScalarArg), "the last argument of an emitted kernel is the number of threads"
        room = WorkspaceArg(_SCRATCH, max(report["scratch"], 1) * int(threads.value))
        return Kernel(
            kernel.name,
            "c",
            tuple(Source(name, text) for name, text in report["files"].items()),
            tuple(report["flags"]),
            replace(kernel.plan, steps=(replace(step, args=(*step.args, room)),)),
        )
