"""One row of a part of a space, drawn from what compiling the whole space found out: the part is not compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from deepgen.space.diagram import Diagram
from deepgen.space.layers import Ints
from deepgen.space.partial import Partial
from deepgen.space.union import Alternative, Union

Allowed = Mapping[int, Collection[int]]  # by variable: the places that it may take
_TOGETHER = 1 << 8  # rows that are drawn at a time where some are not valid
_MOST = 1 << 14  # rows that are drawn for one that is valid


@dataclass(frozen=True)
class _Part:
    diagram: Diagram
    engine: Diagram | Partial
    alternative: Alternative | None = None

    def valid_rows(self, n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Which of n random rows are valid, and all of them as rows of the whole space."""
        rows = self.diagram.drawn_rows(n, rng)
        valid = self.engine.check(rows) if isinstance(self.engine, Partial) else np.ones(n, dtype=np.bool_)
        return valid, rows if self.alternative is None else self.alternative.outward(rows)


def draw_within(engine: Diagram | Partial | Union, allowed: Allowed, rng: np.random.Generator) -> list[int] | None:
    """Uniform over the valid rows in which variables take only these places; None if none was found."""
    parts = list(_parts(engine, allowed))
    if not parts:
        return None
    counts = [part.diagram.count() for part in parts]
    odds = [count / sum(counts) for count in counts]
    n = _TOGETHER if any(isinstance(part.engine, Partial) for part in parts) else 1
    for _ in range(0, _MOST, n):
        picked = rng.choice(len(parts), size=n, p=odds)
        found: dict[int, list[int]] = {}  # by place among those picked: the first is taken, so that none is preferred
        for which in np.unique(picked).tolist():
            at = np.flatnonzero(picked == which)
            valid, rows = parts[which].valid_rows(len(at), rng)
            if valid.any():
                first = int(np.argmax(valid))
                found[int(at[first])] = rows[first].tolist()
        if found:
            return found[min(found)]
    return None


def _parts(engine: Diagram | Partial | Union, allowed: Allowed) -> Iterator[_Part]:
    """What is left of each alternative, or of the space where it has none."""
    if isinstance(engine, Union):
        told: list[tuple[Diagram | Partial, Allowed, Alternative | None]] = [
            (a.engine, a.allowed(allowed), a) for a in engine.parts
        ]
    else:
        told = [(engine, allowed, None)]
    for own, places, alternative in told:
        narrowed = (own.diagram if isinstance(own, Partial) else own).within(places)
        if narrowed is not None:
            yield _Part(narrowed, own, alternative)
