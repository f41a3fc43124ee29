"""C compilers: gcc, clang, and the clang inside zig. A kernel becomes a shared library."""

from __future__ import annotations

import errno
import platform
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from deepgen.build import elf, process
from deepgen.build.base import BuildError, BuildLimits, Built
from deepgen.build.group import Group
from deepgen.build.toolchains import isa
from deepgen.targets import X86, Target
from deepgen.vocabulary import BadInput, Json, Kernel, Verdict, digest

_OPTIMISE = ("-O3",)
_SHARED = ("-shared", "-fPIC")
_BINARY = "kernel.so"
_ASSEMBLY = "kernel.s"

_OUT_OF_MEMORY = re.compile(r"out of memory|memory exhausted|cannot allocate memory|bad_alloc|OutOfMemory", re.I)
_OUT_OF_TIME = re.compile(r"CPU time limit exceeded")
_KILLED = re.compile(r"Killed signal terminated|unable to execute command: Killed")
_TOO_LARGE = re.compile(r"File size limit exceeded|File too large")
_CRASHED = re.compile(
    r"internal compiler error.*|.*signal terminated program.*|.*frontend command failed.*|PLEASE submit"
)
_ERROR = re.compile(r"^.*\b(?:error|undefined reference)\b.*$", re.M)


@dataclass(frozen=True)
class CCompiler:
    """One C compiler. `command` starts it; `family` says whose flags and version numbers it has, gcc's or clang's."""

    name: str
    version: str
    path: str
    command: tuple[str, ...]
    family: str
    major: int
    identity: str  # the compiler's own description, down to the distribution's patch level
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        recipe = [*self._flags(()), *_SHARED]
        return f"{self.name}-{self.version}-{digest([self.identity, recipe, list(self.command[1:])], 16)}"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        # -fstack-usage costs nothing and shows which kernels spill registers.
        usage = () if self.name == "zig" else ("-fstack-usage",)
        finished = self._compile(kernel, target, folder, (*_SHARED, *usage), _BINARY, limits, group)
        try:
            code = elf.code_bytes((folder / _BINARY).read_bytes())
        except FileNotFoundError:
            raise self._failed("reported success but wrote no shared library", finished.log) from None
        except ValueError as error:
            raise self._failed(f"reported success but wrote {error} as shared library", finished.log) from None
        facts: dict[str, Json] = {"code_bytes": code, "cpu_seconds": round(finished.cpu_seconds, 3)}
        if (stack := _stack_bytes(folder)) is not None:
            facts["stack_bytes"] = stack
        return Built(_BINARY, "so", facts, finished.log)

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        with Group() as group:
            self._compile(kernel, target, folder, ("-fPIC", "-S"), _ASSEMBLY, BuildLimits(), group)
        return (folder / _ASSEMBLY).read_text(errors="replace")

    def _flags(self, features: tuple[str, ...]) -> tuple[str, ...]:
        # zig takes the processor of -mtune for the one to compile for, with instructions that the target may lack.
        tuning = () if self.name == "zig" else isa.tuning(features, self.family, self.major)
        return (*_OPTIMISE, *isa.flags(features, self.family, self.major), *tuning)

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
        if not isinstance(target, X86):
            raise BadInput(f"{self.name} builds no kernels for {target.name}", allowed="x86 targets")
        write_sources(kernel, folder)
        # Names relative to the folder, so that the binary is the same wherever it was built; the kernel's own flags
        # come last, so that they win and its libraries follow what needs them.
        flags = (*self._flags(target.isa), *kind)
        argv = (*self.command, *flags, "-o", output, kernel.sources[0].name, *kernel.flags)
        argv = argv if "-S" in kind else (*argv, "-lm")
        try:
            finished = process.run(argv, folder=folder, limits=limits, group=group, env=self._env(folder))
        except OSError as error:
            detail = f"{self.name} could not be started: {error.strerror or error}"
            raise BuildError(Verdict.BUILD_FAILED, detail, transient=True) from error
        self._judge(finished, limits)
        return finished

    def _env(self, folder: Path) -> dict[str, str]:
        return {key: value.replace("{folder}", str(folder)) for key, value in self.env.items()}

    def _judge(self, finished: process.Finished, limits: BuildLimits) -> None:
        """Raise what a build that went wrong deserves."""
        log, code = finished.log, finished.code
        if finished.end is process.End.WALL_CLOCK:
            detail = f"{self.name} did not finish within {limits.wall_seconds:g} s"
            raise BuildError(Verdict.BUILD_TIMEOUT, detail, log)
        if finished.end is process.End.OUTPUT:
            raise self._failed(f"printed more than {_size(limits.output_bytes)} and was stopped", log)
        if code == 0:
            return
        if code == -signal.SIGXCPU or _OUT_OF_TIME.search(log) or finished.cpu_seconds >= limits.cpu_seconds:
            detail = f"{self.name} used more than {limits.cpu_seconds:g} s of CPU time"
            raise BuildError(Verdict.BUILD_TIMEOUT, detail, log)
        if "No space left on device" in log:
            raise OSError(errno.ENOSPC, "No space left on device")
        if _OUT_OF_MEMORY.search(log):
            detail = f"{self.name} needed more than {_size(limits.memory_bytes)} of memory"
            raise BuildError(Verdict.OUT_OF_MEMORY, detail, log)
        if code == -signal.SIGKILL or _KILLED.search(log):
            detail = f"{self.name} was killed from outside, most likely because the machine ran out of memory"
            raise BuildError(Verdict.OUT_OF_MEMORY, detail, log, transient=True)
        if code == -signal.SIGXFSZ or _TOO_LARGE.search(log):
            raise self._failed(f"wrote a file of more than {_size(limits.file_bytes)}", log)
        if code < 0:
            raise self._failed(f"crashed with {_signal_name(-code)}", log)
        if crash := _CRASHED.search(log):
            raise self._failed(f"crashed: {crash.group().strip()}", log)
        if error := _ERROR.search(log):
            raise self._failed(f"refused the source: {error.group().strip()}", log)
        said = next((line.strip() for line in log.splitlines() if line.strip()), "and printed nothing")
        raise self._failed(f"ended with exit code {code}: {said}", log)

    def _failed(self, what: str, log: str) -> BuildError:
        return BuildError(Verdict.BUILD_FAILED, f"{self.name} {what}"[:500], log)


def gcc_or_clang(name: str, path: str, description: str) -> CCompiler:
    """The compiler at a path, as its own `--version` describes it. Raises ValueError when that is neither."""
    first = description.splitlines()[0] if description.strip() else ""
    numbers = re.findall(r"\b(\d+)\.\d+(?:\.\d+)?", first)
    version = re.findall(r"\b\d+\.\d+(?:\.\d+)?", first)
    family = "clang" if "clang" in first.lower() else "gcc" if re.search(r"\bGCC\b|gcc", description) else ""
    if not family or not numbers:
        raise ValueError(f"it describes itself as {first!r}")
    return CCompiler(name, version[-1], path, (path,), family, int(numbers[-1]), first)


def zig(path: str, version: str, cache: str) -> CCompiler:
    """The C compiler inside zig, with a libc of its own: all that a machine without a compiler needs."""
    libc = "musl" if platform.libc_ver()[0] != "glibc" else "gnu"
    return CCompiler(
        name="zig",
        version=version,
        path=path,
        # Without a target zig would compile for this machine's processor and nothing else; and its checks for
        # undefined behaviour are not what is to be timed.
        command=(path, "cc", "-target", f"x86_64-linux-{libc}", "-fno-sanitize=undefined", "-g0"),
        family="clang",
        major=18,  # of the oldest zig that deepgen asks for
        identity=f"zig {version}",
        # The C library, compiled once, is shared; objects are ours to keep and go away with the work folder.
        env={"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": "{folder}/zig-cache"},
    )


def write_sources(kernel: Kernel, folder: Path) -> None:
    """Put a kernel's files where a compiler finds them."""
    for source in kernel.sources:
        name = PurePosixPath(source.name)
        if name.is_absolute() or ".." in name.parts or source.name.startswith("-") or not name.parts:
            raise BadInput(f"kernel {kernel.name}: source {source.name!r}", allowed="a relative name in its folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.text)


def _stack_bytes(folder: Path) -> int | None:
    """The deepest stack frame of the kernel's functions: spilled registers show here."""
    frames = [
        int(words[1])
        for report in folder.glob("*.su")
        for line in report.read_text(errors="replace").splitlines()
        if len(words := line.split("\t")) > 1 and words[1].isdigit()
    ]
    return max(frames, default=None)


def _size(size: int) -> str:
    return f"{size / (1 << 30):g} GiB" if size >= 1 << 30 else f"{size / (1 << 20):g} MiB"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
