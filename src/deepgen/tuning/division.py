"""How a time budget is divided among studies: each gets time by what it may gain."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_SECONDS = 20.0  # of a study: less is not worth its start and its finals
_ALIKE = 0.5  # of the time is divided equally: what is gained in a study's first seconds is most of what it gains


def divided(gains: Sequence[float], seconds: float, least: float = LEAST_SECONDS) -> list[float]:
    """The seconds of each study, 0 for one that is left out.

    Those that may gain least are left out until each of the others gets enough time. One always stays.
    """
    kept = sorted(range(len(gains)), key=lambda i: -gains[i])
    while len(kept) > 1 and seconds * _share(gains, kept, kept[-1]) < least:
        kept.pop()
    return [seconds * _share(gains, kept, i) if i in kept else 0.0 for i in range(len(gains))]


def _share(gains: Sequence[float], kept: Sequence[int], one: int) -> float:
    equal, total = 1.0 / len(kept), sum(gains[i] for i in kept)
    return _ALIKE * equal + (1.0 - _ALIKE) * (gains[one] / total if total > 0 else equal)
