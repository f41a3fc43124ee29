"""Solving: valid configs in which some knobs may take only certain values."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from deepgen.tuning.search.encoding import Encoding, Ints
from deepgen.tuning.search.pool import Pool

_LISTED = 50_000  # the largest space that is held as a table


class Solver:
    """Draws valid configs under restrictions, each a set of the places that a knob of the encoding may take."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        size = encoding.space.size()
        # A table answers in a tenth of a millisecond, a walk through the compiled space in a few milliseconds.
        small = size.exact and size.count <= _LISTED
        self._table: Ints | None = Pool(encoding, range(size.count), ()).columns if small else None

    def draw(self, restrictions: Mapping[int, Collection[int]], rng: np.random.Generator) -> int | None:
        """The rank of one config, uniform over those that keep to the restrictions; None when there is none."""
        if self._table is None:
            return self._draw_restricted(restrictions, rng)
        fits = np.ones(self._table.shape[1], dtype=np.bool_)
        for knob, places in restrictions.items():
            fits &= np.isin(self._table[knob], list(places))
        found = np.flatnonzero(fits)
        return int(found[int(rng.integers(len(found)))]) if len(found) else None

    def _draw_restricted(self, restrictions: Mapping[int, Collection[int]], rng: np.random.Generator) -> int | None:
        space = self._encoding.space
        values = {}
        for knob, places in restrictions.items():
            known = self._encoding.knobs[knob]
            listed = [known.values[place] for place in sorted(places) if place < len(known.values)]
            if listed:  # where both parents lack the knob, there is nothing to restrict
                values[known.name] = listed
        config = space.draw_within(values, int(rng.integers(2**31)))
        return None if config is None else space.rank(config)
