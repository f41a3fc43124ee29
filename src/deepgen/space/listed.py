"""The first engine: every point listed. Right for small spaces; the compiled diagram replaces it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian

import numpy as np
import numpy.typing as npt

from deepgen.space.definition import Knob
from deepgen.space.evaluate import ABSENT, evaluate, holds
from deepgen.space.expr import Config, Requirement


class Listed:
    uniform = True

    def __init__(self, knobs: Sequence[Knob], requirements: Sequence[Requirement]) -> None:
        rows: list[tuple[int, ...]] = []
        for row in cartesian(*(range(k.places) for k in knobs)):
            config: Config = {k.name: k.values[i] for k, i in zip(knobs, row, strict=True) if i < len(k.values)}
            if all(
                k.when is None
                or (evaluate(k.when, config) is not ABSENT and bool(evaluate(k.when, config))) == (k.name in config)
                for k in knobs
            ) and all(holds(r.expr, config) for r in requirements):
                rows.append(row)
        self._rows = np.array(rows, dtype=np.int64).reshape(len(rows), len(knobs))
        self._ranks = {row: rank for rank, row in enumerate(rows)}

    def count(self) -> int:
        return len(self._ranks)

    def row(self, rank: int) -> list[int]:
        return self._rows[rank].tolist()  # type: ignore[no-any-return]

    def rank(self, row: Sequence[int]) -> int | None:
        return self._ranks.get(tuple(row))

    def rows(self, ranks: Sequence[int]) -> npt.NDArray[np.int64]:
        return self._rows[np.asarray(ranks, dtype=np.int64)]

    def draw(self, n: int, rng: np.random.Generator) -> list[int]:
        return rng.integers(0, self.count(), n).tolist()  # type: ignore[no-any-return]
