"""Operators as another package might provide them: one with its own words, one without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from deepgen.operators import Answer, Array, Operator, Param, Signature, Word, Work, least_work


@dataclass(frozen=True)
class Plain(Operator):
    """The norm of each row. The command line asks for its fields."""

    name: ClassVar[str] = "plain_norms"

    rows: int
    cols: int
    dtype: str = "f32"
    power: float = 2.0
    squared: bool = False

    def signature(self) -> Signature:
        return Signature(
            (Param("x", "input", self.dtype, ("rows", "cols")), Param("y", "output", self.dtype, ("rows",)))
        )

    def sizes(self) -> Mapping[str, int]:
        return {"rows": self.rows, "cols": self.cols}

    def work(self) -> Work:
        return least_work(self, {self.dtype: 2 * self.rows * self.cols})

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        return {"y": Answer(np.linalg.norm(inputs["x"].astype(np.float64), axis=1))}


class RowNorms(Plain):
    """The same with words, some of them short."""

    name: ClassVar[str] = "row_norms"
    words: ClassVar[tuple[Word, ...]] = (
        Word("rows", "how many norms", needed=True, aliases=("R",)),
        Word("cols", "numbers in each of them", needed=True),
        Word("dtype", "format of the numbers", "choice", "f32", choices=("f32", "f64")),
    )
