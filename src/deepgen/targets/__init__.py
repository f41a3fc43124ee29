"""Where kernels run: hardware facts as data, and detection of what is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.targets import host
from deepgen.targets.base import Target
from deepgen.targets.sim import Sim, parse_sim
from deepgen.targets.x86 import X86, narrowed
from deepgen.vocabulary.errors import BadInput

KINDS: Mapping[str, type[X86] | type[Sim]] = {"x86": X86, "sim": Sim}


def resolve(name: str | None = None) -> Target:
    """The target of that name; without one, the best device here."""
    kind, _, arch = (name or "x86:native").partition(":")
    if kind == "x86":
        return narrowed(host.x86(), arch or "native")
    if kind == "sim":
        return parse_sim(arch)
    raise BadInput(f"unknown target {name!r}", allowed="kind:arch with a kind of " + ", ".join(KINDS))


def from_json(data: Mapping[str, Any]) -> Target:
    """The target that `to_json` described, facts and all."""
    kind = str(data.get("name", "")).partition(":")[0]
    if kind not in KINDS:
        raise BadInput(f"unknown target {data.get('name')!r}", allowed="a kind of " + ", ".join(KINDS))
    return KINDS[kind].from_json(data)


__all__ = ["KINDS", "X86", "Sim", "Target", "from_json", "resolve"]
