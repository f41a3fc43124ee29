"""The interface of toolchains in any language: limits, results and failures of a build.

Some compiler flags run programs (`-wrapper`, `-B`), load plug-ins, or read and write other files. A kernel emitted here
by a generator may have any flag; one read from a folder may only have plain optimisation flags and those that deepgen's
own generators use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from deepgen.targets import Target
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, DeepgenError, Json, Kernel, LaunchPlan, Verdict


@dataclass(frozen=True)
class BuildLimits:
    """The limits of a build before it is stopped."""

    wall_seconds: float = 120.0  # not counted while builds are paused
    cpu_seconds: int = 120  # per process
    memory_bytes: int = 4 << 30  # per process
    log_bytes: int = 64 << 10  # of compiler output that is kept: its first and last half
    output_bytes: int = 16 << 20  # of compiler output; a compiler that prints more is stopped
    file_bytes: int = 1 << 30  # per written file


class BuildError(DeepgenError):
    """A kernel that could not be built: the verdict, one sentence, and the compiler's output."""

    def __init__(self, verdict: Verdict, detail: str, log: str = "", *, transient: bool = False) -> None:
        super().__init__(detail)
        self.verdict, self.detail, self.log = verdict, detail, log
        self.transient = transient  # the machine's fault rather than the kernel's: worth another attempt

    @property
    def lasting(self) -> bool:
        """Whether the same build would certainly fail again, so that the failure may be cached."""
        return self.verdict is Verdict.BUILD_FAILED and not self.transient


@dataclass(frozen=True)
class Built:
    """The result of a build in the work folder."""

    binary: str  # file name in the folder
    format: str  # so, cubin, hsaco, riscv, sim
    facts: Mapping[str, Json] = field(default_factory=dict)
    log: str = ""
    plan: LaunchPlan | None = None  # the kernel's plan, completed: entry, shared bytes, threads if only it knows them
    beside: tuple[str, ...] = ()  # other files of the folder to keep with the binary


@dataclass(frozen=True)
class Recipe:
    """How to build the same binary without deepgen, in a folder with the kernel's sources."""

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)  # other files that the command needs there
    first: tuple[tuple[str, ...], ...] = ()  # commands that come before it


class Toolchain(Protocol):
    """Builds the kernels of one language."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def path(self) -> str:
        """The executable; empty if there is none."""
        ...

    @property
    def id(self) -> str:
        """An id that changes whenever the same kernel might be built to different code."""
        ...

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        """Build in `folder`, which is empty. Raises BuildError; an OSError means that the folder cannot be used."""
        ...

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        """The kernel in the target's assembly language."""
        ...

    def recipe(self, kernel: Kernel, target: Target) -> Recipe | None:
        """How to build it without deepgen; None if that is impossible."""
        ...


_DEFINE = r"-D[A-Za-z_]\w*(=[^\x00-\x1f]*)?"
_MATHS = (
    r"-f(no-)?(fast-math|finite-math-only|math-errno|trapping-math|associative-math|signed-zeros|reciprocal-math"
    r"|rounding-math|unsafe-math-optimizations|strict-aliasing|omit-frame-pointer|unroll-loops|unroll-all-loops"
    r"|peel-loops|vectorize|tree-vectorize|tree-loop-vectorize|slp-vectorize|tree-slp-vectorize|inline-functions"
    r"|inline|schedule-insns2?|prefetch-loop-arrays|ivopts|gcse|openmp-simd|PIC)|-ffp-contract=(fast|on|off)"
)
# Not -mllvm, which passes the next word to the optimiser: that can load plug-ins.
_MACHINE = r"-m(?!llvm)(no-)?[a-z0-9][a-z0-9.-]*|-m(arch|cpu|tune|fpu|abi|prefer-vector-width|cmodel)=[\w.+-]+"
_OPTIMISE = r"-O([0-3sgz]|fast)?"
_C = (
    _DEFINE,
    _OPTIMISE,
    _MACHINE,
    _MATHS,
    r"-std=(c|gnu)(\+\+)?[0-9a-z]+",
    "-pthread",
    "-lm",
    "-w",
    "-g0",
    "-fopenmp",
    r"-lstdc\+\+",
)
_HIP = (_DEFINE, _OPTIMISE, _MACHINE, _MATHS, r"-std=(c|gnu)\+\+[0-9a-z]+", r"--gpu-max-threads-per-block=\d+", "-w")
_CUDA = (
    _DEFINE,
    r"--?std=c\+\+[0-9a-z]+",
    r"--?(use_fast_math|extra-device-vectorization|restrict|lineinfo|disable-warnings|default-device)",
    r"--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)",
    r"--?maxrregcount=\d+",
)
_PLAIN = {"c": _C, "c++": _C, "cuda": _CUDA, "hip": _HIP}
ALLOWED = "plain flags such as -O3, -mavx2, -ffast-math, -DNAME=1; only a generator may set others"


def strange_flag(language: str, flags: Iterable[str]) -> str | None:
    """The first flag that is not on the language's list, or None."""
    plain = "|".join(f"(?:{pattern})" for pattern in _PLAIN[language]) if language in _PLAIN else None
    return next((flag for flag in flags if plain is None or not re.fullmatch(plain, flag)), None)


def require_plain(kernel: Kernel, where: str) -> None:
    """Raises BadInput for a flag that is not allowed in a kernel from a file."""
    if kernel.language == "triton":
        what = f"its kernel {kernel.name[:60]!r} is in Triton: building it would run its code"
        raise BadInput(what, where=where, allowed="use a kernel that is already built, or tune one here")
    strange = strange_flag(kernel.language, kernel.flags)
    if strange is not None:
        what = f"its kernel {kernel.name[:60]!r} passes the compiler {strange[:80]!r}"
        raise BadInput(what, where=where, allowed=ALLOWED)
