"""The default strategy: a cost model that guides from the first trials on.

A few configs far apart, then always the config from which the model expects the most improvement, times the chance
that it works at all. Trials that are still running count as if they had ended as predicted, so that a batch spreads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deepgen.search.base import Fresh, Setting, check_options
from deepgen.search.design import Design
from deepgen.search.encoding import Encoding
from deepgen.search.gaussian_guide import GaussianGuide
from deepgen.search.guides import Guide, Told
from deepgen.search.pool import Pool, draw_pool
from deepgen.search.regressor_guide import RegressorGuide
from deepgen.search.regressors import LIBRARIES, make_regressor
from deepgen.vocabulary import Trial

DESIGN = 8  # configs far apart, before the model speaks
POOL = 20_000  # the largest space that is looked at whole
LATE, LATE_POOL = 200, 4_096  # after so many trials each must be cheap: a smaller pool
LEARN = 3  # right trials, without which there is nothing to learn from
GROWTH = 1.25  # the model is fitted anew when the trials have grown by this factor
AROUND = 5  # the best configs, whose neighbours are looked at when the space is too large to be seen whole
DIGITS = 9  # desires that differ by less are equal, so that rounding in another BLAS does not change a search


class Model:
    """The strategy `model`. Option `library`: what its cost model is made with, one of LIBRARIES."""

    def __init__(self, setting: Setting) -> None:
        options = check_options("model", setting.options, {"library": LIBRARIES[0]})
        self._seed = setting.seed
        self._fresh = Fresh(setting)
        self._encoding = Encoding(setting.space)
        self._guide = _guide(options["library"], self._encoding, setting.seed)
        self._told: list[Told] = []
        self._right = 0
        self._pending: dict[int, None] = {}
        self._pool: Pool | None = None
        self._design: Design | None = None
        self._heard = 0  # trials that the guide knows
        self._next_fit = 0

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks: list[int] = []
        for rank in self._fresh.starts(n):
            self._took(rank, ranks)
        while len(ranks) < n and self._blind():
            if not self._spread_out(ranks):
                break
        if len(ranks) < n and self._right >= LEARN:
            self._guided(n, ranks)
        while len(ranks) < n:
            rest = self._fresh.random(1)
            if not rest:
                break
            self._took(rest[0], ranks)
        return self._fresh.configs(ranks)

    def tell(self, trial: Trial) -> None:
        self._pending.pop(trial.rank, None)
        self._told.append(Told(trial.rank, trial.seconds))
        self._right += trial.seconds is not None

    def _took(self, rank: int, ranks: list[int]) -> None:
        self._fresh.take([rank])
        self._pending[rank] = None
        ranks.append(rank)
        if self._pool is not None:
            self._pool.close(rank)
        if self._design is not None:
            self._design.keep_away(self._encoding.codes([rank])[0].tolist())

    def _blind(self) -> bool:
        """Whether there is too little to learn from."""
        return len(self._fresh.taken) < DESIGN or self._right < LEARN

    def _spread_out(self, ranks: list[int]) -> bool:
        """Take the config that is farthest from all before it."""
        if self._design is None:
            self._pool = self._draw(POOL)
            self._design = Design(self._encoding, self._pool)
            for codes in self._encoding.codes(list(self._fresh.taken)).tolist():
                self._design.keep_away(codes)
        place = self._design.next()
        if place is None or self._pool is None:
            return False
        self._took(self._pool.ranks[place], ranks)
        return True

    def _guided(self, n: int, ranks: list[int]) -> None:
        """Take the configs from which most is expected."""
        pool = self._learn()
        for rank in self._pending:
            self._guide.desire()
            self._guide.imagine(pool.place[rank])
        while len(ranks) < n and pool.open.any():
            desire = np.where(pool.open, np.round(self._guide.desire(), DIGITS), -np.inf)
            place = int(np.argmax(desire))
            self._took(pool.ranks[place], ranks)
            if len(ranks) < n:
                self._guide.imagine(place)
        self._guide.wake()

    def _learn(self) -> Pool:
        """Bring the guide up to date: a little for each trial, and from the ground up ever more rarely."""
        self._design = None
        if self._pool is None or len(self._told) >= self._next_fit or not self._pool.open.any():
            self._pool = self._draw(POOL if len(self._told) <= LATE else LATE_POOL)
            self._guide.renew(self._pool, self._told)
            self._next_fit = max(len(self._told) + 2, int(len(self._told) * GROWTH))
        else:
            for told in self._told[self._heard :]:
                self._guide.hear(told)
        self._heard = len(self._told)
        return self._pool

    def _draw(self, limit: int) -> Pool:
        if self._pool is not None and self._fresh.count <= limit:
            return self._pool
        told = [t for t in self._told if t.seconds is not None]
        best = sorted(told, key=lambda t: (t.seconds, t.rank))[:AROUND]
        needed = [*self._pending, *(t.rank for t in self._told)]
        seed = self._seed + len(self._told)
        return draw_pool(self._encoding, self._fresh.taken, needed, [t.rank for t in best], limit, seed)


def _guide(library: str, encoding: Encoding, seed: int) -> Guide:
    if library == "numpy":
        return GaussianGuide(encoding, seed)
    return RegressorGuide(encoding, make_regressor(library, encoding, seed))
