"""HIP targets: AMD GPUs and the Hygon DCU, by architecture (`hip:gfx90a`) or card (`hip:z100`), or the card found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from deepgen.targets.gpu import Gpu, by_name, from_card
from deepgen.targets.gpu_facts import HIP_ARCHES, HIP_CARDS
from deepgen.vocabulary.errors import BadInput


@dataclass(frozen=True)
class Hip(Gpu):
    """An AMD GPU, or one that runs the same code."""

    languages: ClassVar[tuple[str, ...]] = ("hip", "triton")


def parse_hip(word: str) -> Hip:
    """The target of that architecture or card; needs no device."""
    return by_name(Hip, "hip", word, HIP_ARCHES, HIP_CARDS)


def found_hip(model: str, arch: str, limits: Mapping[str, Any]) -> Hip:
    """The card that a driver describes; `limits` are fields of Hip. Rates are those of the card it is most like."""
    if arch not in HIP_ARCHES:
        raise BadInput(f"{model} is {arch}", allowed=f"one of {', '.join(HIP_ARCHES)}")
    similar = [card for card in HIP_CARDS.values() if card.arch == arch]
    # Cards of one architecture differ in their number of compute units: 60 in an MI50, 64 in a Z100.
    card = min(similar, key=lambda card: abs(card.multiprocessors - limits["multiprocessors"]))
    return replace(from_card(Hip, "hip:native", arch, HIP_ARCHES, card), model=model, **limits)
