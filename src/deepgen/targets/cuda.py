"""CUDA targets: `cuda:sm_70` to `cuda:sm_120a` with a typical card's facts, a card by its name, or the card found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from deepgen.targets.base import Target
from deepgen.targets.gpu import Gpu, by_name, from_card, newest
from deepgen.targets.gpu_facts import CUDA_ARCHES, CUDA_CARDS, Card
from deepgen.vocabulary.errors import BadInput


@dataclass(frozen=True)
class Cuda(Gpu):
    """An NVIDIA GPU."""

    languages: ClassVar[tuple[str, ...]] = ("cuda", "triton")

    @property
    def sm(self) -> int:
        """The compute capability as a number: 90 for sm_90a."""
        return int(self.arch[len("sm_") :].rstrip("a"))

    def runs_on(self, found: Target) -> bool:
        if not isinstance(found, Cuda):
            return False
        if self.arch.endswith("a"):
            return self.sm == found.sm
        return self.sm // 10 == found.sm // 10 and self.sm <= found.sm


def parse_cuda(word: str) -> Cuda:
    """The target of that architecture or card; needs no device."""
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
    """A card that no table lists: its architecture's typical card with rates scaled by clock and multiprocessors."""
    typical = next(card for card in CUDA_CARDS.values() if card.arch == arch)
    scale = multiprocessors * clock_mhz / (typical.multiprocessors * typical.clock_mhz)
    return replace(
        typical,
        model=model,
        vector={dtype: rate * scale for dtype, rate in typical.vector.items()},
        matrix={dtype: rate * scale for dtype, rate in typical.matrix.items()},
    )
