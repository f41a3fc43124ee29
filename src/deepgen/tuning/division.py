"""How a time budget is divided among studies: each gets time by what it may gain."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_SECONDS = 20.0  # of a study: less is not worth its start and its finals


def divided(gains: Sequence[float], seconds: float, least: float = LEAST_SECONDS) -> list[float]:
    """The seconds of each study, 0 for one that is left out.

    Those that may gain least are left out until each of the others gets enough time. One always stays.
    """
    kept = sorted(range(len(gains)), key=lambda i: -gains[i])
    while len(kept) > 1 and seconds * gains[kept[-1]] < least * sum(gains[i] for i in kept):
        kept.pop()
    total = sum(gains[i] for i in kept)
    shares = {i: gains[i] / total if total > 0 else 1.0 / len(kept) for i in kept}
    return [seconds * shares.get(i, 0.0) for i in range(len(gains))]
