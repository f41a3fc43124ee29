"""The interface of a space's engines: a compiled diagram, a relaxed one, or a solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deepgen.vocabulary import DeepgenError

Row = Sequence[int]
DEFAULT_MEMORY = 1 << 30
CALL = 500  # elements that could be computed in the time of one array operation's overhead


class TooWide(DeepgenError):
    """A space that cannot be compiled within its limits."""


class Budget:
    """The work that compiling may still do, in computed array elements: the same on every machine."""

    def __init__(self, elements: float) -> None:
        self.left = elements

    def spend(self, elements: int) -> None:
        self.left -= elements
        self.expect(0)

    def expect(self, elements: float) -> None:
        """Raises TooWide if this much more work exceeds the budget."""
        if elements > self.left:
            raise TooWide("compiling the space takes more work than its memory limit allows")


class TooWideToCount(DeepgenError):
    """A query about all configs of a space that is not compiled."""


@dataclass(frozen=True)
class Size:
    """The number of configs in a space: exact, or an estimate with its relative standard error."""

    count: int
    exact: bool = True
    error: float = 0.0

    def __str__(self) -> str:
        if self.exact:
            return str(self.count)
        return f"about {Decimal(self.count):.3g} (within {2 * self.error:.0%})"


class SpaceEngine(Protocol):
    """Queries about valid rows. A row has, for each knob, the index of its value. `rows` takes only valid ranks."""

    @property
    def uniform(self) -> bool: ...

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders of knobs that took long to find."""
        ...

    def count(self) -> int:
        """The exact number; raises TooWideToCount if it is unknown."""
        ...

    def size(self) -> Size: ...

    @property
    def ranks(self) -> int:
        """An upper limit: all ranks are below it."""
        ...

    def valid(self, ranks: Sequence[int]) -> list[bool]:
        """Which of these numbers are ranks of configs."""
        ...

    def empty(self) -> bool: ...

    def row(self, rank: int) -> list[int] | None: ...

    def rank(self, row: Row) -> int | None: ...

    def contains(self, row: Row) -> bool: ...

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[Any]: ...

    def chunks(self, start: int) -> Iterator[npt.NDArray[Any]]: ...

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]: ...

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]: ...

    def one_knob_away(self, row: Row, absent: Row) -> list[list[int]]: ...

    def repaired(self, row: Row, absent: Row) -> list[list[int]]: ...
