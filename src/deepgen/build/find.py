"""Which toolchains are here, which one builds a kernel, and what is missing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepgen.build import find_gpu, programs
from deepgen.build.base import BuildError, BuildLimits, Toolchain
from deepgen.build.cache import default_cache_folder
from deepgen.build.group import Group
from deepgen.build.programs import Tool
from deepgen.build.toolchains.c import CCompiler, gcc_or_clang, zig
from deepgen.build.toolchains.sim import SimToolchain
from deepgen.targets import X86, Gpu, Target
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, Missing, Source

_SMALLEST = "#include <math.h>\n#include <stdint.h>\nfloat tried(float x) { return expf(x); }\n"

# In the order in which they are tried. The first that is here builds C kernels.
C_COMPILERS = (
    Tool("gcc", "building C kernels for x86", "Install it with `apt-get install gcc libc6-dev`."),
    Tool("clang", "building C kernels for x86", "Install it with `apt-get install clang`."),
    Tool("zig", "building C kernels for x86 on a machine without a compiler", "Install it with `pip install ziglang`."),
)
OTHERS = (Tool("objdump", "showing a binary's instructions", "Install it with `apt-get install binutils`."),)
TOOLS = {tool.name: tool for tool in (*C_COMPILERS, *OTHERS, *find_gpu.TOOLS)}


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
    if language == "sim" and target.kind == "sim":
        return SimToolchain()
    given = {name: path for name, path in (paths or {}).items() if path}
    if isinstance(target, Gpu) and language == target.kind:
        return find_gpu.toolchain_for(target, given)
    if language != "c" or target.kind != "x86":
        raise Missing(
            f"a toolchain for {language} on {target.name}",
            blocks="such kernels cannot be built",
            remedy="C is built for x86 targets, CUDA for cuda targets, HIP for hip targets, sim for sim targets.",
        )
    for tool in sorted(C_COMPILERS, key=lambda tool: tool.name not in given):
        if tool.name in given:
            return _compiler(tool.name, programs.named(tool.name, given[tool.name]))
        path = programs.search(tool.name)
        if path is not None:
            return _compiler(tool.name, path)
    raise Missing(
        "a C compiler",
        blocks="kernels for x86 cannot be built",
        remedy="Install gcc or clang with your system's packages, or `pip install ziglang`.",
    )


def survey(paths: Mapping[str, str] | None = None) -> list[ToolStatus]:
    """Every tool that deepgen knows, found or missing."""
    return [_status(tool, (paths or {}).get(tool.name, "")) for tool in TOOLS.values()]


def _status(tool: Tool, given: str) -> ToolStatus:
    try:
        if tool in find_gpu.TOOLS:
            version, path = find_gpu.examine(tool.name, given)
            return ToolStatus(tool.name, tool.serves, version, path, None if version else "not found", tool.remedy)
        path = programs.named(tool.name, given) if given else programs.search(tool.name)
        if path is None:
            return ToolStatus(tool.name, tool.serves, None, None, "not found", tool.remedy)
        version = _tried(_compiler(tool.name, path)) if tool in C_COMPILERS else programs.version(path)
    except (BadInput, BuildError) as error:
        return ToolStatus(tool.name, tool.serves, None, given or None, str(error), tool.remedy)
    return ToolStatus(tool.name, tool.serves, version, path, None, tool.remedy)


def _tried(compiler: CCompiler) -> str:
    """The version of a compiler that did build something: one without headers or linker tells its version too."""
    target = X86("x86:any", model="any", isa=("sse2",), cores=1, l1d_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=8 << 20)
    kernel = Kernel("tried", "c", (Source("tried.c", _SMALLEST),), (), LaunchPlan(()))
    with tempfile.TemporaryDirectory() as folder, Group() as group:
        compiler.build(kernel, target, Path(folder), BuildLimits(), group)
    return compiler.version


def _compiler(name: str, path: str) -> CCompiler:
    if name == "zig":
        return zig(path, programs.number(programs.ask(path, "version")), _zig_cache())
    try:
        return gcc_or_clang(name, path, programs.ask(path, "--version"))
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
