"""What building is, whatever the language: the limits, the result, the failure, and the toolchain that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from deepgen.targets import Target
from deepgen.toolchains.group import Group
from deepgen.vocabulary import DeepgenError, Json, Kernel, LaunchPlan, Verdict


@dataclass(frozen=True)
class BuildLimits:
    """How much a build may take before it is stopped."""

    wall_seconds: float = 120.0  # does not tick while builds are paused
    cpu_seconds: int = 120  # of each process
    memory_bytes: int = 4 << 30  # of each process
    log_bytes: int = 64 << 10  # kept of what the compiler prints: the first and the last half of it
    output_bytes: int = 16 << 20  # printed; a compiler that prints more is broken and is stopped
    file_bytes: int = 1 << 30  # of each file written


class BuildError(DeepgenError):
    """A kernel that could not be built: the verdict, one sentence, and what the compiler printed."""

    def __init__(self, verdict: Verdict, detail: str, log: str = "", *, transient: bool = False) -> None:
        super().__init__(detail)
        self.verdict, self.detail, self.log = verdict, detail, log
        self.transient = transient  # the machine's fault rather than the kernel's: worth one more try

    @property
    def lasting(self) -> bool:
        """Whether the same build would surely fail again, so that the failure may be remembered."""
        return self.verdict is Verdict.BUILD_FAILED and not self.transient


@dataclass(frozen=True)
class Built:
    """What a toolchain leaves in the work folder."""

    binary: str  # a name in the folder
    format: str  # so, cubin, hsaco, riscv, sim
    facts: Mapping[str, Json] = field(default_factory=dict)
    log: str = ""
    plan: LaunchPlan | None = None  # the kernel's, completed: entry, shared bytes, threads where only it knows them
    beside: tuple[str, ...] = ()  # other files of the folder that stay with the binary


@dataclass(frozen=True)
class Recipe:
    """What builds the same binary without deepgen, in a folder with the kernel's sources."""

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)  # that the command needs there, too


class Toolchain(Protocol):
    """Turns the kernels of one language into binaries."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def path(self) -> str:
        """The executable; empty when there is none."""
        ...

    @property
    def id(self) -> str:
        """Changes whenever the same kernel might build to other code."""
        ...

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        """Build in `folder`, which is empty. Raises BuildError; an OSError means that the folder cannot be used."""
        ...

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        """The kernel in the target's assembly language."""
        ...

    def recipe(self, kernel: Kernel, target: Target) -> Recipe | None:
        """How others build it; None where only deepgen can."""
        ...
