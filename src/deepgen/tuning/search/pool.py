"""The configs a model looks at: a small space whole, of a large one draws and what lies around the best configs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from deepgen.tuning.search.encoding import Encoding, Ints


class Pool:
    """Ranks with their codes, and which of them may still be proposed."""

    def __init__(self, encoding: Encoding, ranks: Sequence[int], taken: Iterable[int]) -> None:
        self.ranks = list(ranks)
        self.columns: Ints = np.ascontiguousarray(encoding.codes(self.ranks).T)
        self.place = {rank: place for place, rank in enumerate(self.ranks)}
        self.open: npt.NDArray[np.bool_] = np.ones(len(self.ranks), dtype=np.bool_)
        for rank in taken:
            self.close(rank)

    def close(self, rank: int) -> None:
        """This rank was proposed."""
        place = self.place.get(rank)
        if place is not None:
            self.open[place] = False


def draw_pool(
    encoding: Encoding, taken: set[int], needed: Sequence[int], best: Sequence[int], limit: int, seed: int
) -> Pool:
    """A pool of about `limit` configs that holds those `needed` and what is one knob away from the `best`.

    Its order is random, so that the first of several equals is a fair choice.
    """
    space = encoding.space
    size = space.size()
    if size.exact and size.count <= limit:
        ranks = space.sample_ranks(size.count, seed, distinct=True)
        return Pool(encoding, ranks, taken)
    near = [space.rank(other) for rank in best for other in space.neighbors(space.at(rank))]
    drawn = space.sample_ranks(limit, seed, distinct=True)
    return Pool(encoding, list(dict.fromkeys([*needed, *near, *drawn])), taken)
