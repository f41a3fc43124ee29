"""Which fault comes when: drawn from a seed, spread over the time there is, and counted where it hit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from faults.kinds import BETWEEN, Kind, Scene, Struck

PATIENCE = 2.0  # seconds for somebody to appear whom the fault can strike; then it comes later


class Schedule:
    """Faults one after the other; one that lasts is undone before the next comes."""

    def __init__(self, kinds: Sequence[Kind], count: int, seconds: float, chance: Random) -> None:
        self.count, self._chance = count, chance
        self._deck = chance.choices(kinds, [kind.weight for kind in kinds], k=count)
        # Every kind once, as far as they go: the rest is chance.
        self._deck[: min(len(kinds), count)] = chance.sample(list(kinds), min(len(kinds), count))
        chance.shuffle(self._deck)
        self._until = time.monotonic() + seconds
        self._due = time.monotonic() + 1.0
        self._lasting: tuple[Struck, float] | None = None
        self._kept_away: dict[str, int] = {}  # kinds, and from which trial on they may strike again
        self.hits: Counter[str] = Counter()
        self.groups: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()

    @property
    def over(self) -> bool:
        return not self._deck or time.monotonic() > self._until

    @property
    def lasting(self) -> Struck | None:
        """What has hit and is not over."""
        return self._lasting[0] if self._lasting is not None else None

    def new_study(self) -> None:
        self._kept_away.clear()

    def step(self, scene: Scene) -> Struck | None:
        """Strike if it is time; gives what hit just now."""
        self.pass_on()
        now = time.monotonic()
        if self._lasting is not None or self.over or now < self._due:
            return None
        kind = self._deck[0]
        near = kind.keeps_distance and scene.ended < self._kept_away.get(kind.name, 0)
        found = None if near else kind.strike(scene)
        if found is None:
            if now > self._due + PATIENCE:
                self._put_off()
            return None
        self._deck.pop(0)
        self.hits[kind.name] += 1
        self.groups[kind.group] += 1
        self._kept_away[kind.name] = scene.ended + BETWEEN
        self._lasting = (found, now + found.seconds)
        self._plan(now + found.seconds)
        return found

    def pass_on(self) -> None:
        """Undo what has lasted its time."""
        if self._lasting is not None and time.monotonic() >= self._lasting[1]:
            self.relent()

    def relent(self) -> None:
        """Undo what lasts."""
        if self._lasting is not None:
            struck, self._lasting = self._lasting[0], None
            struck.undo()

    def _plan(self, after: float) -> None:
        """The faults that are left, spread over the time that is left."""
        gap = max(0.0, self._until - after) / max(1, len(self._deck))
        self._due = after + gap * self._chance.uniform(0.2, 1.2)

    def _put_off(self) -> None:
        """Nobody was there: another kind now, this one later."""
        kind = self._deck.pop(0)
        self.missed[kind.name] += 1
        self._deck.insert(self._chance.randrange(1, len(self._deck) + 1) if self._deck else 0, kind)
        self._due = time.monotonic()
