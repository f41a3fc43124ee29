"""The VTA toolchain: a program is checked against the target's buffers and stored unchanged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from deepgen.extend import BadInput, BuildError, BuildLimits, Built, Group, Kernel, Recipe, Target, Verdict
from deepgen_vta.chip import Vta

_BINARY = "kernel.vta"


@dataclass(frozen=True)
class VtaToolchain:
    """Builds the programs defined in `deepgen_vta/program.py`."""

    name: str = "vta"
    version: str = "1"
    path: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}"

    def build(self, kernel: Kernel, target: Target, folder: Path, limits: BuildLimits, group: Group) -> Built:
        # Imported here, so that looking up another toolchain does not load numpy.
        from deepgen_vta.program import Program, check, module

        if not isinstance(target, Vta):
            raise BadInput(f"VTA programs do not run on {target.name}", allowed="vta targets")
        source = kernel.sources[0]
        try:
            program = Program.from_text(source.text, source.name)
            check(program, target)
        except BadInput as error:
            raise BuildError(Verdict.BUILD_FAILED, str(error)) from error
        (folder / _BINARY).write_text(source.text)
        counts = Counter(map(module, program.instructions))
        facts = {f"{name}_instructions": count for name, count in sorted(counts.items())}
        return Built(_BINARY, "vta", {"code_bytes": 16 * len(program.instructions), **facts})

    def assembly(self, kernel: Kernel, target: Target, folder: Path) -> str:
        from deepgen_vta.program import Program, listing

        return listing(Program.from_text(kernel.sources[0].text, kernel.sources[0].name))

    def recipe(self, kernel: Kernel, target: Target) -> Recipe | None:
        return None
