"""Finds installed toolchains, chooses the one that builds a kernel, and reports what is missing."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from deepgen.targets import PROCESSORS, Target, host
from deepgen.targets.cpu import common
from deepgen.toolchains import programs
from deepgen.toolchains.base import BuildError, BuildLimits, Toolchain
from deepgen.toolchains.compilers import disassembly, riscv
from deepgen.toolchains.compilers.c import CCompiler, gcc_or_clang, zig
from deepgen.toolchains.group import Group
from deepgen.toolchains.programs import Tool
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, LaunchPlan, Missing, Source
from deepgen.vocabulary.folders import default_cache_folder
from deepgen.vocabulary.registry import Registry

if TYPE_CHECKING:  # toolchains for GPUs are imported where they are used
    from deepgen.toolchains.compilers.hip_clang import HipClang
    from deepgen.toolchains.compilers.nvrtc import Nvrtc
    from deepgen.toolchains.compilers.triton import Triton

_SMALLEST = "#include <math.h>\n#include <stdint.h>\nfloat tried(float x) { return expf(x); }\n"
# In the order of preference: the first one that is installed builds C kernels.
C_COMPILERS = (
    Tool("gcc", "building C kernels for CPUs", "Install it with `apt-get install gcc libc6-dev`."),
    Tool("clang", "building C kernels for CPUs", "Install it with `apt-get install clang`."),
    Tool("zig", "building C kernels for any CPU, on any machine", "Install it with `pip install ziglang`."),
)
OTHERS = (Tool("objdump", "disassembling binaries", "Install it with `apt-get install binutils`."),)
GPU_TOOLS = (
    Tool(
        "nvrtc",
        "compiling CUDA kernels",
        "Install it with `pip install nvidia-cuda-nvrtc` (for sm_70: nvidia-cuda-nvrtc-cu12).",
    ),
    Tool("hip", "compiling HIP kernels", "Install it with `apt-get install clang-19 lld-19`, or install ROCm."),
    Tool("triton", "compiling Triton kernels", "Install it with `pip install triton==3.9.0`."),
    Tool("nvdisasm", "disassembling CUDA binaries", "Install it with `pip install nvidia-cuda-nvdisasm`."),
    Tool("llvm-objdump", "disassembling HIP binaries", "Install it with `apt-get install llvm-19`, or install ROCm."),
    Tool(
        "ncu",
        "counting hardware events on NVIDIA GPUs",
        "Install NVIDIA's Nsight Compute, which is part of the CUDA toolkit.",
    ),
    Tool("rocprof", "counting hardware events on AMD GPUs", "Install rocprofiler-sdk, which is part of ROCm."),
)
TOOLS = {tool.name: tool for tool in (*C_COMPILERS, *OTHERS, *riscv.TOOLS, *GPU_TOOLS)}


@dataclass(frozen=True)
class ToolStatus:
    """A tool's status in `doctor`. Without a version it cannot be used; `problem` says why."""

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

    A compiler whose path the user set takes precedence over installed ones, and must work.
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
    """Finds the toolchain of each language on first use, because finding a compiler queries its version."""
    return lru_cache(maxsize=None)(lambda language: toolchain_for(target, language, paths))


def c_compiler(target: Target, paths: Mapping[str, str]) -> Toolchain:
    """The C compiler for the target. One that builds for another machine, such as a native gcc, is skipped."""
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
        remedy="Install one with `pip install ziglang`, which builds for every CPU"
        + ("." if others else ", or gcc or clang from your system's packages."),
    )


def c_for_riscv(target: Target, paths: Mapping[str, str]) -> Toolchain:
    """A compiler for whole programs, which boards and qemu run."""
    return riscv.riscv_for(target, paths, _zig_cache())


# Keys are a language and a target's runner separated by a dot, or a language for all other targets. Values choose the
# toolchain, from the target and the paths set by the user.
TOOLCHAINS: Registry[Callable[[Target, Mapping[str, str]], Toolchain]] = Registry(
    "deepgen.toolchains",
    "toolchain",
    {
        "c": "deepgen.toolchains.find:c_compiler",
        "c.riscv": "deepgen.toolchains.find:c_for_riscv",
        "cuda": "deepgen.toolchains.find:nvrtc_for",
        "hip": "deepgen.toolchains.find:hip_for",
        "triton.gpu": "deepgen.toolchains.find:triton_for",
        "sim": "deepgen.toolchains.compilers.sim:sim_toolchain",
    },
)


def disassembled(binary: Path, paths: Mapping[str, str] | None = None) -> str:
    """A binary's instructions as text. A disassembler reads the binary, which is never run."""
    if binary.suffix == riscv.SUFFIX:
        return riscv.assembly_beside(binary)
    name, disassemble = _DISASSEMBLERS.get(binary.suffix, ("objdump", disassembly.objdump))
    return disassemble(required(name, f"{binary} cannot be shown", paths), binary)


def instruction_mix(binary: Path, target: Target, paths: Mapping[str, str] | None = None) -> dict[str, float]:
    """The number of instructions in a binary, and the share of each class. Raises DeepgenError."""
    machine = str(_MACHINES.get(binary.suffix) or getattr(target, "machine", ""))
    if machine not in disassembly.DIALECTS:
        raise DeepgenError(f"instructions of {target.name} are not classified")
    try:
        return disassembly.mix(disassembled(binary, paths), machine)
    except ValueError as error:
        raise DeepgenError(str(error)) from error


def required(name: str, blocks: str, paths: Mapping[str, str] | None = None) -> str:
    """The path of a working tool. Raises Missing, with what cannot be done without it."""
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
    """The status of every tool that deepgen knows, whether installed or missing."""
    return [_status(tool, (paths or {}).get(tool.name, "")) for tool in TOOLS.values()]


def _status(tool: Tool, configured: str) -> ToolStatus:
    try:
        if tool in GPU_TOOLS:
            version, path = examine(tool.name, configured)
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
    """The version of a compiler after a trial build: one without headers or a linker would report its version too.

    zig includes both, and before linking for a CPU it compiles a C library, which takes seconds; so it only compiles
    here.
    """
    target = next((common(k, 1) for k in PROCESSORS if k.machine == compiler.machine), None)
    if target is None:
        raise BadInput(f"{compiler.path} builds for {compiler.machine}", allowed="a CPU that deepgen supports")
    kernel = Kernel("tried", "c", (Source("tried.c", _SMALLEST),), (), LaunchPlan(()))
    with tempfile.TemporaryDirectory() as folder, Group() as group:
        if compiler.name == "zig":
            compiler.assembly(kernel, target, Path(folder))
        else:
            compiler.build(kernel, target, Path(folder), BuildLimits(), group)
    return compiler.version


def _compiler(name: str, path: str, machine: str) -> CCompiler:
    """The compiler at a path; `machine` is for a compiler that can build for any machine."""
    if name == "zig":
        return zig(path, programs.number(programs.ask(path, "version")), _zig_cache(), machine)
    try:
        return gcc_or_clang(name, path, programs.ask(path, "--version"), programs.ask(path, "-dumpmachine"))
    except ValueError as error:
        raise BadInput(f"{path} is not a {name} that works: {error}") from error


def _zig_cache() -> str:
    """The folder for zig's compiled C library, which takes seconds; without it, each build compiles it again."""
    try:
        folder = default_cache_folder() / "zig"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, BadInput):
        return "{folder}/zig-global"
    return str(folder)


_TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"))
# Programs that are searched in their vendors' folders before the search path: executables, and globs of folders.
_PROGRAMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nvdisasm": (("nvdisasm",), ("/usr/local/cuda/bin", "/opt/cuda/bin")),
    "llvm-objdump": (("llvm-objdump",), ("/opt/rocm/llvm/bin", "/opt/dtk/llvm/bin")),
    "ncu": (("ncu",), ("/usr/local/cuda*/bin", "/opt/cuda/bin", "/opt/nvidia/nsight-compute/*")),
    "rocprof": (("rocprofv3", "rocprof"), ("/opt/rocm*/bin",)),
}
_VENDORS = (Path("/opt/rocm/llvm/bin/clang++"), Path("/opt/dtk/llvm/bin/clang++"))


def examine(name: str, configured: str) -> tuple[str | None, str | None]:
    """A tool's version and path; None if it is not installed. Raises BadInput if the path set by the user is wrong."""
    if name in _PROGRAMS:
        path = program(name, configured)
        return (programs.version(path), path) if path else (None, None)
    try:
        if name in ("hip", "triton"):
            toolchain: Toolchain = _hip(configured) if name == "hip" else _triton(configured)
            return toolchain.version, toolchain.path
        libraries = [_described(path) for path in _libraries(configured)]
        return ", ".join(lib.version for lib in libraries) or None, ", ".join(lib.path for lib in libraries) or None
    except Missing:
        return None, None


def nvrtc_for(target: Target, paths: Mapping[str, str]) -> Nvrtc:
    """The newest library that compiles for the architecture. One whose path the user set must work."""
    from deepgen.toolchains.compilers import nvrtc

    seen = []
    for path in _libraries(paths.get("nvrtc", "")):
        library = _described(path, program("nvdisasm", paths.get("nvdisasm", "")))
        if library.serves(target):
            return library
        seen.append(f"NVRTC {library.version}")
    package = "nvidia-cuda-nvrtc-cu12" if nvrtc.capability(target) < 75 else "nvidia-cuda-nvrtc"
    raise Missing(
        f"an NVRTC library that compiles for {target.built_for}",
        blocks=f"CUDA kernels for {target.name} cannot be built" + (f" ({', '.join(seen)} cannot)" if seen else ""),
        remedy=f"Install one with `pip install {package}`, or set the path of another as toolchains.nvrtc.",
    )


def _described(path: str, disassembler: str | None = None) -> Nvrtc:
    from deepgen.toolchains.compilers import nvrtc

    try:
        return nvrtc.described(path, disassembler)
    except ValueError as error:
        raise BadInput(f"{path} is not an NVRTC that works: {error}") from error


def _libraries(configured: str) -> list[str]:
    """The path set by the user; otherwise every NVRTC of a Python package, then of a toolkit, each newest first."""
    if configured:
        if not Path(configured).expanduser().is_file():
            raise BadInput(f"the path set for nvrtc, {configured}, is not a library", allowed="libnvrtc.so.13 or .12")
        return [str(Path(configured).expanduser().absolute())]
    packaged = [path for folder in _package_folders() for path in folder.glob("*/lib/libnvrtc.so.*[0-9]")]
    packaged = sorted(packaged, key=_major, reverse=True)
    toolkits = [path for folder in _TOOLKITS for path in folder.glob("lib64/libnvrtc.so.*[0-9]")]
    return [str(path) for path in (*packaged, *sorted(toolkits, key=_major, reverse=True))]


def _major(path: Path) -> int:
    number = path.name.partition(".so.")[2].split(".")[0]
    return int(number) if number.isdigit() else 0


def _package_folders() -> Iterator[Path]:
    """The folders where NVIDIA's Python packages install parts of the toolkit."""
    spec = importlib.util.find_spec("nvidia")
    yield from map(Path, (spec.submodule_search_locations or []) if spec else [])


def program(name: str, configured: str) -> str | None:
    """The path set by the user; otherwise a Python package's, then the vendor's newest folder, then the search path."""
    if configured:
        return programs.named(name, configured)
    executables, places = _PROGRAMS[name]
    packaged = [str(folder) for package in _package_folders() for folder in package.glob("*/bin")]
    fixed = [str(match) for place in places for match in sorted(Path("/").glob(place[1:]), reverse=True)]
    for executable in executables:
        for folder in (*packaged, *fixed):
            if match := shutil.which(executable, path=folder):
                return match
        if match := programs.search(executable):
            return match
    return None


def hip_for(target: Target, paths: Mapping[str, str]) -> HipClang:
    """The compiler for all AMD GPUs. One whose path the user set must work."""
    return _hip(paths.get("hip", ""))


def _hip(configured: str) -> HipClang:
    """The compiler set by the user; otherwise a vendor's, which knows its chips best; otherwise LLVM's."""
    from deepgen.toolchains.compilers import hip_clang

    if configured:
        path: str | None = programs.named("hip", configured)
    else:
        vendors = (str(vendor) for vendor in _VENDORS if shutil.which(str(vendor)))
        path = next(vendors, None) or shutil.which("amdclang++") or programs.search("clang")
    if path is None:
        raise Missing(
            "a clang that compiles for AMD GPUs",
            blocks="HIP kernels cannot be built",
            remedy="Install it with `apt-get install clang-19 lld-19`, or set the path of ROCm's as toolchains.hip.",
        )
    try:
        return hip_clang.described(path, programs.ask(path, "--version"))
    except ValueError as error:
        raise BadInput(f"{path} is not a clang that can be used for HIP: {error}") from error


def triton_for(target: Target, paths: Mapping[str, str]) -> Triton:
    """Triton, for NVIDIA and AMD GPUs. One whose folder the user set must work."""
    return _triton(paths.get("triton", ""), program("nvdisasm", paths.get("nvdisasm", "")))


def _triton(configured: str, disassembler: str | None = None) -> Triton:
    from deepgen.toolchains.compilers import triton

    spec = None if configured else importlib.util.find_spec("triton")
    if not configured and (spec is None or spec.origin is None):
        raise Missing(
            "Triton",
            blocks="Triton kernels cannot be built",
            remedy=f"Install it with `pip install triton==3.9.0`; deepgen supports {' and '.join(triton.RELEASES)}.",
        )
    folder = Path(configured).expanduser() if configured else Path(str(spec.origin if spec else "")).parent.parent
    try:
        return triton.described(str(folder.absolute()), disassembler)
    except ValueError as error:
        allowed = " or ".join(f"pip install 'triton=={release}.*'" for release in triton.RELEASES)
        raise BadInput(f"{folder} cannot be used for Triton kernels: {error}", allowed=allowed) from error
