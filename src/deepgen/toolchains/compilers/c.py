"""C compilers: gcc, clang, and the clang inside zig. A kernel becomes a shared library.

Flags for a CPU's instruction sets are spelled out rather than `-march=native`, so that a cached binary means the
same on every machine.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from deepgen.targets import Target
from deepgen.toolchains import elf, process
from deepgen.toolchains.base import BuildError, BuildLimits, Built, Recipe
from deepgen.toolchains.compilers import judge
from deepgen.toolchains.compilers.compiled_once import linked, linked_parts, separate_parts, short_header
from deepgen.toolchains.compilers.judge import failed, run_judged, write_sources
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, Json, Kernel, digest

_OPTIMISE = ("-O3",)
_SHARED = ("-shared", "-fPIC")
_BINARY = "kernel.so"
_ASSEMBLY = "kernel.s"


@dataclass(frozen=True)
class CCompiler:
    """One C compiler for one kind of machine.

    `command` starts it; `family`, gcc or clang, determines its flags and version numbers.
    """

    name: str
    version: str
    path: str
    command: tuple[str, ...]
    family: str
    major: int
    machine: str  # the machine it builds for: x86_64, aarch64
    identity: str  # the compiler's own description, down to the distribution's patch level
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        recipe = [*self._flags(()), *_SHARED]
        return f"{self.name}-{self.version}-{digest([self.identity, recipe, list(self.command[1:])], 16)}"

    def serves(self, target: Target) -> bool:
        return target.built_for == self.machine

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        # -fstack-usage costs nothing and shows which kernels spill registers.
        usage = () if self.name == "zig" else ("-fstack-usage",)
        finished = self._compile(kernel, target, folder, (*_SHARED, *usage), _BINARY, limits, group)
        try:
            image = (folder / _BINARY).read_bytes()
            code = elf.code_bytes(image)
            symbols = elf.symbols(image) if judge.expressions(kernel) else []
        except FileNotFoundError:
            raise failed(self.name, "reported success but wrote no shared library", finished.log) from None
        except ValueError as error:
            raise failed(self.name, f"reported success but wrote {error} as shared library", finished.log) from None
        facts: dict[str, Json] = {"code_bytes": code, "cpu_seconds": round(finished.cpu_seconds, 3)}
        if (stack := _stack_bytes(folder)) is not None:
            facts["stack_bytes"] = stack
        plan = judge.completed(kernel.plan, judge.symbols_of(self.name, kernel, symbols, finished.log))
        return Built(_BINARY, "so", facts, finished.log, plan)

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        with Group() as group:
            self._compile(kernel, target, folder, ("-fPIC", "-S"), _ASSEMBLY, BuildLimits(), group)
        return (folder / _ASSEMBLY).read_text(errors="replace")

    def _flags(self, features: tuple[str, ...]) -> tuple[str, ...]:
        # zig would compile for the CPU of -mtune, with instructions that the target may lack.
        tuning = () if self.name == "zig" else tuning_flags(features, self.family, self.major)
        zig = self.name == "zig"
        return (*_OPTIMISE, *isa_flags(self.machine, features, self.family, self.major, zig=zig), *tuning)

    def _compile(
        self,
        kernel: Kernel,
        target: Target,
        folder: Path,
        kind: tuple[str, ...],
        output: str,
        limits: BuildLimits,
        group: Group,
    ) -> process.Finished:
        if not self.serves(target):
            raise BadInput(f"{self.path} cannot build kernels for {target.name}", allowed=f"{self.machine} processors")
        write_sources(kernel, folder)
        argv = self._argv(kernel, target, kind, output)
        once: tuple[str, ...] = ()
        if self._links_parts:
            of = self.command, self.identity, self._part_flags(target), kernel, limits, group
            with ThreadPoolExecutor(1) as beside:  # the first kernel waits for both
                parts = beside.submit(linked_parts, *of) if "-S" not in kind else None
                once = (*short_header(*of), *(parts.result() if parts else ()))
        try:
            return run_judged(self.name, (*argv, *once), folder, limits, group, self._env(folder))
        except BuildError as error:
            if not once or not error.lasting:
                raise
            # Most likely the kernel's own fault; this gives the compiler's message for all of its sources.
            return run_judged(self.name, argv, folder, limits, group, self._env(folder))

    def recipe(self, kernel: Kernel, target: Target) -> Recipe:
        argv = self._argv(kernel, target, _SHARED, _BINARY)
        parts = separate_parts(self.command, self._part_flags(target), kernel) if self._links_parts else []
        objects = [f"{Path(source.name).stem}.o" for source, _, _ in parts]
        first = tuple((*words, "-o", built) for (*_, words), built in zip(parts, objects, strict=True))
        linking = linked((name, built) for (_, name, _), built in zip(parts, objects, strict=True))
        return Recipe((*argv, *linking), first=first)

    @property
    def _links_parts(self) -> bool:
        return self.family == "gcc" and self.machine == "x86_64"

    def _part_flags(self, target: Target) -> tuple[str, ...]:
        return (*self._flags(target.instruction_sets), "-fPIC")

    def _argv(self, kernel: Kernel, target: Target, kind: tuple[str, ...], output: str) -> tuple[str, ...]:
        # Names relative to the folder make the binary independent of where it is built. The kernel's own flags come
        # last, so that they take precedence and its libraries follow the objects that need them.
        flags = (*self._flags(target.instruction_sets), *kind)
        argv = (*self.command, *flags, "-o", output, kernel.sources[0].name, *kernel.flags)
        return argv if "-S" in kind else (*argv, "-lm")

    def _env(self, folder: Path) -> dict[str, str]:
        return {key: value.replace("{folder}", str(folder)) for key, value in self.env.items()}


def gcc_or_clang(name: str, path: str, description: str, machine: str) -> CCompiler:
    """The compiler at a path, from its output for `--version` and `-dumpmachine`. Raises ValueError for others."""
    first = description.splitlines()[0] if description.strip() else ""
    numbers = re.findall(r"\b(\d+)\.\d+(?:\.\d+)?", first)
    version = re.findall(r"\b\d+\.\d+(?:\.\d+)?", first)
    family = "clang" if "clang" in first.lower() else "gcc" if re.search(r"\bGCC\b|gcc", description) else ""
    if not family or not numbers:
        raise ValueError(f"it describes itself as {first!r}")
    built_for = machine.strip().partition("-")[0]  # the first part of a triple such as aarch64-linux-gnu
    return CCompiler(name, version[-1], path, (path,), family, int(numbers[-1]), built_for, first)


def zig(path: str, version: str, cache: str, machine: str) -> CCompiler:
    """The C compiler inside zig, which includes a libc for any machine, so no other compiler is needed."""
    libc = "musl" if platform.libc_ver()[0] != "glibc" else "gnu"
    return CCompiler(
        name="zig",
        version=version,
        path=path,
        # Without a target zig would compile for this machine's CPU only. Its checks for undefined behaviour must not be
        # part of timed code.
        command=(path, "cc", "-target", f"{machine}-linux-{libc}", "-fno-sanitize=undefined", "-g0"),
        family="clang",
        major=18,  # the clang in the oldest supported zig
        machine=machine,
        identity=f"zig {version}",
        # The compiled C library is shared; objects belong to this build and are deleted with the work folder.
        env={"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": "{folder}/zig-cache"},
    )


def _stack_bytes(folder: Path) -> int | None:
    """The largest stack frame of the kernel's functions, which shows spilled registers."""
    frames = [
        int(words[1])
        for report in folder.glob("*.su")
        for line in report.read_text(errors="replace").splitlines()
        if len(words := line.split("\t")) > 1 and words[1].isdigit()
    ]
    return max(frames, default=None)


# Instruction set -> flag, and the first gcc and clang versions that support it. Older compilers do not get the flag: a
# kernel that needs the instructions then fails with the compiler's message, and all others build.
_X86: dict[str, tuple[str, int, int]] = {
    "sse2": ("-msse2", 0, 0),
    "avx": ("-mavx", 0, 0),
    "f16c": ("-mf16c", 0, 0),
    "fma": ("-mfma", 0, 0),
    "avx2": ("-mavx2", 0, 0),
    "avx_vnni": ("-mavxvnni", 11, 12),
    "avx512f": ("-mavx512f", 5, 4),
    "avx512bw": ("-mavx512bw", 5, 4),
    "avx512dq": ("-mavx512dq", 5, 4),
    "avx512vl": ("-mavx512vl", 5, 4),
    "avx512_vnni": ("-mavx512vnni", 8, 6),
    "avx512_bf16": ("-mavx512bf16", 10, 9),
    "avx512_fp16": ("-mavx512fp16", 12, 14),
    "amx_tile": ("-mamx-tile", 11, 11),
    "amx_int8": ("-mamx-int8", 11, 11),
    "amx_bf16": ("-mamx-bf16", 11, 11),
}
# The same for Arm, as an extension of -march: gcc's and clang's name, and zig's name.
_ARM: dict[str, tuple[str, str, int, int]] = {
    "atomics": ("lse", "lse", 6, 4),
    "asimdhp": ("fp16", "fullfp16", 7, 5),
    "asimddp": ("dotprod", "dotprod", 8, 6),
    "bf16": ("bf16", "bf16", 10, 11),
    "i8mm": ("i8mm", "i8mm", 10, 11),
    "sve": ("sve", "sve", 8, 5),
    "sve2": ("sve2", "sve2", 10, 9),
}
# The CPU whose instruction costs the scheduler assumes, by the newest available instruction set. Not the newest CPU for
# gcc: it uses one model for all of these, but looks ahead as many instructions as the CPU issues per cycle, and with
# six of them gcc 13 takes 3.3 s for a kernel that otherwise takes 0.9. The instructions are the same.
_NOT_GCC = 1000
_TUNE: tuple[tuple[str, str, int, int], ...] = (
    ("amx_tile", "sapphirerapids", _NOT_GCC, 12),
    ("avx512_vnni", "icelake-server", _NOT_GCC, 6),
    ("avx512f", "skylake-avx512", 6, 4),
    ("avx2", "haswell", 0, 0),
)


def isa_flags(machine: str, isa: Iterable[str], family: str, major: int, *, zig: bool = False) -> tuple[str, ...]:
    """The flags for these instruction sets that a compiler of this family and major version supports."""
    present = set(isa)
    if machine == "aarch64":
        extensions = [
            names for f, (*names, gcc, clang) in _ARM.items() if f in present and _supported(family, major, gcc, clang)
        ]
        # gcc's header has dot products and half precision only from 8.2 on; zig takes -march as a CPU name.
        base = "-march=armv8.2-a" if present & {"asimdhp", "asimddp"} else "-march=armv8-a"
        return ("+".join(("-mcpu=generic" if zig else base, *(str(names[zig]) for names in extensions))),)
    chosen = [flag for name, (flag, *since) in _X86.items() if name in present and _supported(family, major, *since)]
    if "-mavx512f" in chosen and _supported(family, major, 8, 6):
        # The tunings would vectorise loops with 256 bits, although every target with 512 has full-width units.
        chosen.append("-mprefer-vector-width=512")
    return tuple(chosen)


def tuning_flags(isa: Iterable[str], family: str, major: int) -> tuple[str, ...]:
    """The flag that schedules instructions for the newest CPU that these instruction sets indicate."""
    present = set(isa)
    processors = (cpu for name, cpu, *since in _TUNE if name in present and _supported(family, major, *since))
    return (f"-mtune={next(processors, 'generic')}",)


def _supported(family: str, major: int, gcc: int, clang: int) -> bool:
    return major >= (gcc if family == "gcc" else clang)
