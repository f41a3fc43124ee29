"""Where kernels run: hardware facts as data, and detection of what is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.targets import host
from deepgen.targets.base import Target
from deepgen.targets.cpu import Cpu
from deepgen.targets.cuda import Cuda, parse_cuda
from deepgen.targets.gpu import Gpu
from deepgen.targets.hip import Hip, parse_hip
from deepgen.targets.sim import Sim, parse_sim
from deepgen.targets.x86 import X86, narrowed
from deepgen.vocabulary.errors import BadInput

KINDS: Mapping[str, type[X86] | type[Cuda] | type[Hip] | type[Sim]] = {"x86": X86, "cuda": Cuda, "hip": Hip, "sim": Sim}


def resolve(name: str | None = None) -> Target:
    """The target of that name; without one, the best device here."""
    kind, _, arch = (name or best()).partition(":")
    if kind == "x86":
        return narrowed(host.x86(), arch or "native")
    if kind == "cuda":
        return host.cuda() if arch in ("", "native") else parse_cuda(arch)
    if kind == "hip":
        return host.hip() if arch in ("", "native") else parse_hip(arch)
    if kind == "sim":
        return parse_sim(arch)
    raise BadInput(f"unknown target {name!r}", allowed="kind:arch with a kind of " + ", ".join(KINDS))


def best() -> str:
    """The name of the fastest kind of device that this machine has."""
    return "cuda:native" if host.has_cuda() else "hip:native" if host.has_hip() else "x86:native"


def from_json(data: Mapping[str, Any]) -> Target:
    """The target that `to_json` described, facts and all."""
    kind = str(data.get("name", "")).partition(":")[0]
    if kind not in KINDS:
        raise BadInput(f"unknown target {data.get('name')!r}", allowed="a kind of " + ", ".join(KINDS))
    return KINDS[kind].from_json(data)


__all__ = ["KINDS", "X86", "Cpu", "Cuda", "Gpu", "Hip", "Sim", "Target", "best", "from_json", "resolve"]
