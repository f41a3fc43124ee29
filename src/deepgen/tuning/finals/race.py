"""The race of finals: contenders in interleaved rounds until their order is settled, and the choice of the winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from deepgen.run.measure.base import Contender, Task
from deepgen.run.measure.race import TIE, RaceResult, Ratio, paired_ratio, race
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.finals.bursts import OURS, BurstTimes, noise
from deepgen.tuning.finals.plan import CHUNK, MARGIN, OutOfTime
from deepgen.tuning.finals.qualifying import Finalist
from deepgen.tuning.study.finals import RacedBaseline, RacedTrial, ShapeTimes, Slower
from deepgen.vocabulary import Measurement, Verdict

ROUNDS = 60  # most rounds if the noise is small enough
NOISY_ROUNDS = 240  # most rounds if it is not: see `_narrow_enough`
SHOWN_SECONDS = 3.0  # limit of a race in which extra rounds only narrow the intervals shown
SHOWN_WIDTH = 0.04  # width of the intervals that a user sees, as a share of the ratio
ENOUGH = 0.004  # half-width of the decisive intervals below which more rounds would not change the choice


@dataclass(frozen=True)
class Race:
    """The samples of all contenders, round by round, and the ratios computed from them."""

    samples: dict[str, list[float]]
    ratios: dict[str, Ratio]  # relative to the leader
    leader: str
    conditions: list[Mapping[str, Any]] = field(default_factory=list)
    rivals: tuple[str, ...] = ()  # those that can win


def run_race(
    session: Arena,
    contenders: Sequence[Contender],
    rivals: Sequence[str],
    seed: int,
    max_seconds: float,
    shown: Sequence[str] = (),
    first: int = CHUNK,
    left: Callable[[], float] = lambda: 0.0,
) -> tuple[Race | None, dict[str, Measurement]]:
    """Run rounds until the order is settled or time runs out. Returns the race and the contenders that failed in it.

    Users see the ratios to those in `shown`, so some extra rounds narrow these intervals. After `first` rounds, only as
    many are started as the remaining time allows at the pace so far. Up to the usual number of rounds, `left` gives the
    remaining time, if that is more.
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
            rough = {"error": measured.error} if measured.error is not None and measured.error > 1.0 else {}
            conditions.append({"name": name, "rounds_from": start, **measured.conditions, **rough})
        return timed

    so_far: list[RaceResult[str]] = []

    def more(result: RaceResult[str]) -> int:
        so_far.append(result)
        leader = result.leader(rivals)
        if leader is None:
            return 0
        elapsed = sum(result.seconds)
        racing = [result.ratio(name, leader) for name in rivals if name in result.samples]
        settled = result.rounds >= CHUNK and _narrow_enough(racing, result.rounds)
        clear = all(result.ratio(name, leader).width <= SHOWN_WIDTH for name in shown if name in result.samples)
        if settled and (clear or result.rounds >= ROUNDS or elapsed > SHOWN_SECONDS):
            return 0
        limit = max(elapsed + left() / MARGIN, max_seconds) if result.rounds < CHUNK else max_seconds
        return min(CHUNK, result.fitting(limit) if elapsed else CHUNK, NOISY_ROUNDS - result.rounds)

    try:
        result = race(by_name, time_rounds, first, more)
    except OutOfTime:
        if not so_far:
            raise
        result = so_far[-1]  # without the rounds that there was no time for
    return _led(result, rivals, conditions), lost


def raced_among(race: Race, rivals: Sequence[str]) -> Race | None:
    """The same race after some rivals were ruled out; None if none is left."""
    samples = {name: samples for name, samples in race.samples.items() if name in rivals or name not in race.rivals}
    return _led(RaceResult(samples), rivals, race.conditions)


def _led(result: RaceResult[str], rivals: Sequence[str], conditions: list[Mapping[str, Any]]) -> Race | None:
    leader = result.leader(rivals)
    if leader is None:
        return None
    ratios = {name: result.ratio(name, leader) for name in result.samples}
    return Race(result.samples, ratios, leader, conditions, tuple(rivals))


def _narrow_enough(ratios: Sequence[Ratio], rounds: int) -> bool:
    """Whether more rounds would hardly change the choice.

    An interval wider than a tie shows neither that two kernels are equal nor that they differ, so noise requires more
    rounds. With 10% noise and a default that is the best of nine kernels, 60 rounds pick a slower one in 14 races of
    100, and 240 rounds in 1 of 100; if another kernel is 5% faster, they gain 3.7% and 4.2%.
    """
    wanted = ENOUGH if rounds < ROUNDS else TIE
    return all(ratio.low > 1.0 or ratio.half_width <= wanted for ratio in ratios)


def choose(finalists: Sequence[Finalist], race: Race) -> tuple[Finalist, list[Finalist]]:
    """The winner, and the finalists tied with it.

    The default wins every tie that it is part of: a slow phase of the machine can make all kernels look equal, and
    replacing the default must bring a gain. A kernel replaces it only if it is faster round by round than the default
    itself: with few rounds, two ratios to the leader may say otherwise.
    """
    level = [f for f in finalists if race.ratios[f.name].no_slower]
    default = next((f for f in finalists if f.default), None)
    if default is not None and default not in level:
        began = race.samples[default.name]
        level = [f for f in level if not paired_ratio(began, race.samples[f.name]).no_slower]
    winner = min(level, key=Finalist.order)
    return winner, [f for f in level if f is not winner]


def raced_trial(finalist: Finalist, race: Race) -> RacedTrial:
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


def raced_baseline(task: Task, name: str, winner: str, race: Race, bursts: BurstTimes) -> RacedBaseline:
    samples = race.samples[name]
    ratio = paired_ratio(samples, race.samples[winner])
    seconds = {OURS: median(race.samples[winner]), name: median(samples)}
    noisy = noise(task, name, seconds, bursts, [row for row in race.conditions if row["name"] in (winner, name)])
    times = (name, seconds[name], ratio.estimate, (ratio.low, ratio.high), tuple(samples))
    errors = [float(row["error"]) for row in race.conditions if row["name"] == name and "error" in row]
    form = next((str(row["form"]) for row in race.conditions if row["name"] == name and row.get("form")), "")
    return RacedBaseline(*times, bursts.beside(name), noisy, max(errors, default=None), form)


def by_shape(task: Task, winner: str, baselines: Sequence[str], race: Race) -> tuple[ShapeTimes, ...]:
    """The times at each shape if there are several; each is a median over rounds."""

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
