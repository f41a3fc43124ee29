"""Exhaustive search: every config in rank order, from a rank on."""

from __future__ import annotations

from typing import Any

from deepgen.search.base import Setting
from deepgen.vocabulary import BadInput, Trial


class Exhaustive:
    """Walks the space by rank. Option `start_from`: the first rank."""

    def __init__(self, setting: Setting) -> None:
        self._space = setting.space
        self._count = setting.space.count()
        self._next = int(setting.options.get("start_from", 0))
        if not 0 <= self._next <= self._count:
            raise BadInput(f"start_from is {self._next}", allowed=f"a rank from 0 to {self._count - 1}")

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = range(self._next, min(self._next + n, self._count))
        self._next = ranks.stop
        return [self._space.at(rank) for rank in ranks]

    def tell(self, trial: Trial) -> None:
        """The order does not depend on results."""
