"""Build kernels as the settings want it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from deepgen.build import BuildLimits, Cache, build_once, toolchain_for
from deepgen.settings import Settings
from deepgen.targets import Target
from deepgen.vocabulary import Artifact, Kernel


def paths(settings: Settings) -> dict[str, str]:
    """The programs that the user named."""
    return {name: str(path) for name, path in settings.toolchains.items()}


def limits(settings: Settings) -> BuildLimits:
    given = settings.limits
    return BuildLimits(
        wall_seconds=given.build_seconds,
        cpu_seconds=max(1, round(given.build_seconds)),
        memory_bytes=round(given.build_memory_gb * (1 << 30)),
    )


def build_kernel(kernel: Kernel, target: Target, settings: Settings) -> Artifact:
    """Build one kernel, or take it from the cache. Raises BuildError."""
    cache = Cache(settings.cache)
    return build_once(kernel, target, paths=paths(settings), cache=cache, limits=limits(settings))


def assembly_of(kernel: Kernel, target: Target, settings: Settings) -> str:
    """The kernel in the target's assembly language."""
    toolchain = toolchain_for(target, kernel.language, paths(settings))
    with tempfile.TemporaryDirectory(prefix="deepgen-") as folder:
        return toolchain.assembly(kernel, target, Path(folder))
