"""From a Kernel to an Artifact: toolchains, the build cache, and the pool that runs builds."""

from __future__ import annotations

from collections.abc import Mapping

from deepgen.targets import Target
from deepgen.toolchains.base import BuildError, BuildLimits, Built, Toolchain
from deepgen.toolchains.cache import Cache, cache_key
from deepgen.toolchains.find import (
    TOOLCHAINS,
    TOOLS,
    ToolStatus,
    disassembled,
    instruction_mix,
    required,
    survey,
    toolchain_for,
    toolchains_for,
)
from deepgen.toolchains.group import Group
from deepgen.toolchains.pool import BuildPool, make
from deepgen.vocabulary import Artifact, Kernel
from deepgen.vocabulary.folders import default_cache_folder


def build_once(
    kernel: Kernel,
    target: Target,
    *,
    paths: Mapping[str, str] | None = None,
    cache: Cache | None = None,
    limits: BuildLimits | None = None,
) -> Artifact:
    """Build one kernel, or take it from the cache, and wait for it. Raises BuildError."""
    toolchain = toolchain_for(target, kernel.language, paths)
    with Group() as group:
        return make(kernel, toolchain, target, cache or Cache(default_cache_folder()), limits or BuildLimits(), group)


__all__ = [
    "TOOLCHAINS",
    "TOOLS",
    "BuildError",
    "BuildLimits",
    "BuildPool",
    "Built",
    "Cache",
    "Group",
    "ToolStatus",
    "Toolchain",
    "build_once",
    "cache_key",
    "default_cache_folder",
    "disassembled",
    "instruction_mix",
    "make",
    "required",
    "survey",
    "toolchain_for",
    "toolchains_for",
]
