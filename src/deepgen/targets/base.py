"""The interface of targets: a name, hardware facts as data, and capabilities."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from deepgen.vocabulary.json import JsonObject, digest


@dataclass(frozen=True)
class Target:
    """Where a kernel runs. Each kind of target adds its own facts as fields.

    Code outside `targets` and the generators asks what a target can do, never which kind it is.
    """

    languages: ClassVar[tuple[str, ...]] = ()  # that its kernels are written in; our own helpers use the first
    runner: ClassVar[str] = ""  # how its kernels are measured: cpu, gpu, riscv, sim, or a plug-in's name
    computes: ClassVar[bool] = True  # whether its kernels give results, so that they can be called
    simulated: ClassVar[bool] = False  # whether its times are a model's
    shares_cores_with_builds: ClassVar[bool] = False  # so that builds are paused while a kernel is timed

    name: str  # kind:arch, such as x86:native

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def device_kind(self) -> str:
        """Devices with the same value give the same times, so they may share a study."""
        return self.name

    @property
    def proxy(self) -> str:
        """What is reported instead of times, in words; empty if times are measured."""
        return ""

    @property
    def counts_a_second(self) -> float:
        """How many counts are shown as one second, if counts replace times."""
        return 1.0

    @property
    def shown(self) -> str:
        """Its name as a heading of times and rates, with what these are where they are not measured."""
        return f"{self.name} ({self.proxy})" if self.proxy else self.name

    def proxy_row(self) -> JsonObject:
        """The same among facts that programs read; nothing where times are measured."""
        return {"proxy": self.proxy} if self.proxy else {}

    @property
    def bandwidth(self) -> float | None:
        """Memory bandwidth in GB/s, if a datasheet gives it."""
        return None

    @property
    def launch_seconds(self) -> float:
        """The time of an empty kernel."""
        return 0.0

    @property
    def built_for(self) -> str:
        """The architecture of its binaries, as compilers name it."""
        return self.name

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """What a CPU must have to run its binaries, by the Linux kernel's names; GPUs name an architecture."""
        return ()

    @property
    def host_cores(self) -> int:
        """How many of this host's cores its kernels run on; 0 where they run elsewhere."""
        return 0

    @property
    def cache_bytes(self) -> int:
        """Total bytes of its caches: reading more than this evicts everything else."""
        return 32 << 20

    def has(self, *features: str) -> bool:
        """Whether it has all of these, by the names that its kind of target gives them."""
        return False

    def residence(self, threads: int, registers: int, shared: int) -> tuple[int, float] | None:
        """Occupancy: how many blocks of a kernel fit a multiprocessor, and the share of its warps that they fill; None
        without multiprocessors. `threads` and bytes of `shared` memory are a block's, `registers` a thread's."""
        return None

    def peak(self, dtype: str) -> float | None:
        """GFLOP/s in a dtype from the datasheet; None if it has to be measured or does not exist."""
        return None

    def runs_on(self, device: Target) -> bool:
        """Whether code built for this target runs on a device that was found."""
        return self == device

    def limited_to(self, cores: int | None) -> Target:
        """The target as seen by a kernel that may use this many of the host's cores; None: all."""
        return self

    def describe(self) -> str:
        """One short line for people."""
        return self.name

    def to_json(self) -> JsonObject:
        return asdict(self)

    def build_facts(self) -> JsonObject:
        """The facts that a binary depends on, because the compiler uses them."""
        return self.to_json()

    def fingerprint(self) -> str:
        """Changes when a fact changes: a study belongs to one machine, not to a name."""
        return digest(self.to_json(), 16)
