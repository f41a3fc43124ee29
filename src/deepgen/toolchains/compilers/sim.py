"""The toolchain of the simulated device: no process, but real failures and, on request, real delays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepgen.targets import Sim, Target
from deepgen.targets.sim import duration, fault
from deepgen.toolchains.base import BuildError, BuildLimits, Built, Recipe
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, Kernel, Verdict

_BINARY = "kernel.sim"
_FAULTS = {
    Verdict.BUILD_FAILED: "the simulated compiler rejected the source",
    Verdict.BUILD_TIMEOUT: "the simulated compiler did not finish in time",
}


@dataclass(frozen=True)
class SimToolchain:
    """Builds `{"config": {...}}`."""

    name: str = "sim"
    version: str = "1"
    path: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        if not isinstance(target, Sim):
            raise BadInput(f"the simulated toolchain cannot build kernels for {target.name}", allowed="sim targets")
        text = kernel.sources[0].text
        config = json.loads(text)["config"]
        if target.build_seconds > 0.0:
            group.sleep(duration(target.build_seconds, kernel.id))
        verdict = fault(target, config)
        if verdict in _FAULTS:
            raise BuildError(verdict, _FAULTS[verdict])
        (folder / _BINARY).write_text(text)
        return Built(_BINARY, "sim", {"code_bytes": len(text)})

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        return kernel.sources[0].text

    def recipe(self, kernel: Kernel, target: Target) -> Recipe | None:
        return None


def sim_toolchain(target: Target, paths: Mapping[str, str]) -> SimToolchain:
    return SimToolchain()
