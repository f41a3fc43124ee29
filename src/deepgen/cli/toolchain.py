"""Build kernels as the settings want it."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from deepgen.build import Cache, build_once, disassembled, toolchain_for
from deepgen.build.toolchains import sources
from deepgen.build.toolchains.c import CCompiler
from deepgen.settings import Settings
from deepgen.targets import Target
from deepgen.tuning import Study
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, Trial

SCRIPT = "build.sh"


def build_kernel(kernel: Kernel, target: Target, settings: Settings) -> Artifact:
    """Build one kernel, or take it from the cache. Raises BuildError."""
    cache = Cache(settings.cache)
    return build_once(kernel, target, paths=settings.programs(), cache=cache, limits=settings.build_limits())


def assembly_of(kernel: Kernel, target: Target, settings: Settings) -> str:
    """The kernel in the target's assembly language."""
    toolchain = toolchain_for(target, kernel.language, settings.programs())
    with tempfile.TemporaryDirectory(prefix="deepgen-") as folder:
        return toolchain.assembly(kernel, target, Path(folder))


def build_script(kernel: Kernel, target: Target, settings: Settings) -> str | None:
    """A shell script that builds the kernel from its sources; None where no command line does, as with NVRTC."""
    try:
        toolchain = toolchain_for(target, kernel.language, settings.programs())
    except DeepgenError:  # no compiler here
        return None
    if not isinstance(toolchain, CCompiler):
        return None
    command = shlex.join(toolchain.command_line(kernel, target))
    about = f"# {kernel.name} for {target.name}, by {toolchain.name} {toolchain.version}"
    return f'#!/bin/sh\n{about}\ncd "$(dirname "$0")" || exit 1\nexec {command}\n'


def write_sources(folder: Path, kernel: Kernel, script: str | None) -> list[str]:
    """The kernel's files, and the script that builds them. Returns their names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sources.write_sources(kernel, folder)
        if script is not None:
            (folder / SCRIPT).write_text(script, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"-o {folder} cannot be written: {error.strerror}", allowed="a folder") from error
    return [*(source.name for source in kernel.sources), *([] if script is None else [SCRIPT])]


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
