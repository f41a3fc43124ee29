"""Which cross compiler builds for RISC-V on this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from deepgen.targets import Target
from deepgen.toolchains import programs
from deepgen.toolchains.base import Toolchain
from deepgen.toolchains.compilers import riscv
from deepgen.toolchains.compilers.riscv import RiscvCompiler
from deepgen.toolchains.programs import Tool
from deepgen.vocabulary import BadInput, Missing

CROSS_GCC = Tool(
    "riscv64-linux-gnu-gcc",
    "building for RISC-V: the C library that clang links with; its own vectors from version 14 on",
    "Install it with `apt-get install gcc-riscv64-linux-gnu`.",
)
QEMU = Tool(
    "qemu-riscv64", "running kernels for RISC-V without a board", "Install it with `apt-get install qemu-user`."
)
TOOLS = (CROSS_GCC, QEMU)
_VECTORS_SINCE = 14  # gcc's first release with the vector extension's header
_TRIED = ("clang", "zig", CROSS_GCC.name)
_REMEDY = (
    "Install clang with `apt-get install clang-19 lld-19 gcc-riscv64-linux-gnu`, or zig with `pip install ziglang`."
)


def riscv_for(target: Target, paths: Mapping[str, str], zig_cache: str) -> Toolchain:
    """The first compiler that can build programs for RISC-V; one whose path the user set comes before the others."""
    problems = []
    for name in sorted(_TRIED, key=lambda name: name not in paths):
        path = programs.named(name, paths[name]) if name in paths else programs.search(name)
        if path is None:
            continue
        try:
            return _compiler(name, path, zig_cache)
        except BadInput as error:
            problems.append(str(error))
    reasons = f" ({'; '.join(problems)})" if problems else ""
    raise Missing(
        "a compiler for riscv64", blocks=f"kernels for {target.name} cannot be built{reasons}", remedy=_REMEDY
    )


def _compiler(name: str, path: str, zig_cache: str) -> RiscvCompiler:
    """Raises BadInput with what it lacks."""
    if name == "zig":
        return riscv.zig(path, programs.number(programs.ask(path, "version")), zig_cache)
    described = programs.ask(path, "--version").splitlines()[0]
    version = programs.number(described)
    if name == "clang":
        for asked, lacks in (
            ("-print-file-name=libc.a", "finds no C library for riscv64"),
            ("-print-prog-name=ld.lld", "finds no lld"),
        ):
            file = programs.ask(path, "--target=riscv64-linux-gnu", asked).strip()
            if not Path(file).is_absolute():
                raise BadInput(f"{path} {lacks}")
        return riscv.clang(name, path, version, described)
    major = re.match(r"\d+", version)
    if major is None or int(major.group()) < _VECTORS_SINCE:
        raise BadInput(f"{path} is version {version}, and gcc has vectors from {_VECTORS_SINCE} on")
    return riscv.gcc(name, path, version, described)
