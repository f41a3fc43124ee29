"""Finals: the best kernels and the baselines, verified on harder inputs and timed side by side on a quiet machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any

from deepgen.baselines import by_name, raced
from deepgen.run.measure.base import Contender, Task
from deepgen.run.measure.race import TIE, RaceResult, Ratio, paired_ratio, race
from deepgen.tuning.bursts import OURS, BurstTimes, noise, run_bursts
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.entrants import entrants, overlooked
from deepgen.tuning.progress import Clock
from deepgen.tuning.qualifying import Finalist, qualify, tried_at_neighbours
from deepgen.tuning.study.finals import (
    DroppedTrial,
    Finals,
    LostBaseline,
    RacedBaseline,
    RacedTrial,
    ShapeTimes,
    Slower,
    Waited,
)
from deepgen.tuning.study.text import counted
from deepgen.vocabulary import Kernel, Measurement, Trial, Verdict

CHUNK = 10  # rounds between two checks of the intervals
FIRST = 3  # rounds before the first check of the time, where there is a budget
ROUNDS = 60  # at most, where the noise is small enough
NOISY_ROUNDS = 240  # at most, where it is not: see `_narrow_enough`
SHOWN_SECONDS = 3.0  # at most, of a race whose extra rounds serve only to narrow shown intervals
SHOWN_WIDTH = 0.04  # of the intervals that a user sees, as a share of the ratio
ENOUGH = 0.004  # half-width of the decisive intervals at which more rounds would decide nothing
_HEATING, _QUALIFYING, _WAITING, _RACING, _BURSTS = (
    0.1,
    0.3,
    0.2,
    0.7,
    0.3,
)  # of the budget that is left, when each begins


@dataclass(frozen=True)
class Race:
    """The samples of all contenders, round by round, and the ratios computed from them."""

    samples: dict[str, list[float]]
    ratios: dict[str, Ratio]  # against the leader
    leader: str
    conditions: list[Mapping[str, Any]] = field(default_factory=list)


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
    say: Callable[[str], None] = lambda text: None,
) -> Finals:
    """Choose the winner among the trials: the best `keep` that survive the harder inputs race, and any disturbed ones.

    The default, the config that the search began with, always races too, whatever its trial measured (None if it was
    not right): among many trials some look faster than they are, and a search must not end with a slower kernel than
    it began with. With a time budget, fewer kernels take part, in fewer rounds, with a shorter wait for a calm machine.
    """
    clock = clock or Clock()
    able = session.baselines() if baselines else []
    names = asked_for(baselines, able)
    candidates, keep = entrants(trials, keep)
    keep = min(keep, max(2, int(min(keep, clock.samples_left(_RACING * (1 - _QUALIFYING)) / CHUNK - len(names)))))
    with session.quiet():
        if task.target.shares_cores_with_builds:  # and with whatever else runs there
            say("builds paused: another look at slower trials")
            with clock.on("measuring"):
                most = clock.samples_left(_HEATING)
                late = overlooked(session, trials, candidates[:keep], emit, task.seed, most)
            candidates, keep = _before(late, candidates, keep)
        if default is not None and all(default.id != trial.id for trial in candidates[:keep]):
            candidates, keep = _before([default], candidates, keep)
        say("builds paused: verifying finalists on other inputs")
        with clock.on("verifying"):
            finalists, dropped = qualify(session, task, candidates, emit, keep, default, _QUALIFYING * clock.left)
        if not finalists:
            return Finals(None, dropped=tuple(dropped))
        with clock.on("waiting"):
            waited = wait_for_calm(session, min(task.policy.calm_seconds, _WAITING * clock.left), say)
        raced = f"{counted(len(finalists), 'finalist')} and {counted(len(names), 'baseline')}"
        say(f"builds paused: timing {raced} side by side")
        contenders = [Contender(f.name, f.kernel) for f in finalists] + [Contender(n) for n in names]
        with clock.on("measuring"):
            limit = min(max_seconds, task.policy.race_seconds, _RACING * clock.left)
            shown = [*(f.name for f in finalists if f.default), *names]
            first = CHUNK if clock.left == inf else FIRST
            race, lost = run_race(session, contenders, [f.name for f in finalists], task.seed, limit, shown, first)
        dropped += [
            DroppedTrial(f.trial.id, m.verdict, f"in the race: {m.detail}")
            for f in finalists
            if (m := lost.get(f.name))
        ]
        finalists = [f for f in finalists if f.name not in lost]
        if race is not None and finalists:
            winner, ties = choose(finalists, race)
            with clock.on("measuring"):
                fit = [name for name in names if name in race.samples]
                bursts = run_bursts(session, task, winner.kernel, fit, min(limit, _BURSTS * clock.left))
            say("builds paused: verifying the winner at other shapes")
            with clock.on("verifying"):
                serves = tried_at_neighbours(session, task, winner.kernel, clock.left)
    baselines_lost = [
        LostBaseline(name, lost[name].verdict, lost[name].detail, lost[name].error) for name in names if name in lost
    ]
    if not isinstance(baselines, bool):
        baselines_lost += [_unable(task, name) for name in baselines if name not in able]
    if race is None or not finalists:
        return Finals(None, dropped=tuple(dropped), baselines_lost=tuple(baselines_lost))
    return Finals(
        winner.trial.id,
        ties=tuple(f.trial.id for f in ties),
        tie_broken_by=("default" if winner.default else "resources") if ties else None,
        rounds=len(race.samples[race.leader]),
        finalists=tuple(_raced_trial(f, race) for f in finalists),
        baselines=tuple(_raced_baseline(task, name, winner.name, race, bursts) for name in fit),
        baselines_lost=tuple(baselines_lost),
        dropped=tuple(dropped),
        serves=serves,
        shapes=_by_shape(task, winner.name, names, race),
        conditions=tuple(race.conditions),
        waited=waited,
    )


def _before(first: Sequence[Trial], candidates: Sequence[Trial], keep: int) -> tuple[list[Trial], int]:
    """The candidates with these in front, and how many shall race then."""
    ids = {trial.id for trial in first}
    return [*first, *(t for t in candidates if t.id not in ids)], keep + len(first)


def asked_for(baselines: bool | Sequence[str], able: Sequence[str]) -> list[str]:
    """The baselines that take part, of those that can run here."""
    return raced(able) if baselines is True else [name for name in baselines or () if name in able]


def wait_for_calm(session: Arena, limit: float, say: Callable[[str], None]) -> Waited:
    """Wait until nothing disturbs the machine: for how long, what had, and what still did when the time was up."""
    started = time.monotonic()
    by = disturbed = session.disturbed() if limit > 0 else None
    while disturbed is not None and time.monotonic() - started < limit:
        say(f"waiting for a calm machine: {disturbed}")
        disturbed = session.disturbed()
    waited = time.monotonic() - started if by is not None else 0.0
    return Waited(round(waited, 1), by, disturbed)


def run_race(
    session: Arena,
    contenders: Sequence[Contender],
    rivals: Sequence[str],
    seed: int,
    max_seconds: float,
    shown: Sequence[str] = (),
    first: int = CHUNK,
) -> tuple[Race | None, dict[str, Measurement]]:
    """Run rounds until the order is settled or the time is up. Gives the race and those that failed in it.

    A user sees the ratios to those in `shown`: some more rounds narrow their intervals. After `first` rounds, only as
    many are begun as the time that is left allows at the pace so far.
    """
    conditions: list[Mapping[str, Any]] = []
    lost: dict[str, Measurement] = {}
    by_name = {one.name: one for one in contenders}

    def time_rounds(names: Sequence[str], rounds: int, start: int) -> Mapping[str, Sequence[float]]:
        timed = {}
        results = session.compare([by_name[name] for name in names], rounds, seed + start)
        for name, measured in zip(names, results, strict=True):
            if measured.verdict is not Verdict.CORRECT or not measured.samples:
                lost[name] = measured
                continue
            timed[name] = measured.samples
            conditions.append({"name": name, "rounds_from": start, **measured.conditions})
        return timed

    def more(result: RaceResult[str]) -> int:
        leader = result.leader(rivals)
        if leader is None:
            return 0
        elapsed = sum(result.seconds)
        racing = [result.ratio(name, leader) for name in rivals if name in result.samples]
        settled = result.rounds >= CHUNK and _narrow_enough(racing, result.rounds)
        clear = all(result.ratio(name, leader).width <= SHOWN_WIDTH for name in shown if name in result.samples)
        if settled and (clear or result.rounds >= ROUNDS or elapsed > SHOWN_SECONDS):
            return 0
        return min(CHUNK, result.fitting(max_seconds) if elapsed else CHUNK, NOISY_ROUNDS - result.rounds)

    result = race(by_name, time_rounds, first, more)
    leader = result.leader(rivals)
    if leader is None:
        return None, lost
    ratios = {name: result.ratio(name, leader) for name in result.samples}
    return Race(result.samples, ratios, leader, conditions), lost


def _narrow_enough(ratios: Sequence[Ratio], rounds: int) -> bool:
    """Whether more rounds would hardly change the choice.

    An interval wider than a tie says neither that two are equal nor that they differ, so noise costs more rounds. With
    10% of it and a default that is really the best of nine, 60 rounds end below it in 14 races of 100 and 240 in one;
    where another one is 5% faster, they find 3.7% and 4.2%.
    """
    wanted = ENOUGH if rounds < ROUNDS else TIE
    return all(ratio.low > 1.0 or ratio.half_width <= wanted for ratio in ratios)


def choose(finalists: Sequence[Finalist], race: Race) -> tuple[Finalist, list[Finalist]]:
    """The winner, and those tied with it.

    The default wins every tie that it is part of: a slow phase of the machine can make all kernels look equal, and
    nobody should get another kernel for no gain. Where it is slower than the leader, a tie never goes to a kernel that
    is slower still.
    """
    level = [f for f in finalists if race.ratios[f.name].no_slower]
    default = next((f for f in finalists if f.default), None)
    if default is not None and not race.ratios[default.name].no_slower:
        bound = race.ratios[default.name].estimate
        level = [f for f in level if race.ratios[f.name].estimate <= bound]
    winner = min(level, key=Finalist.order)
    return winner, [f for f in level if f is not winner]


def _unable(task: Task, name: str) -> LostBaseline:
    """A baseline that was asked for by name and cannot run."""
    why = by_name(name, task.own_baselines).missing(task.operator, task.target) or "it is not where kernels are timed"
    return LostBaseline(name, Verdict.REFUSED, why)


def _raced_trial(finalist: Finalist, race: Race) -> RacedTrial:
    ratio, samples, trial = race.ratios[finalist.name], race.samples[finalist.name], finalist.trial
    return RacedTrial(
        trial.id,
        trial.rank,
        dict(trial.config),
        finalist.default,
        finalist.artifact.kernel_id,
        median(samples),
        tuple(samples),
        Slower(ratio.estimate, ratio.low, ratio.high),
    )


def _raced_baseline(task: Task, name: str, winner: str, race: Race, bursts: BurstTimes) -> RacedBaseline:
    samples = race.samples[name]
    ratio = paired_ratio(samples, race.samples[winner])
    seconds = {OURS: median(race.samples[winner]), name: median(samples)}
    noisy = noise(task, name, seconds, bursts, [row for row in race.conditions if row["name"] in (winner, name)])
    times = (name, seconds[name], ratio.estimate, (ratio.low, ratio.high), tuple(samples))
    return RacedBaseline(*times, bursts.beside(name), noisy)


def _by_shape(task: Task, winner: str, baselines: Sequence[str], race: Race) -> tuple[ShapeTimes, ...]:
    """The times at each shape, where there are several; each is a median over rounds."""

    def seconds(name: str, shape: int) -> float | None:
        rows = [row for row in race.conditions if row["name"] == name]
        return median(row["shapes"][shape] for row in rows) if rows else None

    return tuple(
        ShapeTimes(
            operator.describe(),
            seconds(winner, shape),
            {name: seconds(name, shape) for name in baselines if name in race.samples},
        )
        for shape, operator in enumerate(task.timed if task.also else ())
    )
