"""The winner and the baselines in bursts, as users call them, and whether a busy machine distorted the comparison.

In interleaved rounds every contender starts with cold caches and sleeping threads. On a busy machine these threads may
wait for a core for longer than a run takes, which slows some libraries more than others: `gemm MNK=200` seemed 39 times
as fast as numpy when it was three times slower. In bursts threads are awake. If the two ways differ by more than cold
caches explain, or if threads wait for cores, no ratio is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from deepgen import baselines
from deepgen.run.measure import conditions
from deepgen.run.measure.base import BURST, CALL, Contender, Task
from deepgen.run.measure.race import RaceResult, paired_ratio, race
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.study.finals import Bursts, OursInBursts
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary import Kernel, Measurement

FEWEST, CHUNK, MOST = 5, 5, 30  # rounds at first, rounds between checks, most rounds
NARROW = 0.04  # width of the intervals below which more rounds add nothing
WIDE = 0.5  # width above which an interval is meaningless
SECONDS = 3.0  # limit after the first rounds
OURS, CALLED = "the winner", "the winner, called from Python"
BEHIND = " on arrays like numpy's"  # which of ours is beside baselines that have such arrays
# How much longer an interleaved run may take than one in a burst: twice the time, plus its bytes at a rate that any
# memory reaches, plus waking its threads. An interleaved run below QUICKER times the burst's time is implausible too.
SLOWER, _BYTES_PER_SECOND, _WAKING_SECONDS, QUICKER = 2.0, 2e9, 2e-4, 0.6


@dataclass(frozen=True)
class BurstTimes:
    """The samples of all contenders, round by round, and the conditions of each comparison.

    Kernels that read a tensor in place may take a quarter longer where it begins behind a cache line. So ours is timed
    beside each baseline on arrays that begin as those of the baseline's users do.
    """

    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    failed: Mapping[str, Measurement] = field(default_factory=dict)
    behind: Collection[str] = ()  # baselines whose users' arrays begin behind a cache line

    def ours(self, name: str, ours: str = OURS) -> str:
        """The winner on the same kind of arrays as a baseline."""
        return ours + BEHIND * (name in self.behind)

    def beside(self, name: str) -> Bursts | None:
        """The times of a baseline and the winner; None if one of them could not be timed in bursts."""
        if not {self.ours(name), name} <= self.samples.keys():
            return None
        kernel, call = (self._ours(self.ours(name, ours), name) for ours in (OURS, CALLED))
        return None if kernel is None else Bursts(median(self.samples[name]), kernel, call)

    def _ours(self, ours: str, name: str) -> OursInBursts | None:
        if ours not in self.samples:
            return None
        ratio = paired_ratio(self.samples[name], self.samples[ours])
        return OursInBursts(median(self.samples[ours]), ratio.estimate, (ratio.low, ratio.high))


def run_bursts(session: Arena, task: Task, winner: Kernel, names: Sequence[str], max_seconds: float) -> BurstTimes:
    """Time the winner and the baselines in bursts, on devices whose threads may sleep."""
    if task.target.runner != "cpu" or not names:
        return BurstTimes()
    behind = {name for name in names if baselines.behind(name, task.own_baselines)}
    by_name = {one.name: one for one in _contenders(winner, names, behind)}
    rows: dict[str, list[Mapping[str, Any]]] = {name: [] for name in by_name}
    failed: dict[str, Measurement] = {}

    def time_rounds(present: Sequence[str], rounds: int, start: int) -> Mapping[str, Sequence[float]]:
        compared = session.compare([by_name[name] for name in present], rounds, task.seed + start)
        results = dict(zip(present, compared, strict=True))
        for name, one in results.items():
            rows[name].append(one.conditions)
        failed.update({name: one for name, one in results.items() if not one.ok})
        return {name: one.samples for name, one in results.items() if one.ok}

    def more(result: RaceResult[str]) -> int:
        pairs = [(name, BurstTimes(behind=behind).ours(name)) for name in names if name in result.samples]
        if any(ours not in result.samples for _, ours in pairs):
            return 0
        wide = any(result.ratio(name, ours).width > NARROW for name, ours in pairs)
        fitting = result.fitting(min(SECONDS, max_seconds))
        return min(CHUNK, fitting, MOST - result.rounds) if wide or result.rounds < 2 * CHUNK else 0

    return BurstTimes(race(by_name, time_rounds, FEWEST, more).samples, rows, failed, behind)


def entries(task: Task, names: Sequence[str]) -> int:
    """How many contenders bursts have."""
    kinds = {baselines.behind(name, task.own_baselines) for name in names}
    return len(names) + 2 * len(kinds)


def _contenders(winner: Kernel, names: Sequence[str], behind: Collection[str]) -> Iterator[Contender]:
    for kind in sorted({name in behind for name in names}):
        for ours, way in ((OURS, BURST), (CALLED, CALL)):
            yield Contender(ours + BEHIND * kind, winner, timed=way, behind=kind)
    for name in names:
        yield Contender(name, timed=BURST, behind=name in behind)


def noise(
    task: Task, name: str, single: Mapping[str, float], bursts: BurstTimes, rows: Sequence[Mapping[str, Any]]
) -> str | None:
    """Why the winner and a baseline cannot be compared, in words. `single`: the interleaved seconds of both.

    `rows`: the conditions of the race, used if there are no bursts.
    """
    beside, ours = bursts.beside(name), bursts.ours(name)
    for who in (ours, name):
        if who in bursts.failed:
            return f"{who} was {bursts.failed[who].verdict.value} in bursts: {bursts.failed[who].detail}"
    if beside is None:
        return conditions.noise(rows) if task.target.runner == "cpu" else None
    for who, alone in ((ours, OURS), (name, name)):
        taken = single[alone], median(bursts.samples[who])
        if why := conditions.noise(bursts.rows[who]) or _disagreement(task, who, *taken):
            return why
    low, high = beside.kernel.interval
    if high - low > WIDE * beside.kernel.ratio:
        return f"the winner is anywhere from {low:.3g} to {high:.3g} times as fast"
    return None


def _disagreement(task: Task, who: str, single: float, burst: float) -> str | None:
    """Why the times differ by more than cold caches and sleeping threads explain; None if they do not."""
    most = max(operator.least_bytes() for operator in task.timed) / _BYTES_PER_SECOND if task.policy.cold else 0.0
    if QUICKER * burst <= single <= SLOWER * burst + most + _WAKING_SECONDS:
        return None
    return f"{who} took {seconds_text(single)} interleaved and {seconds_text(burst)} in bursts of its own"
