"""Strategies that learn nothing: random search, and the whole space in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from deepgen.tuning.search.base import Fresh, Setting, Shuffle, check_options
from deepgen.vocabulary import BadInput, Trial


class Random:
    """Draws configs in a seeded random order of the whole space."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, setting: Setting) -> None:
        check_options("random", setting.options, self.OPTIONS)
        self._fresh = Fresh(setting)

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = self._fresh.starts(n)
        return self._fresh.configs(ranks + self._fresh.random(n - len(ranks)))

    def tell(self, trial: Trial) -> None:
        """Chance learns nothing."""


class Exhaustive:
    """Walks the space by rank. Options: `start_from`, the first place; `shuffled`, a seeded order instead of rank's."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {"start_from": 0, "shuffled": False}

    def __init__(self, setting: Setting) -> None:
        options = check_options("exhaustive", setting.options, self.OPTIONS)
        self._space = setting.space
        self._count = setting.space.ranks
        self._order = Shuffle(self._count, setting.seed) if options["shuffled"] else range(self._count)
        self._next = int(options["start_from"])
        if not 0 <= self._next <= self._count:
            raise BadInput(f"start_from is {self._next}", allowed=f"a rank from 0 to {self._count - 1}")

    def ask(self, n: int) -> list[dict[str, Any]]:
        listed: list[int] = []
        while len(listed) < n and self._next < self._count:
            places = range(self._next, min(self._next + n - len(listed), self._count))
            self._next = places.stop
            ranks = [self._order[place] for place in places]
            listed += [rank for rank, valid in zip(ranks, self._space.are_ranks(ranks), strict=True) if valid]
        return [self._space.at(rank) for rank in listed]

    def tell(self, trial: Trial) -> None:
        """The order does not depend on results."""
