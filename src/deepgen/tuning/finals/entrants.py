"""Who takes part in finals: the fastest trials, and those that may only look slower. Finals add the default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import inf

from deepgen.run.measure.base import Contender
from deepgen.run.measure.race import TIE, paired_ratio
from deepgen.tuning.engines.base import Arena
from deepgen.vocabulary import Kernel, Trial

RESERVES = 4  # candidates per finalist: some may fail on harder inputs
_DISTURBED, _MOST_DISTURBED = 0.75, 2  # of the usual time, and how many such trials take part
_SLOWED = 3.0  # times: slower than the best by more than this is not explained by what others do on the machine
_HEATED, _HEAT_SECONDS = 8, 3.0  # trials in the heat per finalist, and the seconds that their runs may take
_HEAT_ROUNDS, _HEAT_RUNS = 3, 5  # of each trial in the heat; with those that verify it


def entrants(trials: Iterable[Trial], keep: int, within: float = inf) -> tuple[list[Trial], int]:
    """The candidates, best first, and how many of them shall race: the first `keep`, and those that were disturbed.

    Of the first ones only those that took at most `within` times as long as the best, if that is given.
    """
    right = _by_time(trials)
    if within < inf and right:
        most = within * (right[0].seconds or 0.0)
        keep = min(keep, sum(1 for trial in right if (trial.seconds or 0.0) <= most))
    doubtful = [t for t in _disturbed(right) if t not in right[:keep]]
    reserves = [t for t in right[keep : RESERVES * keep] if t not in doubtful]
    return [*right[:keep], *doubtful, *reserves], keep + len(doubtful)


def with_first(first: Sequence[Trial], candidates: Sequence[Trial], keep: int) -> tuple[list[Trial], int]:
    """The candidates with these in front, and how many shall race then."""
    ids, racing = {trial.id for trial in first}, {trial.id for trial in candidates[:keep]}
    return [*first, *(t for t in candidates if t.id not in ids)], keep + len(ids - racing)


def overlooked(
    session: Arena,
    trials: Iterable[Trial],
    racing: Sequence[Trial],
    emit: Callable[[Trial], Kernel],
    seed: int,
    samples: float,
) -> list[Trial]:
    """The fastest of those that would not race, if they beat the best trial when they run beside it.

    A processor that serves others too is slow for seconds at a time, longer than a trial takes: every run of the
    fastest kernel may have been slow, and nothing in its samples shows that. `samples` is how many may be taken.
    """
    right, chosen = _by_time(trials), {trial.id for trial in racing}
    most = int(min(_HEATED * len(chosen), samples / _HEAT_RUNS))
    timed = [(t, t.seconds or 0.0) for t in right[: len(chosen) + most]]
    near = [(t, seconds) for t, seconds in timed if t.id not in chosen and seconds <= _SLOWED * timed[0][1]]
    spent = accumulate(_HEAT_RUNS * seconds for _, seconds in near)
    heated = [t for (t, _), seconds in zip(near, spent, strict=True) if seconds <= _HEAT_SECONDS]
    if not heated:
        return []
    contenders = [Contender(f"trial {trial.id}", emit(trial)) for trial in (right[0], *heated)]
    first, *others = session.compare(contenders, _HEAT_ROUNDS, seed)
    if not first.ok:
        return []
    ratios = [
        (paired_ratio(measured.samples, first.samples).estimate, trial.id, trial)
        for trial, measured in zip(heated, others, strict=True)
        if measured.ok
    ]
    faster = sorted(row for row in ratios if row[0] < 1.0 - TIE)
    return [trial for *_, trial in faster[:_MOST_DISTURBED]]


def _by_time(trials: Iterable[Trial]) -> list[Trial]:
    """Those that are right, the fastest first."""
    return sorted((t for t in trials if t.ok), key=lambda trial: (trial.seconds or 0.0, trial.rank))


def _disturbed(right: Sequence[Trial]) -> list[Trial]:
    """Those that may be the fastest of all, though something else had the machine in most of their runs.

    Their fastest run took much less than the others, and less than the best trial's usual one. Finals are undisturbed.
    """
    leader = right[0].seconds or 0.0 if right else 0.0
    doubtful = [
        (least, trial.id, trial)
        for trial in right
        if trial.seconds and (least := min(trial.measurement.samples)) < min(leader, _DISTURBED * trial.seconds)
    ]
    return [trial for *_, trial in sorted(doubtful, key=lambda row: row[:2])[:_MOST_DISTURBED]]
