"""What a space asks of whatever answers for it: a compiled diagram, or a solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deepgen.vocabulary import DeepgenError

Row = Sequence[int]
DEFAULT_MEMORY = 2 << 30
CALL = 500  # elements that could be computed in the time that it takes to begin with an array


class TooWide(DeepgenError):
    """A space that cannot be compiled within its bounds."""


class Budget:
    """How much work compiling may still do, in elements of arrays that are computed: the same on every machine."""

    def __init__(self, elements: float) -> None:
        self.left = elements

    def spend(self, elements: int) -> None:
        self.left -= elements
        if self.left < 0:
            raise TooWide("the space needs more work to be compiled than its memory bound stands for")


class Engine(Protocol):
    """Questions about valid rows. A row has, for each knob, the place of its value."""

    @property
    def uniform(self) -> bool: ...

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders of knobs that took long to find."""
        ...

    def count(self) -> int: ...

    def empty(self) -> bool: ...

    def row(self, rank: int) -> list[int]: ...

    def rank(self, row: Row) -> int | None: ...

    def contains(self, row: Row) -> bool: ...

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[Any]: ...

    def chunks(self, start: int) -> Iterator[npt.NDArray[Any]]: ...

    def drawn_rows(self, n: int, rng: np.random.Generator) -> npt.NDArray[Any]: ...

    def drawn_ranks(self, n: int, rng: np.random.Generator) -> list[int]: ...

    def one_knob_away(self, row: Row, absent: Row) -> list[list[int]]: ...

    def repaired(self, row: Row, absent: Row) -> list[list[int]]: ...
