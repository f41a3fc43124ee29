"""Decides which fault strikes when: drawn from a seed, spread over the available time, and counted once it has hit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from faults.kinds import BETWEEN, Kind, Scene, Struck

LOOK = 0.1  # seconds between attempts to find a target
PATIENCE = 2.0  # seconds to wait for a target; then a later fault goes first


class Schedule:
    """Faults one after the other; one that lasts is undone before the next begins.

    One without a target stays first in line.
    """

    def __init__(self, kinds: Sequence[Kind], count: int, seconds: float, overtime: float, chance: Random) -> None:
        """`overtime`: seconds beyond the available time, for faults that have not hit by then."""
        self.count, self._chance = count, chance
        self._deck = chance.choices(kinds, [kind.weight for kind in kinds], k=count)
        # Every kind once, as far as the count allows: the rest is random.
        self._deck[: min(len(kinds), count)] = chance.sample(list(kinds), min(len(kinds), count))
        chance.shuffle(self._deck)
        self._until = time.monotonic() + seconds
        self._latest = self._until + overtime
        self._due = time.monotonic() + 1.0
        self._lasting: tuple[Struck, float] | None = None
        self._passed_over: set[Kind] = set()
        self._look = 0.0  # time of the next attempt
        self._kept_away: dict[str, int] = {}  # kinds, and the trial from which on they may strike again
        self.hits: Counter[str] = Counter()
        self.groups: Counter[str] = Counter()

    @property
    def over(self) -> bool:
        return not self._deck or time.monotonic() > self._latest

    @property
    def left(self) -> Counter[str]:
        """Faults that have not hit yet."""
        return Counter(kind.name for kind in self._deck)

    @property
    def lasting(self) -> Struck | None:
        """The fault that has hit and is not over."""
        return self._lasting[0] if self._lasting is not None else None

    def new_study(self) -> None:
        self._kept_away.clear()

    def step(self, scene: Scene) -> Struck | None:
        """Strike if it is time; returns what has just hit."""
        self.pass_on()
        now = time.monotonic()
        if self._lasting is not None or self.over or now < max(self._due, self._look):
            return None
        self._look = now + LOOK
        for place, kind in enumerate(line := list(dict.fromkeys(self._deck))):
            if place > 0 and kind not in self._passed_over and now < self._due + PATIENCE:
                return None
            near = kind.keeps_distance and scene.ended < self._kept_away.get(kind.name, 0)
            if not near and (results := kind.strike(scene)) is not None:
                self._passed_over.update(line[:place])
                self._hit(kind, results, scene.ended)
                return results
        return None

    def _hit(self, kind: Kind, results: Struck, ended: int) -> None:
        self._deck.remove(kind)
        self.hits[kind.name] += 1
        self.groups[kind.group] += 1
        self._kept_away[kind.name] = ended + BETWEEN
        until = time.monotonic() + results.seconds
        self._lasting = (results, until)
        self._plan(until)

    def pass_on(self) -> None:
        """Undo a fault whose time is over."""
        if self._lasting is not None and time.monotonic() >= self._lasting[1]:
            self.relent()

    def relent(self) -> None:
        """Undo the current fault."""
        if self._lasting is not None:
            struck, self._lasting = self._lasting[0], None
            struck.undo()

    def _plan(self, after: float) -> None:
        """Spread the remaining faults over the remaining time."""
        gap = max(0.0, self._until - after) / max(1, len(self._deck))
        self._due = after + gap * self._chance.uniform(0.2, 1.2)
