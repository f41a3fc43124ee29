"""The last checks of the leader of the race: many calls, several threads, other shapes.

They are slow, so only the leader has to pass them. If it fails, it is dropped and the next one leads. A kernel that is
wrong at other shapes wins only if all others are too; it is then restricted to the timed shapes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from deepgen.run.measure.base import AFRESH, MANY_CALLS, SEVERAL_THREADS, Task
from deepgen.tuning.costs import CALLS, FRESH
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.finals.plan import OutOfTime, begun
from deepgen.tuning.finals.qualifying import Finalist, Qualified, float_properties, tried_at_neighbours
from deepgen.tuning.finals.race import Race, choose, raced_among
from deepgen.tuning.progress import Clock
from deepgen.tuning.study.finals import DroppedTrial, Serves
from deepgen.vocabulary import Kernel, Measurement, Verdict
from deepgen.vocabulary.measurement import ANY, ONE, Properties

LAST_CALLS = True  # whether a winner is called in a fresh process
_SEEDS = 1 << 31


def fresh_seed() -> int:
    """A random seed, which is even because an even seed and the next one form a pair."""
    return 2 * secrets.randbelow(_SEEDS // 2)


def threads_untried(task: Task) -> str:
    """The threads property of a kernel that was not tested from several threads.

    deepgen's own kernels share no state between calls except a thread pool, which only one call holds at a time.
    """
    return ONE if hasattr(type(task.operator), "family") else ""


def serves_untried(task: Task, sets: int) -> Serves:
    """What the winner supports if no other shape was tried, after that many input sets were."""
    timed, near = tuple(dict(operator.sizes()) for operator in task.timed), len(task.neighbours)
    return Serves(timed if near else None, untried=near, values=_only_values(task, sets), fixed=_fixed_values(task))


def _only_values(task: Task, sets: int) -> dict[str, float]:
    """The values of scalars, if no others were tried: sets with other values come right after the first set."""
    return dict(task.operator.values()) if task.variants and sets <= len(task.variants) else {}


def _fixed_values(task: Task) -> dict[str, float]:
    """The scalars whose value is the same in all variants: no other could be tried."""
    own = task.operator.values()
    return {name: value for name, value in own.items() if all(one.values()[name] == value for one in task.variants)}


@dataclass
class Crowned:
    """The winner so far, kept in case time runs out."""

    winner: Finalist
    ties: list[Finalist]
    race: Race
    serves: Serves | None = None
    properties: Properties = field(default_factory=Properties)
    afresh: int | None = None  # the seed of the inputs for calls in a fresh process
    left_out: list[str] = field(default_factory=list)


def crown(arena: Arena, task: Task, qualified: Qualified, race: Race, clock: Clock) -> Crowned | None:
    """The first finalist that passes, in the order of the race; None if none is correct."""
    crowned = _first_right(arena, task, qualified, race, clock)
    if crowned is not None:
        of_floats = float_properties(arena, task, crowned.winner.kernel, clock, crowned.left_out, qualified.sets)
        crowned.properties = replace(of_floats, threads=crowned.properties.threads)
        values, fixed = _only_values(task, qualified.sets), _fixed_values(task)
        if values or fixed:
            crowned.serves = replace(crowned.serves or Serves(), values=values, fixed=fixed)
    return crowned


def _first_right(arena: Arena, task: Task, qualified: Qualified, race: Race, clock: Clock) -> Crowned | None:
    confined: list[Crowned] = []
    racing: Race | None = race
    while racing is not None and (rivals := [f for f in qualified.finalists if f.name in racing.rivals]):
        winner, ties = choose(rivals, racing)
        crowned = Crowned(winner, ties, racing)
        others = [f.name for f in rivals if f is not winner]
        if confined:  # a second kernel that fails at other shapes cannot win, so it is not worth thousands of calls
            crowned.serves = tried_at_neighbours(arena, task, winner.kernel, clock, crowned.left_out)
            if crowned.serves.why is not None:
                confined.append(crowned)
                racing = raced_among(racing, others) if others else None
                continue
        checks = _Checks(arena, task, winner.kernel, clock, crowned)
        wrong = checks.wrong()
        if wrong is None and crowned.serves is None:
            crowned.serves = tried_at_neighbours(arena, task, winner.kernel, clock, crowned.left_out)
        wrong = checks.afresh() or wrong
        if wrong is None:
            assert crowned.serves is not None, "it was tried"
            if crowned.serves.why is None:
                _drop(qualified, confined)
                return crowned
            confined.append(crowned)
        else:
            qualified.dropped.append(DroppedTrial(winner.trial.id, wrong.verdict, wrong.detail))
            qualified.finalists.remove(winner)
        racing = raced_among(racing, others) if others else None
    if not confined:
        return None
    best = confined[0]  # all are wrong at other shapes
    left = raced_among(race, [f.name for f in qualified.finalists])
    assert left is not None, "it is one of them"
    winner, ties = choose(qualified.finalists, left)
    best.race, best.ties = left, ties if winner is best.winner else []
    return best


def _drop(qualified: Qualified, confined: list[Crowned]) -> None:
    """Drop kernels that would have won except for other shapes."""
    for one in confined:
        assert one.serves is not None, "it is confined"
        qualified.dropped.append(DroppedTrial(one.winner.trial.id, Verdict.WRONG, f"elsewhere: {one.serves.why}"))
        qualified.finalists.remove(one.winner)


class _Checks:
    """The checks of one kernel, except other shapes."""

    def __init__(self, arena: Arena, task: Task, kernel: Kernel, clock: Clock, crowned: Crowned) -> None:
        self._arena, self._task, self._kernel, self._clock, self._crowned = arena, task, kernel, clock, crowned
        # In a separate process, on inputs from a seed drawn now, beside the other checks: none of them is timed.
        self._seed = fresh_seed()
        self._fresh = begun(lambda: self._tried(AFRESH, FRESH, self._seed)) if LAST_CALLS else None

    def wrong(self) -> Measurement | None:
        """The first failed check; None if all pass."""
        wrong = self._calls()
        if wrong is None:
            self._threads()
        return wrong

    def afresh(self) -> Measurement | None:
        """The result of the calls in a fresh process; None if they are correct."""
        if self._fresh is None:
            return None
        seed, tried = self._seed, self._fresh()
        if tried is None:
            self._crowned.left_out.append("calls in a fresh process")
        if tried is None or tried.ok or tried.verdict is Verdict.REFUSED:
            self._crowned.afresh = seed if tried is not None and tried.ok else None
            return None
        return Measurement(tried.verdict, f"called in a fresh process, on inputs of seed {seed}: {tried.detail}")

    def _calls(self) -> Measurement | None:
        tried = self._tried(MANY_CALLS)
        if tried is None:
            self._crowned.left_out.append("many calls")
        return None if tried is None or tried.ok or tried.verdict is Verdict.REFUSED else tried

    def _threads(self) -> None:
        """Kernels that cannot be called from several threads at once are called from one at a time."""
        tried = self._tried(SEVERAL_THREADS)
        if tried is None:
            self._crowned.left_out.append("calls from several threads")
        refused = tried is not None and tried.verdict is Verdict.REFUSED
        untried = threads_untried(self._task)
        threads = "" if refused else untried if tried is None else ANY if tried.ok else ONE
        self._crowned.properties = Properties(threads=threads)

    def _tried(self, way: str, step: str = CALLS, seed: int | None = None) -> Measurement | None:
        """The result of a check; None if there is no time for it."""
        try:
            if not self._clock.fits(step):
                return None
            with self._clock.hearing(step):
                return self._arena.verify(self._kernel, self._task.seed if seed is None else seed, way)
        except OutOfTime:
            return None
