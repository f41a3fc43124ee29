"""What every strategy does: choose the next configs, and hear of their trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deepgen.space import Space
from deepgen.vocabulary import Trial


@dataclass(frozen=True)
class Setting:
    """What a strategy starts from. Its state is a function of this and of what it was asked and told, nothing else."""

    space: Space
    seed: int = 0
    starts: Sequence[Mapping[str, Any]] = ()  # valid configs to try first
    options: Mapping[str, Any] = field(default_factory=dict)


class Strategy(Protocol):
    """Proposes valid configs that were never proposed before."""

    def ask(self, n: int) -> list[dict[str, Any]]:
        """Up to n new configs; none when the space is exhausted."""
        ...

    def tell(self, trial: Trial) -> None:
        """The trial of a config that was asked for; trials come in the order in which they were asked for."""
        ...
