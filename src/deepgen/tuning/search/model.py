"""The default strategy: search guided by a cost model from the first trials on.

A few configs far apart, then always the config from which the model expects the most improvement, times the chance
that it works at all. Trials that are still running count as if they had ended as predicted, so that a batch spreads.
If there are related earlier studies, the first configs come from them.

Fitting the model, drawing a pool and predicting it take as long as several trials on a quick device. While trials are
running this is done in a thread, with the previous model in use meanwhile. When the new model takes over depends only
on the asks and tells, so a search is reproducible at any thread speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from deepgen.tuning.search.base import Fresh, Setting, check_options
from deepgen.tuning.search.encoding import Encoding
from deepgen.tuning.search.guide import GaussianGuide, Guide, Lesson, Lessons
from deepgen.tuning.search.one_thread import in_background
from deepgen.tuning.search.pool import Design, Pool, draw_pool
from deepgen.tuning.search.regressors import LIBRARIES, check_library, make_regressor
from deepgen.tuning.search.transfer import EXPECTED, Prior
from deepgen.vocabulary import JsonObject, Trial
from deepgen.vocabulary.codec import Serializable

DESIGN = 8  # configs far apart, before the model speaks,
INFORMED = 6  # or this many that earlier studies rate highly
CORNERS = 1_000  # configs among which they are chosen: enough to reach corners, not so many that all seeds agree
JUDGED_AT = (16, 32, 64)  # correct trials
TOP_SHARE, TOP_LEAST = 0.02, 40  # the share of the pool that they like, and the least number
LEARN = 3  # correct trials, without which there is nothing to learn from
WHOLE = 20_000  # the largest space that is looked at whole
DRAWN = 4_096  # configs that are drawn of a larger one,
GROWTH = 1.25  # the model is fitted again when the trials have grown by this factor
# Once there are more trials than LATE each must be cheap:
LATE, LATE_DRAWN = 200, 2_048  # fewer configs are looked at,
LATE_DRAW = 100  # drawn again after this many trials,
AHEAD = 16  # and this many are chosen together
LEAST_LAG, LAG = 3, 16  # trials that are told while it is renewed: a batch with two compilers; one in so many
AROUND = 5  # the best configs, whose neighbours are looked at when the space is too large to be seen whole


class Model:
    """The strategy `model`. Option `library`: what its cost model is made with, one of LIBRARIES."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {"library": LIBRARIES[0]}

    def __init__(self, setting: Setting) -> None:
        options = check_options("model", setting.options, self.OPTIONS)
        self._library = str(options["library"])
        check_library(self._library)
        self._seed = setting.seed
        self._fresh = Fresh(setting)
        self._lessons = Lessons()
        self._learned: list[Lesson] = []
        self._right = 0
        self._pending: dict[int, None] = {}
        self._first = 0  # configs that were chosen before the model spoke
        self._judged = 0  # how often earlier studies were judged
        self._prior = Prior(setting.space, setting.history)
        self._trusts = bool(self._prior.names)  # whether configs are expected to be as fast as in earlier studies
        self._begin()

    @property
    def learned_from(self) -> list[str]:
        """The earlier studies that guide this search; none once they were found to mislead."""
        return self._prior.names if self._trusts else []

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks: list[int] = []
        for rank in self._fresh.starts(n):
            self._took(rank, ranks)
        self._judge_prior()
        while len(ranks) < n and self._too_early():
            if not self._take_first(ranks):
                break
        if len(ranks) < n and self._right >= LEARN:
            if len(self._learned) > LATE:
                self._take_planned(n, ranks)
            else:
                self._take_best(n, ranks)
        while len(ranks) < n:
            rest = self._fresh.random(1)
            if not rest:
                break
            self._took(rest[0], ranks)
        return self._fresh.configs(ranks)

    def tell(self, trial: Trial) -> None:
        self._pending.pop(trial.rank, None)
        self._learned += self._lessons.of(trial)
        self._right += trial.seconds is not None

    def _begin(self) -> None:
        """Without an encoding and a guide: the first config may be a start, which must not wait for them."""
        self.__dict__.pop("_encoding", None)
        self.__dict__.pop("_guide", None)
        self._pool: Pool | None = None
        self._corners: Design | None = None
        self._favourites: Design | None = None
        self._drawn = 0  # trials told when the pool was drawn
        self._renewed_with: list[int] = []  # ranks that were in progress when the guide was renewed
        self._heard: list[int] = []  # trials told when the guide was renewed, and when it heard of more
        self._next_renewal = 0
        self._next_fit = 0
        self._planned: list[int] = []
        self._renewal: tuple[Renewal, Future[tuple[Pool, Guide]]] | None = None  # in progress

    @cached_property
    def _encoding(self) -> Encoding:
        encoding = Encoding(self._fresh.space)
        if self._trusts:
            encoding.add(EXPECTED, self._prior)
        return encoding

    @cached_property
    def _guide(self) -> Guide:
        alone = self._library == "numpy"
        trees = None if alone else make_regressor(self._library, self._encoding, self._seed)
        guide = GaussianGuide(self._encoding, self._seed, trees)
        if self._prior.names:
            self._prior.inform(guide.kernel, self._encoding)
        return guide

    def _took(self, rank: int, ranks: list[int]) -> None:
        self._fresh.take([rank])
        self._pending[rank] = None
        ranks.append(rank)
        if self._pool is not None:
            self._pool.close(rank)
        if self._corners is not None and self._favourites is not None:
            codes = self._encoding.codes([rank])[0].tolist()
            self._corners.keep_away(codes)
            self._favourites.keep_away(codes)

    # The first configs -------------------------------------------------------------------------------------------

    def _too_early(self) -> bool:
        """Whether there is too little to learn from."""
        enough = INFORMED if self._trusts else DESIGN
        return self._first < enough or self._right < LEARN

    def _take_first(self, ranks: list[int]) -> bool:
        """Take a config that is far from all before it: one that earlier studies like, or any."""
        if self._corners is None or self._favourites is None:
            self._drawn = len(self._learned)
            self._pool = self._drawing(self._learned, self._drawn, self._pending)()
            self._corners = Design(self._encoding, self._pool, np.arange(min(CORNERS, len(self._pool.ranks))))
            self._favourites = Design(self._encoding, self._pool, self._most_expected(self._pool))
            for codes in self._encoding.codes(list(self._fresh.taken)).tolist():
                self._corners.keep_away(codes)
        place = (self._favourites if self._trusts else self._corners).next()
        if place is None or self._pool is None:
            return False
        self._first += 1
        self._took(self._pool.ranks[place], ranks)
        return True

    def _most_expected(self, pool: Pool) -> Any:
        """The places from which earlier studies expect most, the best first."""
        if not self._trusts:
            return np.empty(0, dtype=np.int64)
        count = max(TOP_LEAST, int(TOP_SHARE * len(pool.ranks)))
        return np.argsort(self._prior.expected(pool.columns.T), kind="stable")[:count]

    def _judge_prior(self) -> None:
        """Drop earlier studies that mislead: judged when the trials are few, and again when there are more."""
        if not self._trusts or self._judged == len(JUDGED_AT) or self._right < JUDGED_AT[self._judged]:
            return
        self._judged += 1
        right = [t for t in self._learned if t.seconds is not None]
        codes = self._encoding.codes([t.rank for t in right])
        if self._prior.misleads(codes, np.array([t.seconds for t in right])):
            self._trusts = False
            self._begin()

    # The guided ones ---------------------------------------------------------------------------------------------

    def _take_best(self, n: int, ranks: list[int]) -> None:
        """Take the configs from which most is expected."""
        pool = self._learn()
        for place in self._guide.ahead(n - len(ranks), [pool.place[rank] for rank in self._pending]):
            self._took(pool.ranks[place], ranks)

    def _take_planned(self, n: int, ranks: list[int]) -> None:
        """Take what was chosen together, and choose again when that is used up."""
        while len(ranks) < n:
            if not self._planned:
                pool = self._learn()
                places = self._guide.ahead(AHEAD, [pool.place[rank] for rank in self._pending])
                self._planned = [pool.ranks[place] for place in places]
            if not self._planned:
                return
            self._took(self._planned.pop(0), ranks)

    def _learn(self) -> Pool:
        """Bring the guide up to date: a little for each trial, and from the ground up ever more rarely."""
        self._corners = self._favourites = None
        n, stuck = len(self._learned), self._is_stuck()
        if self._renewal is None and (stuck or n >= self._next_renewal):
            # Where trials are in progress, there is time. Trees are not renewed aside: they are not made for it.
            aside = not stuck and self._pending and self._library == "numpy"
            later = max(LEAST_LAG, n // LAG) if aside else 0
            fit, reuses = n <= LATE or n >= self._next_fit, self._reuses_pool(n)
            self._next_fit = max(n + 2, int(n * GROWTH)) if fit else self._next_fit
            self._next_renewal = min(self._next_fit, n + LATE_DRAW)
            self._renew(Renewal(n, n + later, self._drawn if reuses else n, fit, tuple(self._pending)))
        if self._renewal is not None and (stuck or n >= self._renewal[0].due):
            self._take_over(*self._renewal)
        else:
            self._guide.hear(self._learned[self._heard[-1] :])
            self._heard.append(n)
        assert self._pool is not None, "a guide has a pool"
        return self._pool

    def _is_stuck(self) -> bool:
        """Whether the guide cannot continue: there is none yet, nothing is left, or trials were told that nobody asked
        for."""
        if self._pool is None or not self._heard or not self._pool.open.any():
            return True
        place = self._pool.place
        return any(t.rank not in place for t in self._learned[self._heard[-1] :])

    def _renew(self, renewal: Renewal) -> None:
        """Learn from the ground up; aside where there is time, while the guide that there is continues."""
        chosen = self._guide.choose(self._learned[: renewal.after])
        pool = self._pool if self._reuses_pool(renewal.after) else None
        drawing = self._drawing(chosen, renewal.drawn, renewal.pending) if pool is None else None
        aside = renewal.due > renewal.after
        guide = self._guide.heir() if aside else self._guide

        def work() -> tuple[Pool, Guide]:
            own = drawing() if drawing is not None else pool
            assert own is not None, "it is drawn where there is none"
            guide.renew(own, chosen, fit=renewal.fit)
            return own, guide

        self._renewal = renewal, in_background(work) if aside else _of(work())

    def _take_over(self, renewal: Renewal, ready: Future[tuple[Pool, Guide]]) -> None:
        """Go on with the renewed guide, which then hears of what was told meanwhile."""
        self._pool, self._guide = ready.result()
        self._renewal, self._drawn = None, renewal.drawn
        meanwhile = self._learned[renewal.after :]
        asked = [r for r in (*(t.rank for t in meanwhile), *self._pending) if r not in self._pool.place]
        if asked:
            self._pool.add(self._encoding, asked)
            self._guide.widen()
        for rank in self._fresh.taken:
            self._pool.close(rank)
        self._renewed_with, self._heard = [*renewal.pending, *asked], [renewal.after]
        if meanwhile:
            self._guide.hear(meanwhile)
            self._heard.append(len(self._learned))

    def _reuses_pool(self, trials: int) -> bool:
        """Whether the pool there is holds the whole space, and that is still looked at whole."""
        return self._pool is not None and self._fresh.count <= self._limit(trials)

    def _limit(self, trials: int) -> int:
        return LATE_DRAWN if trials > LATE else WHOLE if self._fresh.count <= WHOLE else DRAWN

    def _drawing(self, lessons: Sequence[Lesson], drawn: int, pending: Iterable[int]) -> Callable[[], Pool]:
        """Draws the pool after that many trials; one that holds a whole space depends on that alone."""
        right = [t for t in lessons if t.seconds is not None]
        best = sorted(right, key=lambda t: (t.seconds, t.rank))[:AROUND]
        needed = [*pending, *(t.rank for t in lessons)]
        limit, seed = self._limit(drawn), self._seed + drawn
        return partial(draw_pool, self._encoding, set(self._fresh.taken), needed, [t.rank for t in best], limit, seed)

    # Going on from a state -----------------------------------------------------------------------------------------

    def state(self) -> JsonObject | None:
        """None while the guide has not learned yet: then it is quick to ask again."""
        if not self._heard:
            return None
        heard = dict.fromkeys(self._heard)
        return Checkpoint(
            *self._fresh.state(),
            self._first,
            self._judged,
            self._trusts,
            tuple(self._guide.general()),
            self._drawn,
            tuple(self._renewed_with),
            tuple(heard),
            self._next_renewal,
            self._next_fit,
            tuple(self._planned),
            None if self._renewal is None else self._renewal[0],
        ).to_json()

    def restore(self, state: Mapping[str, Any], ranks: Sequence[int], trials: Sequence[Trial]) -> None:
        kept = Checkpoint.from_json(state)
        lessons = Lessons()
        learned = [lesson for trial in trials for lesson in lessons.of(trial)]
        if not kept.fits(self._fresh.count, frozenset(ranks), len(learned)) or kept.trusts > self._trusts:
            raise ValueError("this state is of another search")
        if kept.trusts < self._trusts:
            self._trusts = False
            self._begin()
        self._guide.recall(kept.general)
        self._fresh.restore(kept.starts, kept.position, ranks)
        ended = {trial.rank for trial in trials}
        self._pending = dict.fromkeys(rank for rank in ranks if rank not in ended)
        self._lessons, self._learned = lessons, learned
        self._right = sum(trial.seconds is not None for trial in trials)
        self._first, self._judged, self._drawn = kept.first, kept.judged, kept.drawn
        self._next_renewal, self._next_fit = kept.next_renewal, kept.next_fit
        self._planned, self._renewed_with, self._heard = list(kept.planned), list(kept.pending), list(kept.heard)
        chosen = self._guide.choose(learned[: kept.heard[0]])
        self._pool = self._drawing(chosen, kept.drawn, kept.pending)()
        self._guide.renew(self._pool, chosen, fit=False)
        if any(t.rank not in self._pool.place for t in learned[kept.heard[0] : kept.heard[-1]]):
            raise ValueError("this state is of another search")
        for start, end in pairwise(kept.heard):
            self._guide.hear(learned[start:end])
        if kept.renewal is not None:
            self._renew(kept.renewal)


@dataclass(frozen=True)
class Renewal(Serializable):
    """What a renewal of the guide starts from, and when it is used."""

    after: int  # trials told when it began
    due: int  # trials told from which on it is used
    drawn: int  # trials told when its pool was drawn
    fit: bool
    pending: tuple[int, ...]  # ranks that were in progress when it began

    def fits(self, ranks: frozenset[int], learned: int) -> bool:
        """Whether it can be of a search of such proposals and lessons."""
        return 0 <= self.drawn <= self.after <= min(self.due, learned) and ranks.issuperset(self.pending)


@dataclass(frozen=True)
class Checkpoint(Serializable):
    """Small: the pool and the guide's posteriors are made again, only what took long to learn is kept."""

    starts: int  # of the configs not proposed yet: how many starts are left,
    position: int  # and how far the random order was followed
    first: int
    judged: int
    trusts: bool
    general: tuple[float, ...]  # what the guide knows of the knobs in general
    drawn: int  # trials told when the pool was drawn
    pending: tuple[int, ...]  # ranks that were in progress when the guide was renewed
    heard: tuple[int, ...]  # trials told when the guide was renewed, and at each time that it heard of more
    next_renewal: int
    next_fit: int
    planned: tuple[int, ...]
    renewal: Renewal | None  # in progress

    def fits(self, count: int, ranks: frozenset[int], learned: int) -> bool:
        """Whether it can be of a search in a space of `count` configs of such proposals and lessons."""
        numbers = (self.starts, self.position, self.first, self.judged, self.drawn, self.next_renewal, self.next_fit)
        return (
            min(numbers) >= 0
            and self.position <= count
            and ranks.issuperset(self.pending)
            and all(0 <= rank < count and rank not in ranks for rank in self.planned)
            and list(self.heard) == sorted(self.heard)
            and len(self.heard) > 0
            and self.drawn <= self.heard[0] <= self.heard[-1] <= learned
            and (self.renewal is None or self.renewal.fits(ranks, learned))
        )


def _of(result: tuple[Pool, Guide]) -> Future[tuple[Pool, Guide]]:
    future: Future[tuple[Pool, Guide]] = Future()
    future.set_result(result)
    return future
