"""Counts of instructions by class and size, as they are written under qemu, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deepgen.targets.riscv.costs import CLASSES, SCALAR, Costs
from deepgen.vocabulary import DeepgenError

_GROUPS = {1: "mf8", 2: "mf4", 4: "mf2", 8: "m1", 16: "m2", 32: "m4", 64: "m8"}
_UNKNOWN = -1  # after `vsetvl`, whose type is in a register


@dataclass(frozen=True)
class Counts:
    """How often instructions of a class ran, by the eighths of a vector register that they work on."""

    of: Mapping[tuple[str, int], int]

    @property
    def instructions(self) -> int:
        return sum(self.of.values())

    @property
    def vectors(self) -> int:
        return sum(count for (kind, _), count in self.of.items() if kind not in SCALAR)

    def cycles(self, costs: Costs) -> float:
        """The weighted count. Groups of unknown size count as the largest."""
        return sum(
            count * costs.cycles(kind, (64 if eighths == _UNKNOWN else eighths) / 8)
            for (kind, eighths), count in self.of.items()
        )

    def named(self) -> Iterator[tuple[str, float]]:
        """Each count under a name such as vector_load_unit_m4."""
        for (kind, eighths), count in sorted(self.of.items()):
            size = "" if kind in SCALAR else f"_{_GROUPS.get(eighths, f'{eighths}_eighths')}"
            yield kind + size, float(count)

    @staticmethod
    def from_text(text: str) -> Counts:
        found: dict[tuple[str, int], int] = {}
        for line in text.splitlines():
            try:
                kind, eighths, count = line.split()
                if kind not in CLASSES:
                    raise ValueError(kind)
                found[kind, int(eighths)] = int(count)
            except ValueError as error:
                raise DeepgenError(f"under qemu {line[:60]!r} was written among the counts") from error
        if not found:
            raise DeepgenError("under qemu nothing was counted: no run was marked")
        return Counts(found)
