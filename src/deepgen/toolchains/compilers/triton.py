"""Triton kernels, compiled ahead of time for NVIDIA and AMD GPUs, without needing a GPU, a driver or torch."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deepgen
from deepgen.targets import Gpu, Target
from deepgen.toolchains import elf
from deepgen.toolchains.base import BuildLimits, Built, Recipe
from deepgen.toolchains.compilers import gpu_facts, hip_clang, nvrtc, triton_program
from deepgen.toolchains.compilers.disassembly import sass
from deepgen.toolchains.compilers.judge import failed, run_judged, write_sources
from deepgen.toolchains.group import Group
from deepgen.vocabulary import Arg, BadInput, Kernel, LaunchPlan, ScalarArg, Step, WorkspaceArg, completed
from deepgen.vocabulary import kernel as units

RELEASES = ("3.6", "3.9")  # releases with a known calling convention: the pointers after a kernel's own parameters
_SCRATCH = "triton_scratch"
_MOST_TRAILING = 2  # scratch memory, and that of a profiler
_VERSION = re.compile(r"^__version__ = ['\"]([^'\"]+)['\"]", re.M)
_PARAMETER = re.compile(r"\.param\b[^,)]*?\w+_param_\d+")


@dataclass(frozen=True)
class Triton:
    """One installed release; `path` is the folder that contains the package."""

    version: str
    path: str
    disassembler: str | None = None
    name: str = "triton"

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}-1"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        gpu = _gpu(target)
        log = self._compile(kernel, gpu, folder, limits, group)
        form = "cubin" if "cuda" in gpu.languages else "hsaco"
        binary = f"{triton_program.STEM}.{form}"
        try:
            image = (folder / binary).read_bytes()
            report = json.loads((folder / triton_program.REPORT).read_text())
            code = elf.code_bytes(image)
            entries, parameters = _nvidia(folder, log) if form == "cubin" else _amd(image)
        except (OSError, ValueError, KeyError) as error:
            raise failed(self.name, f"reported success but wrote no {form}: {error}", log) from None
        if report["shared"] > gpu.shared_per_block:
            room = f"{report['shared']} bytes of shared memory, but {gpu.name} allows {gpu.shared_per_block} per block"
            raise failed(self.name, f"wants {room}", log)
        trailing = parameters - len(kernel.plan.steps[0].args)
        if not 0 <= trailing <= _MOST_TRAILING or report["profile_scratch_size"]:
            raise failed(
                self.name, f"built a kernel of {parameters} parameters, which does not match its description", log
            )
        plan = _plan(kernel.plan, report, trailing, gpu)
        facts = gpu_facts.summary(entries, completed(kernel, plan), gpu)
        return Built(binary, form, {**facts, "code_bytes": code}, gpu_facts.without_report(log), plan)

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        """The machine code if its disassembler is installed, otherwise PTX; for AMD GPUs their assembly."""
        with Group() as group:
            self._compile(kernel, _gpu(target), folder, BuildLimits(), group)
        if "cuda" not in target.languages:
            return (folder / f"{triton_program.STEM}.amdgcn").read_text()
        if self.disassembler is not None:
            return sass(self.disassembler, folder / f"{triton_program.STEM}.cubin")
        return (folder / f"{triton_program.STEM}.ptx").read_text()

    def recipe(self, kernel: Kernel, target: Target) -> Recipe:
        """Triton is a package, so the recipe includes the short Python program that calls its compiler here."""
        program, unit = Path(triton_program.__file__), units.from_flags(kernel.flags)
        files = {program.name: program.read_text(encoding="utf-8"), triton_program.UNIT: json.dumps(unit.to_json())}
        return Recipe(("python3", program.name, *self._words(kernel, _gpu(target))), files)

    def _words(self, kernel: Kernel, target: Gpu) -> tuple[str, ...]:
        """The program's arguments."""
        chip = ("cuda", str(nvrtc.capability(target))) if "cuda" in target.languages else ("hip", target.arch)
        return self.path, kernel.sources[0].name, *chip, str(target.warp)

    def made_elsewhere(
        self, place: str, package: str, kernel: Kernel, folder: Path, limits: BuildLimits, group: Group
    ) -> dict[str, Any]:
        """The result of a plug-in's function (`module:function` in the folder `package`) for a kernel, run in Triton's
        process.

        The function takes `name` for files, `options`, and Triton's arguments `fn`, `signature`, `constexprs`, `attrs`.
        """
        paths = os.pathsep.join((str(Path(deepgen.__file__).parents[1]), package))
        words = (self.path, kernel.sources[0].name, triton_program.PLUG_IN, paths, place)
        self._run(words, kernel, folder, limits, group)
        report: dict[str, Any] = json.loads((folder / triton_program.REPORT).read_text())
        return report

    def _compile(self, kernel: Kernel, target: Gpu, folder: Path, limits: BuildLimits, group: Group) -> str:
        return self._run(self._words(kernel, target), kernel, folder, limits, group)

    def _run(self, words: tuple[str, ...], kernel: Kernel, folder: Path, limits: BuildLimits, group: Group) -> str:
        unit = units.from_flags(kernel.flags)
        if unit.version != self.version:
            what = f"kernel {kernel.name} is for Triton {unit.version}, but Triton {self.version} is installed"
            raise BadInput(what, allowed=f"install that release: pip install triton=={unit.version}")
        write_sources(kernel, folder)
        (folder / triton_program.UNIT).write_text(json.dumps(unit.to_json()))
        argv = (sys.executable, "-I", "-S", triton_program.__file__, *words)
        return run_judged(self.name, argv, folder, limits, group).log


def described(folder: str, disassembler: str | None = None) -> Triton:
    """The release of the package in a folder. Raises ValueError if deepgen does not support it."""
    try:
        match = _VERSION.search((Path(folder) / "triton" / "__init__.py").read_text())
    except OSError as error:
        raise ValueError(f"it contains no package triton ({error.strerror})") from error
    version = match[1] if match else "of unknown version"
    if not version.startswith(tuple(f"{release}." for release in RELEASES)):
        raise ValueError(f"it is Triton {version}, but deepgen supports Triton {' and '.join(RELEASES)}")
    return Triton(version, folder, disassembler)


def _gpu(target: Target) -> Gpu:
    if not isinstance(target, Gpu):
        raise BadInput(f"Triton cannot build kernels for {target.name}", allowed="cuda and hip targets")
    return target


def _plan(plan: LaunchPlan, report: Mapping[str, Any], trailing: int, target: Gpu) -> LaunchPlan:
    """The launch plan as Triton would launch it: threads, shared memory, and the pointers that it passes last."""
    (step,) = plan.steps
    added: list[Arg] = [ScalarArg("i64", 0)] * trailing
    if report["global_scratch_size"]:
        added[0] = WorkspaceArg(_SCRATCH, _scratch_bytes(step, report["global_scratch_size"]))
    done = replace(
        step,
        entry=report["name"],
        args=(*step.args, *added),
        block=(report["num_warps"] * target.warp, 1, 1),
        shared_bytes=report["shared"],
    )
    return replace(plan, steps=(done,))


def _scratch_bytes(step: Step, each: int) -> str:
    return " * ".join([str(each), *(f"({size})" for size in step.grid)])


def _nvidia(folder: Path, log: str) -> tuple[dict[str, gpu_facts.Usage], int]:
    """The resource usage of each entry, and the number of the kernel's parameters."""
    text = (folder / f"{triton_program.STEM}.ptx").read_text()
    head = text.partition(".entry")[2].partition("{")[0]
    return gpu_facts.entries(log), len(_PARAMETER.findall(head))


def _amd(image: bytes) -> tuple[dict[str, gpu_facts.Usage], int]:
    kernels = elf.kernels(image)
    shown = [arg for arg in kernels[0].get(".args", ()) if not str(arg[".value_kind"]).startswith("hidden_")]
    return {str(k[".name"]): hip_clang.usage(k) for k in kernels}, len(shown)
