"""Which toolchains are here, which one builds a kernel, and what is missing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deepgen.targets import PROCESSORS, Target, host
from deepgen.targets.cpu import common
from deepgen.toolchains import find_gpu, programs
from deepgen.toolchains.base import BuildError, BuildLimits, Toolchain
from deepgen.toolchains.compilers import disassembly, riscv
from deepgen.toolchains.compilers.c import CCompiler, gcc_or_clang, zig
from deepgen.toolchains.group import Group
from deepgen.toolchains.programs import Tool
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, LaunchPlan, Missing, Source
from deepgen.vocabulary.folders import default_cache_folder
from deepgen.vocabulary.registry import Registry

_SMALLEST = "#include <math.h>\n#include <stdint.h>\nfloat tried(float x) { return expf(x); }\n"

# In the order in which they are tried. The first that is here builds C kernels.
C_COMPILERS = (
    Tool("gcc", "building C kernels for processors", "Install it with `apt-get install gcc libc6-dev`."),
    Tool("clang", "building C kernels for processors", "Install it with `apt-get install clang`."),
    Tool("zig", "building C kernels for any processor, on any machine", "Install it with `pip install ziglang`."),
)
OTHERS = (Tool("objdump", "showing a binary's instructions", "Install it with `apt-get install binutils`."),)
TOOLS = {tool.name: tool for tool in (*C_COMPILERS, *OTHERS, *riscv.TOOLS, *find_gpu.TOOLS)}


@dataclass(frozen=True)
class ToolStatus:
    """A tool as `doctor` shows it. Without a version it cannot be used: `problem` says why."""

    name: str
    serves: str
    version: str | None
    path: str | None
    problem: str | None
    remedy: str

    @property
    def ok(self) -> bool:
        return self.version is not None


def toolchain_for(target: Target, language: str, paths: Mapping[str, str] | None = None) -> Toolchain:
    """The toolchain that builds this language for this target.

    A compiler whose path the user set comes before those that are merely found, and must work.
    """
    names = (f"{language}.{target.runner}", language)
    name = next((name for name in names if name in TOOLCHAINS), None)
    if language not in target.languages or name is None:
        others = " or ".join(one for one in target.languages if one != language)
        raise Missing(
            f"a toolchain for {language} on {target.name}",
            blocks="such kernels cannot be built",
            remedy=f"Kernels for {target.kind} targets are written in {others}.",
        )
    return TOOLCHAINS.get(name)(target, {program: path for program, path in (paths or {}).items() if path})


def toolchains_for(target: Target, paths: Mapping[str, str] | None = None) -> Callable[[str], Toolchain]:
    """The toolchain of each language, found when it is first needed: finding a compiler asks it for its version."""
    return lru_cache(maxsize=None)(lambda language: toolchain_for(target, language, paths))


def c_compiler(target: Target, paths: Mapping[str, str]) -> Toolchain:
    """A compiler that builds for another kind of machine, such as gcc for its own, is passed over."""
    others = []
    for tool in sorted(C_COMPILERS, key=lambda tool: tool.name not in paths):
        path = programs.named(tool.name, paths[tool.name]) if tool.name in paths else programs.search(tool.name)
        if path is None:
            continue
        compiler = _compiler(tool.name, path, target.built_for)
        if compiler.serves(target):
            return compiler
        others.append(f"{path} builds for {compiler.machine}")
    raise Missing(
        f"a C compiler for {target.built_for}" if others else "a C compiler",
        blocks=f"kernels for {target.name} cannot be built" + (f" ({', '.join(others)})" if others else ""),
        remedy="Install one with `pip install ziglang`, which builds for every processor"
        + ("." if others else ", or gcc or clang with your system's packages."),
    )


def c_for_riscv(target: Target, paths: Mapping[str, str]) -> Toolchain:
    """One that builds whole programs, which boards and qemu run."""
    return riscv.riscv_for(target, paths, _zig_cache())


# A language and the runner of targets with a dot between, or a language for all others -> what chooses the toolchain,
# from a target that has the language and the paths that the user set.
TOOLCHAINS: Registry[Callable[[Target, Mapping[str, str]], Toolchain]] = Registry(
    "deepgen.toolchains",
    "toolchain",
    {
        "c": "deepgen.toolchains.find:c_compiler",
        "c.riscv": "deepgen.toolchains.find:c_for_riscv",
        "cuda": "deepgen.toolchains.find_gpu:nvrtc_for",
        "hip": "deepgen.toolchains.find_gpu:hip_for",
        "triton.gpu": "deepgen.toolchains.find_gpu:triton_for",
        "sim": "deepgen.toolchains.compilers.sim:sim_toolchain",
    },
)


def disassembled(binary: Path, paths: Mapping[str, str] | None = None) -> str:
    """A binary's instructions as text. It is read by a disassembler and never run."""
    if binary.suffix == riscv.SUFFIX:
        return riscv.assembly_beside(binary)
    name, disassemble = _DISASSEMBLERS.get(binary.suffix, ("objdump", disassembly.objdump))
    return disassemble(required(name, f"{binary} cannot be shown", paths), binary)


def instruction_mix(binary: Path, target: Target, paths: Mapping[str, str] | None = None) -> dict[str, float]:
    """How many instructions a binary has, and the shares of their classes. Raises DeepgenError."""
    machine = str(_MACHINES.get(binary.suffix) or getattr(target, "machine", ""))
    if machine not in disassembly.DIALECTS:
        raise DeepgenError(f"instructions of {target.name} are not told apart")
    try:
        return disassembly.mix(disassembled(binary, paths), machine)
    except ValueError as error:
        raise DeepgenError(str(error)) from error


def required(name: str, blocks: str, paths: Mapping[str, str] | None = None) -> str:
    """The path of a tool that works. Raises Missing, with what that blocks."""
    status = _status(TOOLS[name], (paths or {}).get(name, ""))
    if status.path is None or not status.ok:
        raise Missing(name, blocks=f"{blocks} ({status.problem})", remedy=status.remedy)
    return status.path


_DISASSEMBLERS: Mapping[str, tuple[str, Callable[[str, Path], str]]] = {
    ".cubin": ("nvdisasm", disassembly.sass),
    ".hsaco": ("llvm-objdump", disassembly.objdump),
}
_MACHINES = {".cubin": "sass", ".hsaco": "amdgcn", riscv.SUFFIX: "riscv64 source"}


def survey(paths: Mapping[str, str] | None = None) -> list[ToolStatus]:
    """Every tool that deepgen knows, found or missing."""
    return [_status(tool, (paths or {}).get(tool.name, "")) for tool in TOOLS.values()]


def _status(tool: Tool, configured: str) -> ToolStatus:
    try:
        if tool in find_gpu.TOOLS:
            version, path = find_gpu.examine(tool.name, configured)
            return ToolStatus(tool.name, tool.serves, version, path, None if version else "not found", tool.remedy)
        path = programs.named(tool.name, configured) if configured else programs.search(tool.name)
        if path is None:
            return ToolStatus(tool.name, tool.serves, None, None, "not found", tool.remedy)
        here = host.machine()
        version = _tried(_compiler(tool.name, path, here)) if tool in C_COMPILERS else programs.version(path)
    except (BadInput, BuildError) as error:
        return ToolStatus(tool.name, tool.serves, None, configured or None, str(error), tool.remedy)
    return ToolStatus(tool.name, tool.serves, version, path, None, tool.remedy)


def _tried(compiler: CCompiler) -> str:
    """The version of a compiler that did build something: one without headers or linker tells its version too.

    Those of zig come with it, and before it links for a processor it compiles a C library, which takes seconds.
    """
    target = next((common(k, 1) for k in PROCESSORS if k.machine == compiler.machine), None)
    if target is None:
        raise BadInput(f"{compiler.path} builds for {compiler.machine}", allowed="processors that deepgen knows")
    kernel = Kernel("tried", "c", (Source("tried.c", _SMALLEST),), (), LaunchPlan(()))
    with tempfile.TemporaryDirectory() as folder, Group() as group:
        if compiler.name == "zig":
            compiler.assembly(kernel, target, Path(folder))
        else:
            compiler.build(kernel, target, Path(folder), BuildLimits(), group)
    return compiler.version


def _compiler(name: str, path: str, machine: str) -> CCompiler:
    """The compiler at a path; where it can build for any machine, for this one."""
    if name == "zig":
        return zig(path, programs.number(programs.ask(path, "version")), _zig_cache(), machine)
    try:
        return gcc_or_clang(name, path, programs.ask(path, "--version"), programs.ask(path, "-dumpmachine"))
    except ValueError as error:
        raise BadInput(f"{path} is not a {name} that can be used: {error}") from error


def _zig_cache() -> str:
    """Where zig keeps the C library that it compiled, which takes seconds; where that cannot be, each build does it."""
    try:
        folder = default_cache_folder() / "zig"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, BadInput):
        return "{folder}/zig-global"
    return str(folder)
