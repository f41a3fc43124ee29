"""The kinds of targets: how each is parsed, read from JSON, and detected on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.targets import host
from deepgen.targets.base import Target
from deepgen.targets.cpu import X86, Arm, narrowed
from deepgen.targets.gpu import Cuda, Hip, parse_cuda, parse_hip
from deepgen.targets.riscv import Riscv, on_board, parse_riscv
from deepgen.targets.sim import Sim, parse_sim
from deepgen.vocabulary.registry import Registry


@dataclass(frozen=True)
class Kind:
    """A kind of target: the part before the colon of its name."""

    parse: Callable[[str], Target]  # the target of an architecture or a card: the part after the colon
    from_json: Callable[[Mapping[str, Any]], Target]
    look: Callable[[], Target] | None = None  # the device of this machine, or Missing; None: no device is needed
    on_host: Callable[[Target, str], Target] | None = None  # the target on a host reached over SSH; None: only here


def x86() -> Kind:
    return Kind(lambda arch: narrowed(host.like(X86), arch), X86.from_json, host.x86)


def arm() -> Kind:
    return Kind(lambda arch: narrowed(host.like(Arm), arch), Arm.from_json, host.arm)


def cuda() -> Kind:
    return Kind(parse_cuda, Cuda.from_json, host.cuda)


def hip() -> Kind:
    return Kind(parse_hip, Hip.from_json, host.hip)


def riscv() -> Kind:
    return Kind(parse_riscv, Riscv.from_json, on_host=on_board)


def sim() -> Kind:
    return Kind(parse_sim, Sim.from_json)


KINDS: Registry[Callable[[], Kind]] = Registry(
    "deepgen.targets",
    "kind of target",
    {name: f"deepgen.targets.kinds:{name}" for name in ("x86", "arm", "riscv", "cuda", "hip", "sim")},
)
