"""The default strategy: search guided by a cost model from the first trials on.

It begins with a few configs far apart, then always takes the config with the largest expected improvement times the
probability that it works. Running trials count as if they had ended as predicted, so that the configs of a batch
differ. If there are related earlier studies, the first configs come from them.

Fitting the model, drawing a pool of configs and predicting them takes as long as several trials on a fast device. While
trials are running this happens in a thread, and the previous model stays in use. The point at which the new model takes
over depends only on the asks and tells, so a search is reproducible at any thread speed.
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

DESIGN = 8  # configs far apart, before the model is used,
INFORMED = 6  # or this many that earlier studies rate highly
CORNERS = 1_000  # configs from which they are chosen: enough to include corners, few enough that seeds differ
JUDGED_AT = (16, 32, 64)  # correct trials
TOP_SHARE, TOP_LEAST = 0.02, 40  # share of the pool that earlier studies rate highest, and the least number
LEARN = 3  # correct trials needed before the model learns
WHOLE = 20_000  # the largest space that is used as a whole
DRAWN = 4_096  # configs drawn from a larger one,
GROWTH = 1.25  # the model is refitted when the number of trials has grown by this factor
# With more than LATE trials each one must be cheap:
LATE, LATE_DRAWN = 200, 2_048  # fewer configs are considered,
LATE_DRAW = 100  # the pool is redrawn after this many trials,
AHEAD = 16  # and this many are chosen together
LEAST_LAG, LAG = 3, 16  # trials told during a renewal: at least a batch with two compilers, or one trial in LAG
AROUND = 5  # the best configs, whose neighbours join the pool when the space is too large to be used whole


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
        self._first = 0  # configs that were chosen before the model was used
        self._judged = 0  # how often earlier studies were checked
        self._prior = Prior(setting.space, setting.history)
        self._trusts = bool(self._prior.names)  # whether configs are expected to be as fast as in earlier studies
        self._begin()

    @property
    def learned_from(self) -> list[str]:
        """The earlier studies that guide this search; empty once they proved misleading."""
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
        """Leave the encoding and the guide to first use: the first config may be a given start, which must not wait."""
        self.__dict__.pop("_encoding", None)
        self.__dict__.pop("_guide", None)
        self._pool: Pool | None = None
        self._corners: Design | None = None
        self._favourites: Design | None = None
        self._drawn = 0  # number of trials told when the pool was drawn
        self._renewed_with: list[int] = []  # ranks in progress when the guide was renewed
        self._heard: list[int] = []  # number of trials told when the guide was renewed, and at each update since
        self._next_renewal = 0
        self._next_fit = 0
        self._planned: list[int] = []
        self._renewal: tuple[Renewal, Future[tuple[Pool, Guide]]] | None = None  # the renewal in progress

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
        """Whether there are too few trials to learn from."""
        enough = INFORMED if self._trusts else DESIGN
        return self._first < enough or self._right < LEARN

    def _take_first(self, ranks: list[int]) -> bool:
        """Take a config far from all earlier ones: one that earlier studies rate highly, or any."""
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
        """The places in the pool that earlier studies expect to be fastest, best first."""
        if not self._trusts:
            return np.empty(0, dtype=np.int64)
        count = max(TOP_LEAST, int(TOP_SHARE * len(pool.ranks)))
        return np.argsort(self._prior.expected(pool.columns.T), kind="stable")[:count]

    def _judge_prior(self) -> None:
        """Drop earlier studies that mislead, checked at each of JUDGED_AT correct trials."""
        if not self._trusts or self._judged == len(JUDGED_AT) or self._right < JUDGED_AT[self._judged]:
            return
        self._judged += 1
        right = [t for t in self._learned if t.seconds is not None]
        codes = self._encoding.codes([t.rank for t in right])
        if self._prior.misleads(codes, np.array([t.seconds for t in right])):
            self._trusts = False
            self._begin()

    # Guided configs ----------------------------------------------------------------------------------------------

    def _take_best(self, n: int, ranks: list[int]) -> None:
        """Take the configs with the largest expected improvement."""
        pool = self._learn()
        for place in self._guide.ahead(n - len(ranks), [pool.place[rank] for rank in self._pending]):
            self._took(pool.ranks[place], ranks)

    def _take_planned(self, n: int, ranks: list[int]) -> None:
        """Take configs from a batch chosen together, and choose the next batch when it is used up."""
        while len(ranks) < n:
            if not self._planned:
                pool = self._learn()
                places = self._guide.ahead(AHEAD, [pool.place[rank] for rank in self._pending])
                self._planned = [pool.ranks[place] for place in places]
            if not self._planned:
                return
            self._took(self._planned.pop(0), ranks)

    def _learn(self) -> Pool:
        """Bring the guide up to date: incrementally for each trial, and by a full renewal at growing intervals."""
        self._corners = self._favourites = None
        n, stuck = len(self._learned), self._is_stuck()
        if self._renewal is None and (stuck or n >= self._next_renewal):
            # Trials in progress leave time for a renewal in a thread. Trees do not support this.
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
        """Whether the guide cannot continue: it does not exist yet, no configs are left, or trials were told that were
        never asked for."""
        if self._pool is None or not self._heard or not self._pool.open.any():
            return True
        place = self._pool.place
        return any(t.rank not in place for t in self._learned[self._heard[-1] :])

    def _renew(self, renewal: Renewal) -> None:
        """Renew the guide from all chosen trials: in a thread if time allows, while the current guide stays in use."""
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
        """Switch to the renewed guide, and tell it the trials that ended meanwhile."""
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
        """Whether the current pool holds the whole space, and may still be used."""
        return self._pool is not None and self._fresh.count <= self._limit(trials)

    def _limit(self, trials: int) -> int:
        return LATE_DRAWN if trials > LATE else WHOLE if self._fresh.count <= WHOLE else DRAWN

    def _drawing(self, lessons: Sequence[Lesson], drawn: int, pending: Iterable[int]) -> Callable[[], Pool]:
        """A function that draws the pool after that many trials; a pool of the whole space depends on that only."""
        right = [t for t in lessons if t.seconds is not None]
        best = sorted(right, key=lambda t: (t.seconds, t.rank))[:AROUND]
        needed = [*pending, *(t.rank for t in lessons)]
        limit, seed = self._limit(drawn), self._seed + drawn
        return partial(draw_pool, self._encoding, set(self._fresh.taken), needed, [t.rank for t in best], limit, seed)

    # Saving and restoring the state --------------------------------------------------------------------------------

    def state(self) -> JsonObject | None:
        """The state; None until the guide has learned, because repeating the asks is quick then."""
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
    """The input of a renewal of the guide, and when its result comes into use."""

    after: int  # trials told when the renewal began
    due: int  # number of trials told from which its result is used
    drawn: int  # trials told when its pool was drawn
    fit: bool
    pending: tuple[int, ...]  # ranks in progress when the renewal began

    def fits(self, ranks: frozenset[int], learned: int) -> bool:
        """Whether this may belong to a search with these proposals and lessons."""
        return 0 <= self.drawn <= self.after <= min(self.due, learned) and ranks.issuperset(self.pending)


@dataclass(frozen=True)
class Checkpoint(Serializable):
    """The saved state. It is small: it has only what took long to learn; the pool and the posteriors are recomputed."""

    starts: int  # of the configs not proposed yet: how many given starts are left,
    position: int  # and the position in the random order
    first: int
    judged: int
    trusts: bool
    general: tuple[float, ...]  # the guide's hyperparameters
    drawn: int  # number of trials told when the pool was drawn
    pending: tuple[int, ...]  # ranks in progress when the guide was renewed
    heard: tuple[int, ...]  # number of trials told when the guide was renewed, and at each update since
    next_renewal: int
    next_fit: int
    planned: tuple[int, ...]
    renewal: Renewal | None  # the renewal in progress

    def fits(self, count: int, ranks: frozenset[int], learned: int) -> bool:
        """Whether this may belong to a search with these proposals and lessons, in a space of `count` configs."""
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
