"""Where kernels run: hardware facts as data, and detection of this machine's devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from math import isfinite
from typing import Any

from deepgen.targets import host
from deepgen.targets.base import Target
from deepgen.targets.cpu import X86, Arm, Cpu, narrowed
from deepgen.targets.gpu import Cuda, Gpu, Hip
from deepgen.targets.kinds import KINDS, Kind
from deepgen.targets.riscv import Riscv
from deepgen.targets.sim import Sim
from deepgen.vocabulary.errors import BadInput, DeepgenError, Missing

PROCESSORS: tuple[type[X86] | type[Arm], ...] = (X86, Arm)


class Elsewhere(Missing):
    """Kernels for the target can be built on this machine but not run."""

    def __init__(self, target: Target, why: str) -> None:
        self.why = why
        super().__init__(
            f"a device that runs {target.name}",
            blocks=f"{why}, so this host can build kernels for {target.name} but not measure them",
            remedy="Pack them with `deepgen bundle pack`, run the bundle where one is, and merge its results.",
        )


def resolve(name: str | None = None) -> Target:
    """The target with this name; without one, the best device here. `cpu` is this machine's CPU."""
    kind, _, arch = (name or best()).partition(":")
    if kind == "cpu":
        return narrowed(host.processor(), arch or "native")
    if kind not in KINDS:
        raise BadInput(f"unknown target {name!r}", allowed="kind:arch with a kind of cpu, " + ", ".join(KINDS.names()))
    entry = KINDS.get(kind)()
    return entry.look() if entry.look is not None and arch in ("", "native") else entry.parse(arch)


def on_host(target: Target, host: str) -> Target:
    """The target on a host reached over SSH. Raises BadInput if kernels of its kind run only on this machine."""
    placed = KINDS.get(target.kind)().on_host
    if placed is None:
        raise BadInput(f"host {host} with target {target.name}", allowed="a target of boards, such as riscv:k1")
    return placed(target, host)


def best() -> str:
    """The name of the fastest kind of device in this machine."""
    return "cuda:native" if host.has_cuda() else "hip:native" if host.has_hip() else host.processor().name


def devices() -> list[Target]:
    """This machine's devices, one of each kind."""
    results = []
    for kind in KINDS.working():
        look = kind().look
        try:
            results += [] if look is None else [look()]
        except DeepgenError:  # there is none, or a card that no table lists
            continue
    return results


def device_for(target: Target) -> Target:
    """The device of this machine that runs the target's kernels. Raises Elsewhere, which says what to do instead."""
    look = KINDS.get(target.kind)().look
    if look is None:
        return target
    try:
        device = look()
    except Missing as error:
        raise Elsewhere(target, "this machine has none") from error
    if not target.runs_on(device):
        raise Elsewhere(target, f"this machine has {device.describe().partition(': ')[2]}")
    return device


def from_json(data: Mapping[str, Any]) -> Target:
    """The target from its JSON. Its facts are checked, because generators write them into kernels."""
    return _from_text(json.dumps(data, sort_keys=True))


@lru_cache(maxsize=64)  # all entries of a library have one target or a few
def _from_text(text: str) -> Target:
    data = json.loads(text)
    kind = str(data.get("name", "")).partition(":")[0]
    if kind not in KINDS:
        raise BadInput(f"unknown target {data.get('name')!r:.60}", allowed="a kind of " + ", ".join(KINDS.names()))
    target = KINDS.get(kind)().from_json(data)
    for field in fields(target):
        value = getattr(target, field.name)
        if not _harmless(value):
            what = f"target {kind}: {field.name} is {value!r:.60}"
            raise BadInput(what, allowed="finite numbers, and text without control characters")
    return target


def _harmless(fact: object) -> bool:
    if isinstance(fact, tuple):
        return all(map(_harmless, fact))
    if isinstance(fact, str):
        return fact.isprintable()
    return not isinstance(fact, float) or isfinite(fact)


__all__ = [
    "KINDS",
    "PROCESSORS",
    "X86",
    "Arm",
    "Cpu",
    "Cuda",
    "Elsewhere",
    "Gpu",
    "Hip",
    "Kind",
    "Riscv",
    "Sim",
    "Target",
    "best",
    "device_for",
    "devices",
    "from_json",
    "on_host",
    "resolve",
]
