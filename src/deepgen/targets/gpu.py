"""GPUs: their limits, instructions and rates, and occupancy: how many blocks of a kernel fit on a multiprocessor.

CUDA targets are `cuda:sm_70` to `cuda:sm_120a` with a typical card's facts; HIP targets are AMD GPUs and the Hygon DCU
by architecture (`hip:gfx90a`). Either can also be a card by name (`hip:z100`), or the detected card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from deepgen.targets.base import Target
from deepgen.targets.gpu_facts import CUDA_ARCHES, CUDA_CARDS, HIP_ARCHES, HIP_CARDS, Arch, Card
from deepgen.vocabulary.errors import BadInput

Rates: TypeAlias = "tuple[tuple[str, float], ...]"  # (dtype, GFLOP/s) pairs: hashable, and convertible to and from JSON
G = TypeVar("G", bound="Gpu")


@dataclass(frozen=True)
class Gpu(Target):
    """A GPU. For AMD, read compute unit for multiprocessor, wavefront for warp, LDS for shared memory."""

    runner: ClassVar[str] = "gpu"

    arch: str  # in the compiler's form: sm_90a, gfx906
    model: str  # a typical card of that architecture, or the detected one
    warp: int
    multiprocessors: int
    shared_per_block: int  # the most dynamic shared memory that one block can request
    shared_per_sm: int
    shared_reserved: int  # reserved by the system for each block
    shared_granule: int
    registers_per_sm: int  # 32-bit registers
    registers_per_thread: int
    register_granule: int  # per thread
    register_files: int  # a multiprocessor's registers are divided into this many parts; a warp's are all in one
    threads_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    l2_bytes: int
    bandwidth_gbs: float
    peaks: Rates  # of the fastest unit for the dtype, such as matrix units; dense
    vector_peaks: Rates  # of plain arithmetic, packed if the chip supports it
    features: tuple[str, ...]

    def has(self, *features: str) -> bool:
        return set(features) <= set(self.features)

    @property
    def built_for(self) -> str:
        return self.arch

    @property
    def device_kind(self) -> str:
        return self.model

    @property
    def bandwidth(self) -> float:
        return self.bandwidth_gbs

    @property
    def launch_seconds(self) -> float:
        return 2e-6

    def peak(self, dtype: str) -> float | None:
        """GFLOP/s of the fastest unit; None if the chip does not compute in that format."""
        return dict(self.peaks).get(dtype)

    def vector_peak(self, dtype: str) -> float | None:
        """GFLOP/s without matrix units."""
        return dict(self.vector_peaks).get(dtype)

    def runs_on(self, device: Target) -> bool:
        return isinstance(device, type(self)) and self.arch == device.arch

    @property
    def cache_bytes(self) -> int:
        return self.l2_bytes

    def residence(self, threads: int, registers: int, shared: int) -> tuple[int, float]:
        return (
            blocks_resident(self, threads, registers, shared),
            round(occupancy(self, threads, registers, shared), 4),
        )

    def describe(self) -> str:
        return f"{self.name}: {self.model} ({self.arch}), {self.multiprocessors} multiprocessors"


def by_name(cls: type[G], kind: str, word: str, arches: Mapping[str, Arch], cards: Mapping[str, Card]) -> G:
    """The target `kind:word`, where the word is a card, or an architecture, which stands for its first card."""
    if word in cards:
        return from_card(cls, f"{kind}:{word}", newest(cards[word].arch, arches), arches, cards[word])
    if word not in arches:
        raise BadInput(
            f"unknown target {kind}:{word}", allowed=f"{kind}:native, {kind}: and one of {_list(arches, cards)}"
        )
    card = next(card for card in cards.values() if card.arch == plain(word))
    return from_card(cls, f"{kind}:{word}", word, arches, card)


def from_card(cls: type[G], name: str, arch: str, arches: Mapping[str, Arch], card: Card) -> G:
    """The facts of a card and of its architecture, as one target."""
    return cls(
        name=name,
        arch=arch,
        model=card.model,
        multiprocessors=card.multiprocessors,
        l2_bytes=card.l2_bytes,
        bandwidth_gbs=card.bandwidth_gbs,
        peaks=_rates({**card.vector, **card.matrix}),
        vector_peaks=_rates(card.vector),
        **asdict(arches[arch]),
    )


def newest(arch: str, arches: Mapping[str, Arch]) -> str:
    """The variant of an architecture with all its instructions, such as sm_90a for sm_90. It runs on the same chips."""
    return arch + "a" if arch + "a" in arches else arch


def plain(arch: str) -> str:
    return arch.rstrip("a") if arch.startswith("sm_") else arch


def _rates(tera: Mapping[str, float]) -> Rates:
    return tuple((dtype, round(rate * 1000.0, 3)) for dtype, rate in tera.items())


def _list(arches: Mapping[str, Arch], cards: Mapping[str, Card]) -> str:
    return ", ".join((*arches, *cards))


@dataclass(frozen=True)
class Cuda(Gpu):
    """An NVIDIA GPU."""

    languages: ClassVar[tuple[str, ...]] = ("cuda", "triton")

    @property
    def sm(self) -> int:
        """The compute capability as a number: 90 for sm_90a."""
        return int(self.arch[len("sm_") :].rstrip("a"))

    def runs_on(self, device: Target) -> bool:
        if not isinstance(device, Cuda):
            return False
        if self.arch.endswith("a"):
            return self.sm == device.sm
        return self.sm // 10 == device.sm // 10 and self.sm <= device.sm


def parse_cuda(word: str) -> Cuda:
    """The target of an architecture or card; needs no device."""
    return by_name(Cuda, "cuda", word, CUDA_ARCHES, CUDA_CARDS)


def found_cuda(model: str, sm: int, clock_mhz: int, limits: Mapping[str, Any]) -> Cuda:
    """The card that a driver describes; `limits` are fields of Cuda. The rest is from the datasheet."""
    arch = newest(f"sm_{sm}", CUDA_ARCHES)
    if arch not in CUDA_ARCHES:
        raise BadInput(f"{model} has compute capability {sm / 10:g}", allowed=f"one of {', '.join(CUDA_ARCHES)}")
    card = _same(model) or _scaled(model, f"sm_{sm}", clock_mhz, limits["multiprocessors"])
    return replace(from_card(Cuda, "cuda:native", arch, CUDA_ARCHES, card), **limits)


def _same(model: str) -> Card | None:
    return next((card for card in CUDA_CARDS.values() if card.model == model), None)


def _scaled(model: str, arch: str, clock_mhz: int, multiprocessors: int) -> Card:
    """A card that no table lists: its architecture's typical card, with rates scaled by clock and multiprocessors."""
    typical = next(card for card in CUDA_CARDS.values() if card.arch == arch)
    scale = multiprocessors * clock_mhz / (typical.multiprocessors * typical.clock_mhz)
    return replace(
        typical,
        model=model,
        vector={dtype: rate * scale for dtype, rate in typical.vector.items()},
        matrix={dtype: rate * scale for dtype, rate in typical.matrix.items()},
    )


@dataclass(frozen=True)
class Hip(Gpu):
    """An AMD GPU, or one that runs the same code."""

    languages: ClassVar[tuple[str, ...]] = ("hip", "triton")


def parse_hip(word: str) -> Hip:
    """The target of an architecture or card; needs no device."""
    return by_name(Hip, "hip", word, HIP_ARCHES, HIP_CARDS)


def found_hip(model: str, arch: str, limits: Mapping[str, Any]) -> Hip:
    """The card that a driver describes; `limits` are fields of Hip. Rates are those of the most similar card."""
    if arch not in HIP_ARCHES:
        raise BadInput(f"{model} is {arch}", allowed=f"one of {', '.join(HIP_ARCHES)}")
    similar = [card for card in HIP_CARDS.values() if card.arch == arch]
    # Cards of one architecture differ in their number of compute units: 60 in an MI50, 64 in a Z100.
    card = min(similar, key=lambda card: abs(card.multiprocessors - limits["multiprocessors"]))
    return replace(from_card(Hip, "hip:native", arch, HIP_ARCHES, card), model=model, **limits)


def blocks_resident(gpu: Gpu, threads: int, registers: int, shared: int) -> int:
    """The blocks of that many threads, registers per thread and shared bytes that fit on one multiprocessor."""
    if threads > gpu.threads_per_block or registers > gpu.registers_per_thread or shared > gpu.shared_per_block:
        return 0
    warps = _ceil(threads, gpu.warp)
    by_shared = gpu.shared_per_sm // max(_round(shared + gpu.shared_reserved, gpu.shared_granule), 1)
    return min(gpu.blocks_per_sm, warps_by_registers(gpu, registers) // warps, _most_warps(gpu) // warps, by_shared)


def warps_by_registers(gpu: Gpu, registers: int) -> int:
    """How many warps, with that many registers per thread, fit into one multiprocessor's registers."""
    each = _round(max(registers, 1), gpu.register_granule) * gpu.warp
    return gpu.register_files * (gpu.registers_per_sm // gpu.register_files // each)


def occupancy(gpu: Gpu, threads: int, registers: int, shared: int) -> float:
    """The share of a multiprocessor's warps that can be resident."""
    return blocks_resident(gpu, threads, registers, shared) * _ceil(threads, gpu.warp) / _most_warps(gpu)


def _most_warps(gpu: Gpu) -> int:
    return gpu.threads_per_sm // gpu.warp


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def _round(value: int, to: int) -> int:
    return _ceil(value, to) * to
