"""Cross compilers for RISC-V (clang, zig, gcc), and the choice of an installed one. A kernel becomes a static program.

It includes the C runner; the kernel's assembly is stored beside it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from deepgen.targets import Riscv, Target
from deepgen.toolchains import board, elf, programs
from deepgen.toolchains.base import BuildLimits, Built, Recipe, Toolchain
from deepgen.toolchains.compilers import compiled_once, judge
from deepgen.toolchains.compilers.judge import failed, run_judged, write_sources
from deepgen.toolchains.group import Group
from deepgen.toolchains.programs import Tool
from deepgen.vocabulary import BadInput, DeepgenError, Json, Kernel, Missing, digest
from deepgen.vocabulary.folders import default_cache_folder

ASSEMBLY = "kernel.s"  # stored beside the program
SUFFIX = ".riscv"
_BINARY = f"kernel{SUFFIX}"
_OBJECT = "kernel.o"
_OURS = "deepgen-runner"  # a separate folder, because a user's kernel may have files of any name
_RUNNER = (f"{_OURS}/board.c", f"{_OURS}/board.h")
_RUNNER_OBJECT = f"{_OURS}/board.o"
_CALLS = f"{_OURS}/calls.c"


@dataclass(frozen=True)
class RiscvCompiler:
    """One compiler that builds for RISC-V on this machine. `command` starts it."""

    name: str
    version: str
    path: str
    command: tuple[str, ...]
    identity: str  # the compiler's own description
    link: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        parts = [self.identity, list(self.command[1:]), list(self.link), *_runner().values()]
        return f"{self.name}-{self.version}-{digest(parts, 16)}"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        if strange := judge.expressions(kernel):
            raise failed(self.name, f'cannot call {strange[0]} from C: name it in extern "C"', "")
        write_sources(kernel, folder)
        _write_runner(kernel, folder)
        env = {key: value.replace("{folder}", str(folder)) for key, value in self.env}
        if self.name == "zig" and isinstance(target, Riscv):
            linking = (*self.command, *self._linking(_machine(self.name, target)))
            compiled_once.ready(linking, self.version, dict(self.env)["ZIG_GLOBAL_CACHE_DIR"], limits, group)
        log, seconds = "", 0.0
        for argv in self._commands(kernel, target):
            finished = run_judged(self.name, argv, folder, limits, group, env)
            log, seconds = log + finished.log, seconds + finished.cpu_seconds
        self._keep_runner(folder, target)
        try:
            facts: dict[str, Json] = {
                "code_bytes": elf.code_bytes((folder / _OBJECT).read_bytes()),
                "program_bytes": (folder / _BINARY).stat().st_size,
                "cpu_seconds": round(seconds, 3),
            }
        except (OSError, ValueError) as error:
            raise failed(self.name, f"reported success but wrote no program ({error})", log) from None
        return Built(_BINARY, "riscv", facts, log, beside=(ASSEMBLY,))

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        write_sources(kernel, folder)
        with Group() as group:
            run_judged(self.name, self._commands(kernel, target)[0], folder, BuildLimits(), group, dict(self.env))
        return (folder / ASSEMBLY).read_text(errors="replace")

    def recipe(self, kernel: Kernel, target: Target) -> Recipe:
        return Recipe(self._commands(kernel, target)[0])

    def _commands(self, kernel: Kernel, target: Target) -> tuple[tuple[str, ...], ...]:
        """Compile to assembly, then to an object, and link a program. The kernel's flags apply only to its source."""
        if not isinstance(target, Riscv):
            raise BadInput(f"{self.path} cannot build kernels for {target.name}", allowed="riscv targets")
        machine = _machine(self.name, target)
        compiled = ("-O3", *machine, "-S", "-o", ASSEMBLY, kernel.sources[0].name, *_compiled(kernel))
        kept = self._kept_runner(target)
        runner = (*self.command, "-O1", *machine, "-c", "-o", _RUNNER_OBJECT, _RUNNER[0])
        parts = (str(kept) if kept.is_file() else _RUNNER_OBJECT, _CALLS, _OBJECT)
        linked = (*self._linking(machine), "-o", _BINARY, *parts, "-pthread", "-lm")
        return (
            (*self.command, *compiled),
            (*self.command, *machine, "-c", "-o", _OBJECT, ASSEMBLY),
            *(() if kept.is_file() else (runner,)),
            (*self.command, *linked),
        )

    def _linking(self, machine: Sequence[str]) -> tuple[str, ...]:
        return ("-O1", "-s", *machine, "-static", *self.link)

    def _kept_runner(self, target: Riscv) -> Path:
        """The path of the cached runner object, whose compilation takes as long as that of many kernels."""
        name = digest([self.id, *_machine(self.name, target)], 16)
        return default_cache_folder() / "riscv-runner" / f"{name}.o"

    def _keep_runner(self, folder: Path, target: Target) -> None:
        compiled = folder / _RUNNER_OBJECT
        if not compiled.is_file() or not isinstance(target, Riscv):
            return
        kept = self._kept_runner(target)
        with contextlib.suppress(OSError):  # if it cannot be cached, each build compiles it
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = kept.with_suffix(f".{secrets.token_hex(4)}")
            shutil.copyfile(compiled, fresh)
            fresh.replace(kept)  # atomic, even with several writers


def assembly_beside(program: Path) -> str:
    """The kernel's assembly as its compiler wrote it, without the runner and the C library."""
    try:
        return (program.parent / ASSEMBLY).read_text(errors="replace")
    except OSError as error:
        raise DeepgenError(f"the assembly of {program.name} is not beside it") from error


def clang(name: str, path: str, version: str, identity: str) -> RiscvCompiler:
    """clang, which needs the C library of a cross gcc, and lld."""
    command = (path, "--target=riscv64-linux-gnu")
    return RiscvCompiler(name, version, path, command, identity, link=("-fuse-ld=lld",))


def gcc(name: str, path: str, version: str, identity: str) -> RiscvCompiler:
    return RiscvCompiler(name, version, path, (path,), identity)


def zig(path: str, version: str, cache: str) -> RiscvCompiler:
    """zig, which includes a C library."""
    command = (path, "cc", "-target", "riscv64-linux-musl", "-fno-sanitize=undefined", "-g0")
    env = (("ZIG_GLOBAL_CACHE_DIR", cache), ("ZIG_LOCAL_CACHE_DIR", "{folder}/zig-cache"))
    return RiscvCompiler("zig", version, path, command, f"zig {version}", env=env)


def _machine(name: str, target: Riscv) -> tuple[str, ...]:
    if name == "zig":
        features = "".join(f"+{feature}" for feature in target.march.split("_")[1:])
        return (f"-mcpu=baseline_rv64+v{features}",)
    return (f"-march={target.march}", "-mabi=lp64d")


def _compiled(kernel: Kernel) -> tuple[str, ...]:
    return tuple(flag for flag in kernel.flags if not flag.startswith("-l"))


def _runner() -> dict[str, str]:
    folder = resources.files("deepgen.toolchains.board")
    return {name: (folder / Path(name).name).read_text() for name in _RUNNER}


def _write_runner(kernel: Kernel, folder: Path) -> None:
    (folder / _OURS).mkdir()
    for name, text in {**_runner(), _CALLS: board.source(kernel)}.items():
        (folder / name).write_text(text)


CROSS_GCC = Tool(
    "riscv64-linux-gnu-gcc",
    "building for RISC-V: the C library that clang links with; as a compiler, vectors from version 14 on",
    "Install it with `apt-get install gcc-riscv64-linux-gnu`.",
)
QEMU = Tool(
    "qemu-riscv64", "running kernels for RISC-V without a board", "Install it with `apt-get install qemu-user`."
)
TOOLS = (CROSS_GCC, QEMU)
_VECTORS_SINCE = 14  # gcc's first release with the header of the vector extension
_TRIED = ("clang", "zig", CROSS_GCC.name)
_REMEDY = (
    "Install clang with `apt-get install clang-19 lld-19 gcc-riscv64-linux-gnu`, or zig with `pip install ziglang`."
)


def riscv_for(target: Target, paths: Mapping[str, str], zig_cache: str) -> Toolchain:
    """The first compiler that can build programs for RISC-V; one whose path the user set takes precedence."""
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
    """The compiler at a path. Raises BadInput with what it lacks."""
    if name == "zig":
        return zig(path, programs.number(programs.ask(path, "version")), zig_cache)
    described = programs.ask(path, "--version").splitlines()[0]
    version = programs.number(described)
    if name == "clang":
        for asked, lacks in (
            ("-print-file-name=libc.a", "cannot find a C library for riscv64"),
            ("-print-prog-name=ld.lld", "cannot find lld"),
        ):
            file = programs.ask(path, "--target=riscv64-linux-gnu", asked).strip()
            if not Path(file).is_absolute():
                raise BadInput(f"{path} {lacks}")
        return clang(name, path, version, described)
    major = re.match(r"\d+", version)
    if major is None or int(major.group()) < _VECTORS_SINCE:
        raise BadInput(f"{path} is version {version}, but gcc supports vectors only from {_VECTORS_SINCE}")
    return gcc(name, path, version, described)
