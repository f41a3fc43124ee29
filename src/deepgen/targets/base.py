"""The interface of targets: a name, hardware facts as data, and capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from deepgen.vocabulary.codec import Serializable
from deepgen.vocabulary.json import JsonObject, digest


@dataclass(frozen=True)
class Target(Serializable):
    """The device that a kernel runs on. Each kind of target adds its own facts as fields.

    Code outside `targets` and the generators queries a target's capabilities, never its kind.
    """

    languages: ClassVar[tuple[str, ...]] = ()  # of its kernels; our own helpers use the first
    runner: ClassVar[str] = ""  # how its kernels are measured: cpu, gpu, riscv, sim, or a plug-in's name
    computes: ClassVar[bool] = True  # whether its kernels compute results, so that they can be called
    simulated: ClassVar[bool] = False  # whether its times are from a model
    shares_cores_with_builds: ClassVar[bool] = False  # if so, builds are paused while a kernel is timed

    name: str  # kind:arch, such as x86:native

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def device_kind(self) -> str:
        """Devices with the same value have the same times, so they may share a study."""
        return self.name

    @property
    def proxy(self) -> str:
        """What is reported instead of times, in words; empty if times are measured."""
        return ""

    @property
    def counts_a_second(self) -> float:
        """The number of counts shown as one second, if counts replace times."""
        return 1.0

    @property
    def shown(self) -> str:
        """Its name as a heading for times and rates; if these are not measured, with what they are."""
        return f"{self.name} ({self.proxy})" if self.proxy else self.name

    def proxy_row(self) -> JsonObject:
        """The same as data for programs; empty if times are measured."""
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
        """The instruction sets that a CPU needs to run its binaries, with the Linux kernel's names; empty for GPUs."""
        return ()

    @property
    def host_cores(self) -> int:
        """The number of this host's cores that its kernels use; 0 if they run elsewhere."""
        return 0

    @property
    def cache_bytes(self) -> int:
        """The total size of its caches in bytes: reading more than this evicts everything else."""
        return 32 << 20

    def has(self, *features: str) -> bool:
        """Whether it has all of these features, named as in its kind of target."""
        return False

    def residence(self, threads: int, registers: int, shared: int) -> tuple[int, float] | None:
        """Occupancy: how many blocks of a kernel fit on a multiprocessor, and the share of its warps that they occupy;
        None without multiprocessors. `threads` and bytes of `shared` memory are per block, `registers` per thread."""
        return None

    def peak(self, dtype: str) -> float | None:
        """GFLOP/s in a dtype from the datasheet; None if it has to be measured or does not exist."""
        return None

    def runs_on(self, device: Target) -> bool:
        """Whether code built for this target runs on a detected device."""
        return self == device

    def limited_to(self, cores: int | None) -> Target:
        """The target for a kernel that may use only this many of the host's cores; None: all."""
        return self

    def describe(self) -> str:
        """One short line for people."""
        return self.name

    def build_facts(self) -> JsonObject:
        """The facts that a binary depends on, because the compiler uses them."""
        return self.to_json()

    def fingerprint(self) -> str:
        """A hash that changes when a fact changes: a study belongs to one machine, not to a name."""
        return digest(self.to_json(), 16)
