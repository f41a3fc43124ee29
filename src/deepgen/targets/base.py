"""What every target is: a name and hardware facts, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from deepgen.vocabulary.json import JsonObject, digest


@dataclass(frozen=True)
class Target:
    """Where a kernel runs. Each kind of target adds its own facts as fields."""

    name: str  # kind:arch, such as x86:native

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    def describe(self) -> str:
        """One short line for people."""
        return self.name

    def to_json(self) -> JsonObject:
        return asdict(self)

    def fingerprint(self) -> str:
        """Changes when a fact changes: a study belongs to one machine, not to a name."""
        return digest(self.to_json(), 16)
