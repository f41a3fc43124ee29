"""Finals: the fastest trials and the baselines, verified on harder inputs and timed side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from statistics import median

from deepgen.baselines import by_name, raced
from deepgen.operators import Operator
from deepgen.run.measure.base import Contender, Task
from deepgen.run.measure.endurance import WORN_CALLS, WORN_SHARE
from deepgen.tuning.costs import LOAD, REFERENCE, SAMPLE, VERIFY
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.finals.bursts import BurstTimes, entries, run_bursts
from deepgen.tuning.finals.crowning import Crowned, crown, serves_untried, threads_untried
from deepgen.tuning.finals.plan import (
    CHUNK,
    FIRST,
    LEAST_FINALISTS,
    MARGIN,
    STRIDED_SHAPES,
    Bounded,
    FinalsPlan,
    OutOfTime,
    plan_finals,
)
from deepgen.tuning.finals.qualifying import Qualified, Qualifying, entrants, overlooked, verified_first, with_first
from deepgen.tuning.finals.race import Race, by_shape, choose, raced_among, raced_baseline, raced_trial, run_race
from deepgen.tuning.progress import FINALISTS, RACE, WAITING, WINNER, Clock
from deepgen.tuning.study.finals import DroppedTrial, Finals, LostBaseline, RacedTrial, Slower, Waited
from deepgen.tuning.study.text import counted
from deepgen.vocabulary import Kernel, Measurement, Trial, Verdict
from deepgen.vocabulary.measurement import Properties

_HEATING = 0.1  # share of the remaining time, for timing slower trials again
_NEAR = 1.3  # times the best trial's time: with a time budget, slower trials do not race
_PATIENCE = 0.3  # share of the time not needed by the race that may be spent waiting for baselines before it
_MORE_PATIENCE = 0.6  # the same after the race, when only the winner's last checks remain
_BURSTS = 0.3  # share of the time left, for bursts


def run_finals(
    session: Arena,
    task: Task,
    trials: Sequence[Trial],
    emit: Callable[[Trial], Kernel],
    *,
    default: Trial | None,
    keep: int,
    baselines: bool | Sequence[str],
    max_seconds: float = inf,
    clock: Clock | None = None,
    loaded: Callable[[float], Collection[str] | None] = lambda seconds: None,
    say: Callable[[str], None] = lambda text: None,
) -> Finals:
    """Choose the winner among the trials: the best `keep` that pass the harder inputs race, and any disturbed ones.

    The default, the config that the search began with, always races too, whatever its trial measured (None if it was
    not correct): among many trials some look faster than they are, and a search must not end with a slower kernel than
    it began with. With a time budget, steps that do not fit are skipped (`plan.py` has the order) and reported.
    `loaded` waits up to that many seconds for baselines to load, and returns the loaded ones.
    """
    clock = clock or Clock()
    able = session.baselines() if baselines else []
    right = next((trial for trial in trials if trial.ok), None) if baselines is True else None
    packs = right is not None and bool(emit(right).plan.prepare)
    arena = session if clock.left == inf else Bounded(session, clock)
    course = _Course(arena, task, clock, asked_for(baselines, able, task.operator, packs), loaded, max_seconds, say)
    with session.quiet(), suppress(OutOfTime):  # what has been done until then counts
        course.hold(trials, emit, default, keep)
    unable = () if isinstance(baselines, bool) else tuple(_unable(task, name) for name in baselines if name not in able)
    return course.result(trials, default, unable)


def wanted_plan(task: Task, finalists: int, baselines: int) -> FinalsPlan:
    """Everything that finals would do with unlimited time."""
    sets, shapes, policy = len(verified_first(task)), len(task.neighbours), task.policy
    limits = policy.race_seconds, shapes > 0, shapes, policy.calm_seconds
    return FinalsPlan(finalists, sets, baselines, *limits, worn=WORN_SHARE * policy.calls_seconds)


class _Course:
    """The state of the finals, kept so that they can end early when time runs out."""

    def __init__(
        self,
        arena: Arena,
        task: Task,
        clock: Clock,
        names: Sequence[str],
        loaded: Callable[[float], Collection[str] | None],
        most_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._arena, self._task, self._clock, self._asked = arena, task, clock, tuple(names)
        self._names = list(names)  # racing baselines
        self._ready: list[str] = []  # baselines for which the race seemed to have no time
        self._late: list[str] = []  # baselines that were not loaded when the race began
        self._loaded, self._say = loaded, say
        self._began = time.monotonic()
        wanted = wanted_plan(task, 0, 0)
        self._wanted = replace(wanted, race=min(most_seconds, wanted.race))
        self._field = Qualified()
        self._qualifying: Qualifying | None = None
        self._race: Race | None = None
        self._lost: dict[str, Measurement] = {}
        self._crowned: Crowned | None = None
        self._bursts = BurstTimes()
        self._waited: Waited | None = None

    def hold(self, trials: Sequence[Trial], emit: Callable[[Trial], Kernel], default: Trial | None, keep: int) -> None:
        """Qualify, wait for a quiet machine, race, choose the winner, and check other shapes."""
        arena, task, clock, say = self._arena, self._task, self._clock, self._say
        self._qualify(trials, emit, default, keep)
        if not self._field.finalists:
            return
        clock.enter(WAITING)
        self._await_baselines()
        with clock.on("waiting"):
            self._waited = wait_for_calm(arena, self._planned().calm, say)
        brief = clock.left != inf
        self._run_race(brief)
        while self._race is not None and (self._take_up() or (brief and self._fits_race())):
            brief = False
            self._run_race(brief)
        if self._race is None or not self._field.finalists:
            return
        first = choose(self._field.finalists, self._race)[0]
        self._run_bursts(first.kernel, self._race)
        clock.enter(WINNER)
        say("verifying the winner over many calls and at other shapes")
        with clock.on("verifying"):
            self._crowned = crown(arena, task, self._field, self._race, clock)
        if self._crowned is not None and self._crowned.winner is not first:
            self._run_bursts(self._crowned.winner.kernel, self._crowned.race)

    def _planned(self) -> FinalsPlan:
        """The steps of the finals that fit, estimated from what the steps so far have taken."""
        spare = self._clock.spare + (time.monotonic() - self._began)
        wanted = replace(self._wanted, baselines=len(self._names))
        return plan_finals(spare, self._clock.costs, wanted)

    def _qualify(
        self, trials: Sequence[Trial], emit: Callable[[Trial], Kernel], default: Trial | None, keep: int
    ) -> None:
        arena, task, clock, say = self._arena, self._task, self._clock, self._say
        clock.enter(FINALISTS)
        # The default comes first, then the fastest trial: with little time, only these two race.
        leading = [] if default is None else [default]
        within = inf if clock.left == inf else _NEAR  # slower ones would only cost time
        candidates, keep = with_first(leading, *entrants(trials, keep, within))
        self._wanted = replace(self._wanted, finalists=keep)
        if task.target.shares_cores_with_builds and self._planned().finalists == keep:  # with whatever else runs there
            say("rechecking slower trials")
            with clock.on("measuring"):
                most = clock.samples_left(_HEATING)
                late = overlooked(arena, trials, candidates[:keep], emit, task.seed, most)
            candidates, keep = with_first([*leading, *late], candidates, keep)
            self._wanted = replace(self._wanted, finalists=keep)
        say("verifying finalists on other inputs")
        with clock.on("verifying"):
            qualifying = self._qualifying = Qualifying(arena, task, candidates, emit, default, clock)
            field = self._field = qualifying.result
            # With a budget the first race is short: more finalists and input sets come after it.
            few = keep if clock.left == inf else min(LEAST_FINALISTS, keep)
            qualifying.fill(few)
            while (not field.sets or clock.left == inf) and qualifying.next_set(few):
                pass

    def _take_up(self) -> bool:
        """Resume skipped steps that now fit, since their cost is known. Returns whether to race again."""
        clock, field, qualifying = self._clock, self._field, self._qualifying
        if clock.left == inf or qualifying is None or self._race is None:
            return False
        clock.enter(FINALISTS)
        fresh, verify = clock.costs.of(REFERENCE), clock.costs.of(VERIFY)
        racing = len(field.finalists)
        race = self._short_race(len(field.finalists) + len(self._names) + len(self._late)) if self._late else 0.0
        if self._late:  # a comparison with a baseline is worth more than further finalists and inputs
            with clock.on("waiting"):
                spare = clock.spare - self._for_bursts - MARGIN * race
                loaded = self._loaded(max(0.0, _MORE_PATIENCE * spare)) or ()
            self._ready += [name for name in self._late if name in loaded]
            self._late = []
        with clock.on("verifying"):
            while self._fits(race + fresh + len(field.finalists) * verify) and qualifying.next_set(0):
                pass
        self._race = raced_among(self._race, [f.name for f in field.finalists])
        if self._race is None:
            return False

        def fits(finalists: int, baselines: int) -> bool:
            entering = max(0, finalists - racing) * field.sets * verify
            return self._fits(entering + self._short_race(finalists + baselines))

        names = [*self._names, *self._ready]
        ready = self._ready if self._ready and fits(len(field.finalists), len(names)) else []
        count = len(field.finalists) + qualifying.lacking(self._wanted.finalists)
        while count > len(field.finalists) and not fits(count, len(self._names) + len(ready)):
            count -= 1
        with clock.on("verifying"):
            qualifying.fill(count)
        if ready:
            self._names, self._ready = names, []
        return bool(ready) or len(field.finalists) > racing

    def _fits_race(self) -> bool:
        """Whether another race would have more rounds than a short one."""
        contenders = len(self._field.finalists) + len(self._names)
        return self._fits(self._short_race(contenders) + 2 * contenders * self._clock.costs.of(SAMPLE))

    def _short_race(self, contenders: int) -> float:
        costs = self._clock.costs
        return contenders * (2 * costs.of(VERIFY) + FIRST * costs.of(SAMPLE))

    def _fits(self, seconds: float) -> bool:
        """Whether one more step would end in time, with a margin in case it takes longer than expected."""
        return MARGIN * seconds + self._for_bursts < self._clock.spare

    def _left_to_race(self, began: float) -> float:
        return min(self._wanted.race - (time.monotonic() - began), self._clock.spare - self._for_bursts)

    @property
    def _for_bursts(self) -> float:
        """Seconds reserved for bursts, at least: their times can matter more than the race's."""
        return (len(self._names) + 2) * self._planned().entry if self._task.target.runner == "cpu" else 0.0

    def _await_baselines(self) -> None:
        """Baselines race if they are loaded before the race has to start."""
        if not self._names or self._clock.left == inf:
            return
        with self._clock.on("waiting"):
            needed = len([*self._names, *self._field.finalists]) * self._planned().entry
            loaded = self._loaded(max(0.0, _PATIENCE * (self._clock.spare - needed)))
        if loaded is None:  # baselines are then loaded during the race
            able = self._names if self._clock.fits(LOAD) else []
        else:
            able = [name for name in self._names if name in loaded]
            self._late = [name for name in self._names if name not in able]
        if needed > self._clock.spare:
            able, self._ready = [], able
        self._names = able

    def _run_race(self, brief: bool) -> None:
        clock, finalists = self._clock, self._field.finalists
        groups = [counted(len(finalists), "finalist")] + [counted(len(self._names), "baseline")] * bool(self._names)
        clock.enter(RACE)
        self._say(f"timing {' and '.join(groups)} side by side")
        rivals = [f.name for f in finalists]
        contenders = [Contender(f.name, f.kernel, worn=WORN_CALLS) for f in finalists]
        contenders += [Contender(n) for n in self._names]
        shown = [*(f.name for f in finalists if f.default), *self._names]
        rounds = CHUNK if clock.left == inf else FIRST
        with clock.on("measuring"):
            # All the time that later steps do not need; the usual rounds take priority over other shapes.
            plan = self._planned()
            later = plan.closing + (STRIDED_SHAPES * plan.strided + plan.shapes) * clock.costs.of(REFERENCE)
            limit = 0.0 if brief else min(self._wanted.race, (clock.spare - self._for_bursts - later) / MARGIN)
            left = partial(self._left_to_race, time.monotonic()) if not brief else float
            self._race, self._lost = run_race(
                self._arena, contenders, rivals, self._task.seed, limit, shown, rounds, left
            )
        self._field.dropped += [
            DroppedTrial(f.trial.id, m.verdict, f"in the race: {m.detail}")
            for f in finalists
            if (m := self._lost.get(f.name))
        ]
        self._field.finalists[:] = [f for f in finalists if f.name not in self._lost]

    def _run_bursts(self, winner: Kernel, race: Race) -> None:
        """Time the winner and the baselines the way users call them."""
        names = [name for name in self._names if name in race.samples]
        plan = self._planned()
        if entries(self._task, names) * plan.entry > self._clock.spare:
            return
        self._clock.enter(RACE)
        with self._clock.on("measuring"), suppress(OutOfTime):
            limit = min(plan.race, _BURSTS * self._clock.spare)
            self._bursts = run_bursts(self._arena, self._task, winner, names, limit)

    def result(self, trials: Sequence[Trial], default: Trial | None, unable: Sequence[LostBaseline]) -> Finals:
        lost = [
            LostBaseline(name, row.verdict, row.detail, row.error)
            for name, row in self._lost.items()
            if name in self._names
        ]
        common = Finals(
            None,
            dropped=tuple(self._field.dropped),
            baselines_lost=(*lost, *unable),
        )
        crowned = self._crowned or self._led()
        common = replace(common, left_out=(*self._not_done(), *(crowned.left_out if crowned else ())))
        if crowned is None:
            return self._unraced(common, trials, default)
        winner, ties, race = crowned.winner, crowned.ties, crowned.race
        return replace(
            common,
            winner=winner.trial.id,
            ties=tuple(f.trial.id for f in ties),
            tie_broken_by=("default" if winner.default else "resources") if ties else None,
            rounds=len(race.samples[race.leader]),
            finalists=tuple(raced_trial(f, race) for f in self._field.finalists if f.name in race.ratios),
            baselines=tuple(
                raced_baseline(self._task, name, winner.name, race, self._bursts)
                for name in self._names
                if name in race.samples
            ),
            serves=crowned.serves,
            properties=crowned.properties,
            afresh=crowned.afresh,
            shapes=by_shape(self._task, winner.name, self._names, race),
            conditions=tuple(race.conditions),
            waited=self._waited,
        )

    def _led(self) -> Crowned | None:
        """The leader of the race, if time ran out between the race and the last checks."""
        names = [f.name for f in self._field.finalists]
        race = raced_among(self._race, names) if self._race is not None and self._clock.left != inf else None
        if race is None:
            return None
        winner, ties = choose([f for f in self._field.finalists if f.name in race.samples], race)
        near, properties = len(self._task.neighbours), Properties(threads=threads_untried(self._task))
        left_out = ["many calls", "calls in a fresh process", "calls from several threads"]
        left_out += [counted(near, "other shape")] if near else []
        serves = serves_untried(self._task, self._field.sets)
        return Crowned(winner, ties, race, serves, properties, left_out=left_out)

    def _not_done(self) -> list[str]:
        """The steps that were skipped before and during the race."""
        sets, done, race = self._wanted.sets, self._field.sets, self._race
        missing = self._qualifying.lacking(self._wanted.finalists) if self._qualifying and race else 0
        rounds = len(race.samples[race.leader]) if race else CHUNK
        return [
            *([f"{sets - done} of {counted(sets, 'set')} of other inputs"] if 0 < done < sets else []),
            *([f"{missing} of {counted(self._wanted.finalists, 'finalist')}"] if missing else []),
            *(f"baseline {name}" for name in self._asked if name not in self._names),
            *([f"timing rounds after the first {rounds}"] if rounds < CHUNK else []),
        ]

    def _unraced(self, finals: Finals, trials: Sequence[Trial], default: Trial | None) -> Finals:
        """The result when time ran out before a race: the default, or the fastest trial if the default is wrong."""
        dropped = {row.trial for row in finals.dropped}
        right = [trial for trial in entrants(trials, 1)[0] if trial.id not in dropped]
        if default is not None and default.id not in dropped and default.measurement.samples:
            right = [default, *right]
        if self._clock.left == inf or self._race is not None or self._lost or not right:
            return finals  # all finalists failed
        trial, left_out = right[0], list(finals.left_out)
        if not self._field.sets:
            left_out.append("all sets of other inputs")
        left_out += ["the race", *(f"baseline {name}" for name in self._names)]
        left_out += [counted(len(self._task.neighbours), "other shape")] if self._task.neighbours else []
        samples, level = trial.measurement.samples, Slower(1.0, 1.0, 1.0)
        is_default = default is not None and trial.id == default.id
        row = RacedTrial(
            trial.id, trial.rank, dict(trial.config), is_default, trial.kernel_id, median(samples), samples, level
        )
        serves = serves_untried(self._task, self._field.sets)
        properties = Properties(threads=threads_untried(self._task))
        finals = replace(finals, serves=serves, properties=properties, left_out=tuple(left_out))
        return replace(finals, winner=trial.id, finalists=(row,))


def asked_for(
    baselines: bool | Sequence[str], able: Sequence[str], operator: Operator, packs: bool = False
) -> list[str]:
    """The baselines that race, among those that can run here. `packs`: our kernels pack weights ahead of calls."""
    return (
        raced(able, operator, packs=packs) if baselines is True else [name for name in baselines or () if name in able]
    )


def wait_for_calm(session: Arena, limit: float, say: Callable[[str], None]) -> Waited:
    """Wait until the machine is quiet. Returns how long, what disturbed it first, and what still did at the end."""
    started = time.monotonic()
    by = disturbed = session.disturbed() if limit > 0 else None
    while disturbed is not None and time.monotonic() - started < limit:
        say(f"waiting for a quiet machine: {disturbed}")
        disturbed = session.disturbed()
    waited = time.monotonic() - started if by is not None else 0.0
    return Waited(round(waited, 1), by, disturbed)


def _unable(task: Task, name: str) -> LostBaseline:
    """A baseline that was requested by name and cannot run."""
    why = by_name(name, task.own_baselines).missing(task.operator, task.target) or "it is not where kernels are timed"
    return LostBaseline(name, Verdict.REFUSED, why)
