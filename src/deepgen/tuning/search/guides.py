"""Guides: cost models in the form in which the `model` strategy uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from deepgen.tuning.search.encoding import Floats
from deepgen.tuning.search.lessons import Told
from deepgen.tuning.search.pool import Pool


class Guide(Protocol):
    """Learns from trials, and says of each config in a pool how much its trial may bring."""

    def general(self) -> list[float]:
        """What it knows of the knobs in general, which takes longest to learn."""
        ...

    def recall(self, general: Sequence[float]) -> None:
        """Know that without learning it; ValueError where it cannot have been learned here."""
        ...

    def choose(self, told: Sequence[Told]) -> list[Told]:
        """Those of the trials that it wants to learn from, in the order of telling."""
        ...

    def renew(self, pool: Pool, chosen: Sequence[Told], *, fit: bool = True) -> None:
        """Learn again from what it has chosen, for a pool that holds it. This may take long; it is called rarely.

        Without `fit` it keeps what it knows of the knobs in general.
        """
        ...

    def hear(self, told: Sequence[Told]) -> None:
        """Some trials more; their configs are in the pool. This must be quick."""
        ...

    def imagine(self, place: int) -> None:
        """Until `wake`, take this config of the pool to have ended as predicted."""
        ...

    def wake(self) -> None:
        """Forget what was imagined."""
        ...

    def acquisition(self) -> Floats:
        """How much a trial of each config in the pool may bring, as a logarithm."""
        ...

    def ahead(self, count: int, pending: Sequence[int]) -> list[int]:
        """The places of the next configs, chosen together: quicker than one at a time, and a little less informed."""
        ...
