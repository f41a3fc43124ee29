"""What CUDA and HIP targets have in common: a GPU's limits, instructions and rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from deepgen.targets.base import Target
from deepgen.targets.gpu_facts import Arch, Card
from deepgen.vocabulary.errors import BadInput

Rates: TypeAlias = "tuple[tuple[str, float], ...]"  # (dtype, GFLOP/s) pairs: hashable, and JSON both ways
G = TypeVar("G", bound="Gpu")


@dataclass(frozen=True)
class Gpu(Target):
    """A GPU. For AMD's, read compute unit for multiprocessor, wavefront for warp, LDS for shared memory."""

    runner: ClassVar[str] = "gpu"

    arch: str  # as the compiler takes it: sm_90a, gfx906
    model: str  # a typical card of that architecture, or the one found
    warp: int
    multiprocessors: int
    shared_per_block: int  # the most that one block can ask for, dynamic
    shared_per_sm: int
    shared_reserved: int  # of each block's share, reserved by the system
    shared_granule: int
    registers_per_sm: int  # 32-bit ones
    registers_per_thread: int
    register_granule: int  # per thread
    register_files: int  # a multiprocessor's registers lie in this many parts; a warp's are in one
    threads_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    l2_bytes: int
    bandwidth_gbs: float
    peaks: Rates  # of the fastest unit for the dtype: matrix units where the chip has them; dense
    vector_peaks: Rates  # of plain arithmetic, packed where the chip supports it
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
        """GFLOP/s of the fastest unit; None when the chip does not compute in that format."""
        return dict(self.peaks).get(dtype)

    def vector_peak(self, dtype: str) -> float | None:
        """GFLOP/s without matrix units."""
        return dict(self.vector_peaks).get(dtype)

    def runs_on(self, found: Target) -> bool:
        return isinstance(found, type(self)) and self.arch == found.arch

    def describe(self) -> str:
        return f"{self.name}: {self.model} ({self.arch}), {self.multiprocessors} multiprocessors"

    @classmethod
    def from_json(cls: type[G], data: Mapping[str, Any]) -> G:
        rates = {key: tuple((str(d), float(r)) for d, r in data[key]) for key in ("peaks", "vector_peaks")}
        return cls(**{**data, **rates, "features": tuple(data["features"])})


def by_name(cls: type[G], kind: str, word: str, arches: Mapping[str, Arch], cards: Mapping[str, Card]) -> G:
    """The target `kind:word`, where the word is an architecture, meaning its first card, or a card."""
    if word in cards:
        return from_card(cls, f"{kind}:{word}", newest(cards[word].arch, arches), arches, cards[word])
    if word not in arches:
        raise BadInput(
            f"unknown target {kind}:{word}", allowed=f"{kind}:native, {kind}: and one of {_list(arches, cards)}"
        )
    card = next(card for card in cards.values() if card.arch == plain(word))
    return from_card(cls, f"{kind}:{word}", word, arches, card)


def from_card(cls: type[G], name: str, arch: str, arches: Mapping[str, Arch], card: Card) -> G:
    """A card's facts and its architecture's, as one target."""
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
    """The variant of an architecture with all its instructions: sm_90a for sm_90. It runs on the same chips."""
    return arch + "a" if arch + "a" in arches else arch


def plain(arch: str) -> str:
    return arch.rstrip("a") if arch.startswith("sm_") else arch


def _rates(tera: Mapping[str, float]) -> Rates:
    return tuple((dtype, round(rate * 1000.0, 3)) for dtype, rate in tera.items())


def _list(arches: Mapping[str, Arch], cards: Mapping[str, Card]) -> str:
    return ", ".join((*arches, *cards))
