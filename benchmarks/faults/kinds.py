"""The faults: each finds a target, strikes, and says when and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from faults import processes
from faults.nodes import Nodes
from faults.place import DISKS, Place

BETWEEN = 3  # trials that must end before such a fault repeats: a kernel or build that is struck twice is blamed for it
KILL, END, INTERRUPT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
_HOUR = 3600
_SET_BACK = 10  # seconds, at most, on a Ray cluster


class Scene(Protocol):
    """What a fault may inspect and strike."""

    place: Place
    nodes: Nodes | None  # of a Ray cluster
    chance: Random

    @property
    def tuner(self) -> int: ...

    @property
    def ended(self) -> int:
        """Ended trials of the current study."""
        ...


@dataclass(frozen=True)
class Struck:
    """A fault that hit."""

    what: str
    codes: tuple[int, ...] = ()  # exit codes of the command that it explains
    seconds: float = 0.0  # until it is undone
    undo: Callable[[], object] = field(default=lambda: None)


Strike = Callable[[Scene], Struck | None]
"""None: there was nothing to strike."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    group: str
    weight: int
    strike: Strike
    keeps_distance: bool = False  # because it strikes what a trial is working on


def _pids(scene: Scene, who: str) -> list[int]:
    if who == "tuner":
        return [scene.tuner]
    if who == "everything":
        return processes.family(scene.tuner)
    around = processes.everyone() if scene.nodes is not None else processes.family(scene.tuner)
    results = [pid for pid in around if processes.role(pid) == who]
    return [scene.chance.choice(sorted(results))] if results else []


def _codes(who: str, number: signal.Signals) -> tuple[int, ...]:
    return (-number, 128 + number) if who in ("tuner", "everything") else ()


def _signalled(who: str, number: signal.Signals, scene: Scene) -> Struck | None:
    hit = processes.send(_pids(scene, who), number)
    return Struck(f"{number.name} to {who}", _codes(who, number)) if hit else None


def _suspended(who: str, scene: Scene) -> Struck | None:
    pids = _pids(scene, who)
    if not processes.send(pids, signal.SIGSTOP):
        return None
    scene.chance.shuffle(pids)
    seconds = scene.chance.uniform(0.5, 4.0)
    return Struck(f"{who} suspended", (), seconds, lambda: processes.send(pids, signal.SIGCONT))


def _full(disk: str, scene: Scene) -> Struck | None:
    scene.place.fill(disk)
    seconds = scene.chance.uniform(1.0, 4.0)
    return Struck(f"{disk} full", (1,), seconds, partial(scene.place.make_room, disk))


def _jump(scene: Scene) -> Struck | None:
    by = scene.chance.choice((-48, -5, -1, 0, 1, 5, 48)) * _HOUR + scene.chance.randrange(-_HOUR, _HOUR)
    if scene.nodes is not None:
        # Ray's own timers wait for a moment of this clock, and stop for as long as it is set back.
        by = scene.place.clock() + max(by, -scene.chance.randrange(1, _SET_BACK))
    scene.place.set_clock(by)
    return Struck(f"clock at {by:+d} s")


def _node(scene: Scene, *, killed: bool) -> Struck | None:
    nodes = scene.nodes
    if nodes is None:
        return None
    back = nodes.lose(scene.chance, killed=killed)
    return Struck("node lost", (), scene.chance.uniform(0.5, 4.0), back)


def _signals(weights: Mapping[str, int], number: signal.Signals, verb: str, group: str) -> list[Kind]:
    lone = ("worker", "compiler", "builder", "tester")
    return [
        Kind(f"{verb} {who}", group, weight, partial(_signalled, who, number), keeps_distance=who in lone)
        for who, weight in weights.items()
    ]


def _suspensions(weights: Mapping[str, int]) -> list[Kind]:
    return [
        Kind(f"suspend {who}", "suspended", weight, partial(_suspended, who), keeps_distance=who == "worker")
        for who, weight in weights.items()
    ]


EVERYWHERE = [
    *_signals({"tuner": 6, "worker": 5, "compiler": 4, "everything": 4}, KILL, "kill", "kill"),
    *_signals({"tuner": 3, "worker": 2, "compiler": 2, "everything": 2}, END, "terminate", "signal"),
    *_signals({"tuner": 3}, INTERRUPT, "interrupt", "signal"),
    *(Kind(f"{disk} full", "full disk", 3, partial(_full, disk)) for disk in DISKS),
    Kind("clock jump", "clock jump", 8, _jump),
    *_suspensions({"tuner": 3, "worker": 4, "compiler": 2, "everything": 3}),
]
ON_RAY = [
    *_signals({"builder": 4, "tester": 4}, KILL, "kill", "lost worker"),
    Kind("kill raylet", "lost worker", 3, partial(_node, killed=True)),
    Kind("remove node", "lost worker", 3, partial(_node, killed=False)),
    *_suspensions({"builder": 2, "tester": 2, "raylet": 2, "gcs": 1}),
]
