"""Competing families: each is searched by its own strategy, and families with faster kernels get more trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepgen.generators import FAMILY
from deepgen.tuning.search.base import Past, Restorable, Setting, Strategy, StrategyKind
from deepgen.vocabulary import JsonObject, Trial

# A family whose best kernel takes twice as long as the leader's gets an eighth of the leader's trials.
_SHARPNESS = 3
_HOPELESS = 0.01  # share of the leader's trials below which a family gets none


class Portfolio:
    """Tries every family's best guess first; then each family gets trials by its best time relative to the leader's.

    A family without a correct kernel waits for the result of its guess, and gets few trials if that failed. The order
    depends only on the asks and tells.
    """

    def __init__(self, kind: StrategyKind, setting: Setting) -> None:
        self._space, self._spaces = setting.space, setting.members
        self.parts: dict[str, Strategy] = {}
        for name, space in setting.members.items():
            starts = [_own(config) for config in setting.starts if config[FAMILY] == name]
            history = [past for past in (_of_family(past, name) for past in setting.history) if past.trials]
            self.parts[name] = kind(replace(setting, space=space, starts=starts, history=history, members={}))
        self._asked = dict.fromkeys(self.parts, 0)
        self._heard = dict.fromkeys(self.parts, 0)
        self._best: dict[str, float] = {}
        self._exhausted: set[str] = set()

    @property
    def learned_from(self) -> list[str]:
        """The earlier studies that guide any of its strategies."""
        names = [name for part in self.parts.values() for name in getattr(part, "learned_from", ())]
        return list(dict.fromkeys(names))

    def ask(self, n: int) -> list[dict[str, Any]]:
        configs: list[dict[str, Any]] = []
        while len(configs) < n:
            shares = self._shares(n - len(configs))
            if not shares:
                break
            for name, count in shares.items():
                proposed = self.parts[name].ask(count)
                self._asked[name] += len(proposed)
                if len(proposed) < count:
                    self._exhausted.add(name)
                configs += [{FAMILY: name, **config} for config in proposed]
        return configs

    def _shares(self, n: int) -> dict[str, int]:
        """How many of the next n configs each family proposes; empty if all are exhausted."""
        left = [name for name in self.parts if name not in self._exhausted]
        fresh = [name for name in left if not self._asked[name]][:n]
        if fresh or not left:
            return dict.fromkeys(fresh, 1)
        weights = {name: self._weight(name) for name in left}
        if not any(weights.values()):
            weights = {left[0]: 1.0}  # no result yet: use the family expected to be best
        asked, shares = dict(self._asked), dict.fromkeys(weights, 0)
        for _ in range(n):
            behind = min(weights, key=lambda name: (asked[name] + 1) / weights[name] if weights[name] else float("inf"))
            asked[behind] += 1
            shares[behind] += 1
        return {name: count for name, count in shares.items() if count}

    def _weight(self, name: str) -> float:
        if not self._best:
            return 0.0
        leader = min(self._best.values())
        share: float = (leader / self._best[name]) ** _SHARPNESS if name in self._best else 0.0
        failed = name not in self._best and self._heard[name] > 0
        return 2 * _HOPELESS if failed else share if share >= _HOPELESS else 0.0

    def tell(self, trial: Trial) -> None:
        name, own = self._as_member(trial)
        self.parts[name].tell(own)
        self._hear(name, trial)

    def _as_member(self, trial: Trial) -> tuple[str, Trial]:
        """The trial in the form that its family's strategy expects."""
        name, config = str(trial.config[FAMILY]), _own(trial.config)
        return name, replace(trial, rank=self._spaces[name].rank(config), config=config)

    def _hear(self, name: str, trial: Trial) -> None:
        self._heard[name] += 1
        if trial.seconds is not None:
            self._best[name] = min(trial.seconds, self._best.get(name, trial.seconds))

    def state(self) -> JsonObject | None:
        parts: JsonObject = {}
        for name, part in self.parts.items():
            state = part.state() if isinstance(part, Restorable) else None
            if state is None:
                return None
            parts[name] = state
        return {"parts": parts, "exhausted": [*sorted(self._exhausted)]}

    def restore(self, state: Mapping[str, Any], ranks: Sequence[int], trials: Sequence[Trial]) -> None:
        parts, exhausted = state.get("parts"), state.get("exhausted")
        if not isinstance(parts, dict) or not isinstance(exhausted, list) or {*parts} != {*self.parts}:
            raise ValueError("not the state of these families")
        configs = [self._space.at(rank) for rank in ranks]
        reported = [self._as_member(trial) for trial in trials]
        for name, part in self.parts.items():
            own = [self._spaces[name].rank(_own(config)) for config in configs if config[FAMILY] == name]
            if not isinstance(part, Restorable):
                raise ValueError(f"{name} has no state")
            part.restore(parts[name], own, [trial for family, trial in reported if family == name])
            self._asked[name] = len(own)
        self._exhausted = {name for name in exhausted if name in self.parts}
        for name, trial in reported:
            self._hear(name, trial)


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the knob that names its family."""
    return {name: value for name, value in config.items() if name != FAMILY}


def _of_family(past: Past, name: str) -> Past:
    """The trials of one family in an earlier study."""
    if any(knob.name == FAMILY for knob in past.space.knobs):
        own = [replace(trial, config=_own(trial.config)) for trial in past.trials if trial.config[FAMILY] == name]
        return replace(past, trials=own, right=None)
    return past if past.family in (None, name) else replace(past, trials=(), right=None)
