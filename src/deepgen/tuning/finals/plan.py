"""Plans the finals within their time: steps that do not fit are skipped, the least important first.

The order of skipping: waiting for a quiet machine, other shapes, arrays with padded rows, many calls and several
threads, more rounds of the race, more finalists, more input sets that finalists must pass, baselines. Never skipped:
the default and the fastest trial, each verified on one input set besides the usual one, and a short race of these two
and the baselines. That race comes first, so that every result has a comparison; a second race has the other finalists
and more rounds. A step that is too long for the time left is skipped, and the next one may fit. Skipped steps are
resumed if time turns out to be left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from deepgen.tuning.costs import CALLS, REFERENCE, SAMPLE, VERIFY, StepCosts
from deepgen.tuning.progress import FINALS_SECONDS, FINALS_SHARE

FIRST = 3  # rounds before the first check of the time, with a budget
CHUNK = 10  # rounds between checks of the intervals
LEAST_FINALISTS = 2  # the default and the fastest trial
STRIDED_SHAPES = 2  # shapes at which arrays have padded rows: kernels get strides and sizes separately
WAYS_OF_CALLING = 2  # many calls, and calls from several threads
_LOOK_SECONDS = 0.5  # at least the time to sample other activity on the machine
_NARROW_SECONDS, _NARROW_ROUNDS = 1.0, 50  # most time and rounds that a race may spend on narrower intervals
_LEAST = 0.12  # least share of a budget for finals
_MOST = 0.4  # share of a budget for finals whose least steps need more than their usual share
MARGIN = 1.25  # factor on the expected time of the finals or of a step


@dataclass(frozen=True)
class FinalsPlan:
    """The steps that fit, and how long they take in total."""

    finalists: int
    sets: int  # input sets
    baselines: int
    race: float  # seconds at most
    strided: bool
    shapes: int
    calm: float  # seconds at most
    closing: float = 0.0  # seconds for many calls and several threads
    rounds: int = 0  # extra rounds: 1, the usual number; 2, also those that narrow intervals
    entry: float = 0.0  # seconds by which each contender prolongs the race
    worn: float = 0.0  # seconds of calls before a finalist is timed
    seconds: float = 0.0


def plan_finals(spare: float, costs: StepCosts, wanted: FinalsPlan) -> FinalsPlan:
    """The part of the wanted steps that fits. Baselines are loaded while the search continues."""
    fresh, verify, sample = costs.of(REFERENCE), costs.of(VERIFY), costs.of(SAMPLE)
    entry = 2 * verify + FIRST * sample  # of a contender: loading, verifying, the first rounds, verifying again
    spent = fresh + LEAST_FINALISTS * (verify + entry + wanted.worn)
    finalists, sets, baselines, strided, shapes = min(LEAST_FINALISTS, wanted.finalists), 1, 0, False, 0

    def fits(seconds: float) -> bool:
        nonlocal spent
        if spent + seconds > spare:
            return False
        spent += seconds
        return True

    if fits(wanted.baselines * entry):
        baselines = wanted.baselines
    while sets < wanted.sets and fits(fresh + LEAST_FINALISTS * verify):
        sets += 1
    if fits((finalists + baselines) * entry):  # all of them race again
        while finalists < wanted.finalists and fits(sets * verify + entry + wanted.worn):
            finalists += 1
    racing = (finalists + baselines) * entry
    rounds = 0
    round_seconds = (finalists + baselines) * sample
    for more in ((CHUNK - FIRST) * round_seconds, min(_NARROW_SECONDS, _NARROW_ROUNDS * round_seconds)):
        if fits(more):
            racing, rounds = racing + more, rounds + 1
    closing = WAYS_OF_CALLING * costs.of(CALLS)
    closing = closing if fits(closing) else 0.0
    if wanted.strided and fits(STRIDED_SHAPES * fresh):
        strided = True
    while shapes < wanted.shapes and fits(fresh):
        shapes += 1
    rest = max(0.0, spare - spent)
    race = wanted.race if spare == inf else min(wanted.race, racing + rest / 3)
    calm = wanted.calm if spare == inf else min(wanted.calm, rest / 3 if rest > 3 * _LOOK_SECONDS else 0.0)
    return replace(
        wanted,
        finalists=finalists,
        sets=sets,
        baselines=baselines,
        race=race,
        strided=strided,
        shapes=shapes,
        calm=calm,
        closing=closing,
        rounds=rounds,
        entry=entry,
        seconds=spent,
    )


def for_finals(budget: float, costs: StepCosts, wanted: FinalsPlan) -> float:
    """The seconds that a search leaves to its finals: what they need, up to a limited share of the budget; that share
    if the cost of references is unknown."""
    if budget == inf:
        return 0.0
    all_of_it = plan_finals(1e9, costs, wanted).seconds
    least = plan_finals(0.0, costs, wanted).seconds
    share = min(FINALS_SECONDS, FINALS_SHARE * budget)
    if not costs.knows(REFERENCE):
        return max(share, min(MARGIN * least, _MOST * budget))
    needed = max(MARGIN * all_of_it, _LEAST * budget)  # the machine may get busier
    return min(needed, max(share, min(MARGIN * least, _MOST * budget)))
