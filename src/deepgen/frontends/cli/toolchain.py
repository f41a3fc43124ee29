"""One kernel: the config that is meant on the command line, and its build as the settings want it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepgen.settings import Settings
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.toolchains import Cache, build_once, disassembled, toolchain_for
from deepgen.toolchains.compilers import judge
from deepgen.tuning import Study
from deepgen.tuning.study.text import knob_text
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, Trial

_SCRIPT = "build.sh"


def build_kernel(kernel: Kernel, target: Target, settings: Settings) -> Artifact:
    """Build one kernel, or take it from the cache. Raises BuildError."""
    cache = Cache(settings.cache)
    return build_once(kernel, target, paths=settings.programs(), cache=cache, limits=settings.build_limits())


def assembly_of(kernel: Kernel, target: Target, settings: Settings) -> str:
    """The kernel in the target's assembly language."""
    toolchain = toolchain_for(target, kernel.language, settings.programs())
    with tempfile.TemporaryDirectory(prefix="deepgen-") as folder:
        return toolchain.assembly(kernel, target, Path(folder))


def build_files(kernel: Kernel, target: Target, settings: Settings) -> dict[str, str]:
    """A shell script that builds the kernel from its sources, and what else it needs; empty where there is none."""
    try:
        toolchain = toolchain_for(target, kernel.language, settings.programs())
    except DeepgenError:  # no compiler here
        return {}
    recipe = toolchain.recipe(kernel, target)
    if recipe is None:
        return {}
    command = shlex.join(recipe.command)
    about = f"# {kernel.name} for {target.name}, by {toolchain.name} {toolchain.version}"
    script = f'#!/bin/sh\n{about}\ncd "$(dirname "$0")" || exit 1\nexec {command}\n'
    return {**recipe.files, _SCRIPT: script}


def write_sources(folder: Path, kernel: Kernel, more: Mapping[str, str]) -> list[str]:
    """The kernel's files, and those that build them. Returns their names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        judge.write_sources(kernel, folder)
        for name, text in more.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"-o {folder} cannot be written: {error.strerror}", allowed="a folder") from error
    return [*(source.name for source in kernel.sources), *more]


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


def choose(space: Space, default: Mapping[str, Any], text: str | None, rank: int | None) -> dict[str, Any]:
    """The config that is meant, valid in its space. Knobs that `text` leaves out keep their default."""
    if text is not None and rank is not None:
        raise BadInput("--config and --rank are both given", allowed="give one of them")
    if rank is not None:
        if rank >= space.ranks:
            raise BadInput(f"--rank {rank} is out of range", allowed=f"0 to {space.ranks - 1}")
        return dict(space.at(rank))
    config = {**default, **(parse(space, text) if text is not None else {})}
    if not space.contains(config):
        broken = "; ".join(str(b) for b in space.explain(config))
        raise BadInput("--config is excluded by the space's constraints", allowed=broken or "see: deepgen space")
    return config


def parse(space: Space, text: str) -> dict[str, Any]:
    """Knobs and values, each spelled as `top` and `show` print them."""
    domains = {knob.name: {knob_text(value): value for value in knob.values} for knob in space.knobs}
    config: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = word.partition("=")
        if name not in domains:
            raise BadInput(f"--config: {word!r}: there is no knob {name!r}", allowed="one of " + ", ".join(domains))
        if value not in domains[name]:
            raise BadInput(f"--config: {name} cannot be {value!r}", allowed="one of " + ", ".join(domains[name]))
        if name in config:
            raise BadInput(f"--config: {name} is given twice", allowed="once")
        config[name] = domains[name][value]
    return config
