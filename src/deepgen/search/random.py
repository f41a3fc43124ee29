"""Random search: uniform over the valid space, no repeats, the starts first."""

from __future__ import annotations

from typing import Any

from deepgen.search.base import Setting
from deepgen.search.shuffle import Shuffle
from deepgen.vocabulary import Trial


class Random:
    """Draws configs in a seeded random order of the whole space."""

    def __init__(self, setting: Setting) -> None:
        self._space = setting.space
        self._order = Shuffle(setting.space.count(), setting.seed)
        self._starts = list(dict.fromkeys(setting.space.rank(dict(c)) for c in setting.starts))
        self._started = 0
        self._position = 0

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = self._starts[self._started : self._started + n]
        self._started += len(ranks)
        while len(ranks) < n and self._position < self._order.count:
            rank = self._order[self._position]
            self._position += 1
            if rank not in self._starts:
                ranks.append(rank)
        return [self._space.at(rank) for rank in ranks]

    def tell(self, trial: Trial) -> None:
        """Chance learns nothing."""
