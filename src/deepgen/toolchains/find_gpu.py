"""Which toolchains for GPU kernels are here: NVRTC libraries, and clangs with the AMDGPU backend."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from deepgen.targets import Target
from deepgen.toolchains import programs
from deepgen.toolchains.base import Toolchain
from deepgen.toolchains.compilers import hip_clang, nvrtc, triton
from deepgen.toolchains.compilers.hip_clang import HipClang
from deepgen.toolchains.compilers.nvrtc import Nvrtc
from deepgen.toolchains.compilers.triton import Triton
from deepgen.toolchains.programs import Tool
from deepgen.vocabulary import BadInput, Missing

TOOLS = (
    Tool(
        "nvrtc",
        "compiling CUDA kernels",
        "Install it with `pip install nvidia-cuda-nvrtc` (for sm_70: nvidia-cuda-nvrtc-cu12).",
    ),
    Tool("hip", "compiling HIP kernels", "Install it with `apt-get install clang-19 lld-19`, or install ROCm."),
    Tool("triton", "compiling Triton kernels", "Install it with `pip install triton==3.9.0`."),
    Tool("nvdisasm", "showing CUDA machine code", "Install it with `pip install nvidia-cuda-nvdisasm`."),
    Tool("llvm-objdump", "showing HIP machine code", "Install it with `apt-get install llvm-19`, or install ROCm."),
    Tool(
        "ncu", "counting events of NVIDIA GPUs", "Install NVIDIA's Nsight Compute, which is part of the CUDA toolkit."
    ),
    Tool("rocprof", "counting events of AMD GPUs", "Install rocprofiler-sdk, which is part of ROCm."),
)
_TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"))
# Programs that are looked for in their makers' folders before the search path: executables, and globs of folders.
_PROGRAMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nvdisasm": (("nvdisasm",), ("/usr/local/cuda/bin", "/opt/cuda/bin")),
    "llvm-objdump": (("llvm-objdump",), ("/opt/rocm/llvm/bin", "/opt/dtk/llvm/bin")),
    "ncu": (("ncu",), ("/usr/local/cuda*/bin", "/opt/cuda/bin", "/opt/nvidia/nsight-compute/*")),
    "rocprof": (("rocprofv3", "rocprof"), ("/opt/rocm*/bin",)),
}
_VENDORS = (Path("/opt/rocm/llvm/bin/clang++"), Path("/opt/dtk/llvm/bin/clang++"))


def examine(name: str, configured: str) -> tuple[str | None, str | None]:
    """A tool's version and path; None where it is not here. Raises BadInput when the path that was set is wrong."""
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
    try:
        return nvrtc.described(path, disassembler)
    except ValueError as error:
        raise BadInput(f"{path} is not an NVRTC that can be used: {error}") from error


def _libraries(configured: str) -> list[str]:
    """The path that was set; otherwise every NVRTC of a Python package, then of a toolkit, each newest first."""
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
    """Where NVIDIA's Python packages put the parts of the toolkit."""
    spec = importlib.util.find_spec("nvidia")
    yield from map(Path, (spec.submodule_search_locations or []) if spec else [])


def program(name: str, configured: str) -> str | None:
    """The path that was set; otherwise that of a Python package, then of its maker's newest folder, then any."""
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
    """The compiler that was set; otherwise a vendor's, which knows its chips best; otherwise LLVM's."""
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
    """Triton, for NVIDIA's and AMD's GPUs. One whose folder the user set must work."""
    return _triton(paths.get("triton", ""), program("nvdisasm", paths.get("nvdisasm", "")))


def _triton(configured: str, disassembler: str | None = None) -> Triton:
    spec = None if configured else importlib.util.find_spec("triton")
    if not configured and (spec is None or spec.origin is None):
        raise Missing(
            "Triton",
            blocks="Triton kernels cannot be built",
            remedy=f"Install it with `pip install triton==3.9.0`; deepgen knows {' and '.join(triton.RELEASES)}.",
        )
    folder = Path(configured).expanduser() if configured else Path(str(spec.origin if spec else "")).parent.parent
    try:
        return triton.described(str(folder.absolute()), disassembler)
    except ValueError as error:
        allowed = " or ".join(f"pip install 'triton=={release}.*'" for release in triton.RELEASES)
        raise BadInput(f"{folder} cannot be used for Triton kernels: {error}", allowed=allowed) from error
