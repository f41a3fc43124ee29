"""CUDA kernels through NVRTC: it needs a library from PyPI or a toolkit, but no GPU, driver or header."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deepgen.targets import Target
from deepgen.toolchains import elf
from deepgen.toolchains.base import BuildLimits, Built, Recipe
from deepgen.toolchains.compilers import gpu_facts, judge, nvrtc_program
from deepgen.toolchains.compilers.disassembly import sass
from deepgen.toolchains.compilers.judge import failed, run_judged, write_sources
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, Kernel, completed, digest

_BINARY, _PTX = "kernel.cubin", "kernel.ptx"
_OPTIONS = ("--std=c++17", "--include-path=.")
_REPORT = "--ptxas-options=-v"
_START_SECONDS = 20.0
# Excludes headers that few kernels use, which saves 10 to 20 ms per compilation: textures, surfaces, launches from
# kernels, and the types and functions of the CUDA runtime.
_SMALL, _SMALL_SINCE = "--minimal", (12, 8)
_LARGE = re.compile(r"#[ \t]*include[ \t]*<|<<<|\bcuda[A-Z_]|\bCU[A-Z]*[a-z]|\b(?:tex|surf)(?:\d|[A-Z]|ture|ace)|__nv_")
_SYSTEM_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<", re.M)


@dataclass(frozen=True)
class Nvrtc:
    """One NVRTC library. NVRTC 13 starts at sm_75; NVRTC 12 supports Volta, and both can be installed."""

    version: str
    path: str
    archs: tuple[int, ...]  # compute capabilities, such as 90 for 9.0
    disassembler: str | None = None
    name: str = "nvrtc"

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}-{digest([*_OPTIONS, _REPORT, _SMALL], 16)}"

    def _headers(self, kernel: Kernel) -> list[str]:
        """The toolkit's header folder, for kernels that include headers such as <cuda_fp16.h>."""
        if not any(_has(_SYSTEM_HEADER, source.text) for source in kernel.sources):
            return []
        lib = Path(self.path).resolve().parent
        places = [
            lib.parent / "include",
            lib.parent.parent / "cuda_runtime" / "include",
            Path("/usr/local/cuda/include"),
        ]
        return [str(place) for place in places if (place / "cuda_fp16.h").is_file()][:1]

    def serves(self, target: Target) -> bool:
        return "cuda" in target.languages and capability(target) in self.archs

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        log = self._compile(kernel, target, folder, ("CUBIN", _BINARY), limits, group)
        try:
            code = elf.code_bytes((folder / _BINARY).read_bytes())
        except (OSError, ValueError) as error:
            raise failed(self.name, f"reported success but wrote no cubin: {error}", log) from None
        plan = judge.completed(kernel.plan, self._symbols(kernel, folder, log))
        facts = gpu_facts.summary(gpu_facts.entries(log), completed(kernel, plan), target)
        return Built(_BINARY, "cubin", {**facts, "code_bytes": code}, gpu_facts.without_report(log), plan)

    def _symbols(self, kernel: Kernel, folder: Path, log: str) -> dict[str, str]:
        if not judge.expressions(kernel):
            return {}
        try:
            lowered: dict[str, str | None] = json.loads((folder / nvrtc_program.NAMES).read_text())
        except (OSError, ValueError) as error:
            raise failed(self.name, f"reported success but returned no names: {error}", log) from None
        symbols = {name: symbol for name, symbol in lowered.items() if symbol is not None}
        if len(symbols) < len(lowered):
            raise failed(self.name, f"has no kernel {next(n for n in lowered if n not in symbols)}", log)
        return symbols

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        """The machine code if a disassembler is installed, PTX otherwise."""
        with Group() as group:
            if self.disassembler is not None:
                self._compile(kernel, target, folder, ("CUBIN", _BINARY), BuildLimits(), group)
                return sass(self.disassembler, folder / _BINARY)
            self._compile(kernel, target, folder, ("PTX", _PTX), BuildLimits(), group)
        return (folder / _PTX).read_text(errors="replace")

    def _compile(
        self, kernel: Kernel, target: Target, folder: Path, form: tuple[str, str], limits: BuildLimits, group: Group
    ) -> str:
        if not self.serves(target):
            allowed = ", ".join(f"sm_{sm}" for sm in self.archs)
            raise BadInput(f"NVRTC {self.version} cannot build kernels for {target.name}", allowed=allowed)
        write_sources(kernel, folder)
        argv = (*_python(), self.path, nvrtc_program.STAY)
        return run_judged(self.name, argv, folder, limits, group, request=self._words(kernel, target, form)).log

    def recipe(self, kernel: Kernel, target: Target) -> Recipe:
        """NVRTC is a library, so the recipe includes the short Python program that calls it here."""
        program = Path(nvrtc_program.__file__)
        words = self._words(kernel, target, ("CUBIN", _BINARY))
        return Recipe(("python3", program.name, self.path, *words), {program.name: program.read_text(encoding="utf-8")})

    def _words(self, kernel: Kernel, target: Target, form: tuple[str, str]) -> tuple[str, ...]:
        """The program's arguments."""
        arch = f"--gpu-architecture={target.built_for}"
        named = (f"{nvrtc_program.NAME}{name}" for name in judge.expressions(kernel))
        headers = (f"--include-path={place}" for place in self._headers(kernel))
        small = (_SMALL,) if self._takes_small() and not any(_has(_LARGE, s.text) for s in kernel.sources) else ()
        return kernel.sources[0].name, *form, arch, *_OPTIONS, _REPORT, *small, *kernel.flags, *named, *headers

    def _takes_small(self) -> bool:
        return tuple(map(int, self.version.split("."))) >= _SMALL_SINCE


@lru_cache(maxsize=256)
def _has(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the pattern occurs. Cached: kernels of a family share most files, and a search takes milliseconds."""
    return pattern.search(text) is not None


def capability(target: Target) -> int:
    """The compute capability of a CUDA target as a number: 90 for sm_90a."""
    return int(target.built_for[len("sm_") :].rstrip("a"))


def described(path: str, disassembler: str | None) -> Nvrtc:
    """The library at a path. Raises ValueError if it does not work."""
    file = Path(path)
    return Nvrtc(*_asked(path, file.stat().st_mtime_ns if file.exists() else 0), disassembler)


@lru_cache(maxsize=16)
def _asked(path: str, changed: int) -> tuple[str, str, tuple[int, ...]]:
    """Version, path and capabilities, queried in a separate process, again only if the file has changed."""
    try:
        answer = subprocess.run(
            (*_python(), path), stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_SECONDS, check=True
        )
        facts = json.loads(answer.stdout)
        return facts["version"], path, tuple(facts["archs"])
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise ValueError(message[-1]) from error
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise ValueError(str(error)) from error


def _python() -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", nvrtc_program.__file__)
