"""Where the `model` strategy stood after an ask: what cannot be seen from its asks and tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deepgen.vocabulary import JsonObject


@dataclass(frozen=True)
class Checkpoint:
    """Small: the pool and the guide's posteriors are made again, only what took long to learn is kept."""

    starts: int  # of the configs not proposed yet: how many starts are left,
    position: int  # and how far the random order was followed
    first: int
    judged: int
    trusts: bool
    general: tuple[float, ...]  # what the guide knows of the knobs in general
    drawn: int  # trials told when the pool was drawn
    pending: tuple[int, ...]  # ranks that were under way when the guide was renewed
    heard: tuple[int, ...]  # trials told when the guide was renewed, and at each time that it heard of more
    next_renewal: int
    next_fit: int
    planned: tuple[int, ...]

    def to_json(self) -> JsonObject:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Checkpoint:
        """ValueError where this is no checkpoint."""
        found: dict[str, Any] = {}
        for name, annotation in Checkpoint.__annotations__.items():
            value = data.get(name)
            wanted = {"int": int, "bool": bool, "tuple[int, ...]": int, "tuple[float, ...]": float}[annotation]
            several = annotation.startswith("tuple")
            if several and not isinstance(value, list):
                raise ValueError(f"{name} is not a list")
            if any(type(v) is not wanted for v in (value if several else [value])):  # type: ignore[union-attr]
                raise ValueError(f"{name} is not of type {wanted.__name__}")
            found[name] = tuple(value) if several else value  # type: ignore[arg-type]
        return Checkpoint(**found)

    def fits(self, count: int, ranks: frozenset[int], told: int) -> bool:
        """Whether it can be of a search in a space of `count` configs that proposed `ranks` and learned of `told`."""
        numbers = (self.starts, self.position, self.first, self.judged, self.drawn, self.next_renewal, self.next_fit)
        return (
            min(numbers) >= 0
            and self.position <= count
            and ranks.issuperset(self.pending)
            and all(0 <= rank < count and rank not in ranks for rank in self.planned)
            and list(self.heard) == sorted(self.heard)
            and len(self.heard) > 0
            and self.drawn <= self.heard[0] <= self.heard[-1] <= told
        )
