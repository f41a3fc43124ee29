"""Build kernels as the settings want it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from deepgen.build import Cache, build_once, disassembled, toolchain_for
from deepgen.settings import Settings
from deepgen.targets import Target
from deepgen.tuning import Study
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Trial


def build_kernel(kernel: Kernel, target: Target, settings: Settings) -> Artifact:
    """Build one kernel, or take it from the cache. Raises BuildError."""
    cache = Cache(settings.cache)
    return build_once(kernel, target, paths=settings.programs(), cache=cache, limits=settings.build_limits())


def assembly_of(kernel: Kernel, target: Target, settings: Settings) -> str:
    """The kernel in the target's assembly language."""
    toolchain = toolchain_for(target, kernel.language, settings.programs())
    with tempfile.TemporaryDirectory(prefix="deepgen-") as folder:
        return toolchain.assembly(kernel, target, Path(folder))


def assembly_of_trial(study: Study, trial: Trial, settings: Settings) -> str:
    """A trial's assembly. What lies in the study's folder is disassembled at most, never built: it may be anyone's."""
    try:
        kernel = study.emitted(trial)
    except DeepgenError:
        stored = study.stored(trial)
        if stored is None or stored.binary is None:
            raise
        return disassembled(stored.binary, settings.programs())
    return assembly_of(kernel, study.target, settings)
