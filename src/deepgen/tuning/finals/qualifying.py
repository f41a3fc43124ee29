"""Qualifying for the finals: kernels must be correct on inputs other than those timed, and at other shapes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any

from deepgen.operators.filling import DENORMALS, INF, NAN
from deepgen.run.measure import handed
from deepgen.run.measure.base import STRIDED, Contender, Task
from deepgen.run.measure.race import TIE, paired_ratio
from deepgen.tuning.costs import REFERENCE, VERIFY
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.finals.plan import LEAST_FINALISTS, STRIDED_SHAPES, OutOfTime
from deepgen.tuning.progress import Clock
from deepgen.tuning.study.finals import DroppedTrial, Serves
from deepgen.tuning.study.text import counted
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Trial, Verdict
from deepgen.vocabulary.kernel import GPU_ALIGN
from deepgen.vocabulary.measurement import FLUSHED, KEPT, LOST, Properties

OTHER_SEEDS = 2  # input sets on which a finalist must be correct, besides the study's own


@dataclass(frozen=True)
class Finalist:
    """A trial that takes part in the finals, with its kernel built."""

    trial: Trial
    kernel: Kernel
    artifact: Artifact
    default: bool  # whether the search began with this config

    @property
    def name(self) -> str:
        return f"trial {self.trial.id}"

    def order(self) -> tuple[bool, int, int, int]:
        """Ties go to the default, then to the kernel with the fewest resources, then to the lowest rank."""
        facts = self.artifact.facts
        return not self.default, _fact(facts.get("shared_bytes")), _fact(facts.get("code_bytes")), self.trial.rank


def finals_inputs(task: Task) -> Iterator[tuple[int, int, str]]:
    """Shape, seed and probe of all inputs that finals verify kernels on, besides the timed ones."""
    for shape in range(len(task.timed)):
        for seed, probe in handed.sets(task.operator, task.seed, OTHER_SEEDS):
            if shape == 0 or (probe == "normal" and seed == task.seed + 1):
                yield shape, seed, probe
    if task.policy.strict_floats:
        yield from special_inputs(task)
    for shape in range(len(task.timed), len(task.shapes)):
        yield shape, task.seed, "normal"


def special_inputs(task: Task) -> list[tuple[int, int, str]]:
    """Inputs that show what a kernel does with NaN, infinities and denormals."""
    return [(0, task.seed, probe) for probe in task.operator.float_probes()]


def verified_first(task: Task) -> list[tuple[int, int, str]]:
    """The inputs that finalists are verified on, the most important first."""
    tests = [*finals_inputs(task)]
    usual, scalars = (
        [test for test in tests if test[0] < len(task.timed)],
        [t for t in tests if _of_scalars(task, t[0])],
    )
    # Inputs with an unusual distribution reveal most errors, so one such set comes first and is never skipped.
    first = next((test for test in usual if test[2] != "normal"), usual[0]) if usual else None
    return [first, *scalars, *(test for test in usual if test != first)] if first else scalars


def _of_scalars(task: Task, shape: int) -> bool:
    """Whether the shape is the usual one with other scalar values."""
    return shape >= len(task.shapes) - len(task.variants)


def rehearse(session: Arena, task: Task, kernel: Kernel, clock: Clock) -> None:
    """Verify a kernel on the first inputs of finals, to measure the cost with a new reference and with a cached one.
    Finals need that reference too."""
    for shape, seed, probe in verified_first(task)[:1]:
        for step in (REFERENCE, VERIFY):
            with clock.hearing(step):
                session.verify(kernel, seed, probe, shape)


def tried_at_neighbours(
    session: Arena, task: Task, kernel: Kernel, clock: Clock, left_out: list[str] | None = None
) -> Serves:
    """Check whether a kernel is correct at other shapes that it claims to support; if not, it is limited to the timed
    ones.

    It is also limited to those when time runs out before all are tried; `left_out` then says so. A kernel that refuses
    a neighbour may support multiples of its shape, and is tried there.
    """
    left_out = [] if left_out is None else left_out
    right: list[int] = []
    refused: list[int] = []
    near = range(len(task.timed), len(task.timed) + len(task.neighbours))
    multiples = range(near.stop, near.stop + len(task.multiples))

    def wrong(shape: int, probe: str) -> str | None:
        """The error at a shape, in words; None if it is correct or the kernel does not claim to support the shape."""
        try:
            with clock.hearing(REFERENCE):
                verdict = session.verify(kernel, task.seed, probe, shape)
        except DeepgenError:  # a user's operator may lack inputs or a reference for this shape
            return None
        if verdict.ok and probe != STRIDED:
            right.append(shape)
        if verdict.verdict is Verdict.REFUSED and probe != STRIDED:
            refused.append(shape)
        if verdict.ok or verdict.verdict is Verdict.REFUSED:
            return None
        return f"{verdict.verdict.value.replace('_', ' ')} at {task.shapes[shape].describe()}: {verdict.detail}"

    why = dense = None
    strided = tried = 0
    for shape in (*near, *multiples):
        if shape in multiples and not refused:  # all neighbours were accepted, so multiples add nothing
            break
        try:
            if not clock.fits(REFERENCE):
                break
            why = wrong(shape, "normal")
            tried += 1
            if why:
                break
            # A user's arrays may be views of larger ones.
            if dense is None and strided < STRIDED_SHAPES and shape in right and clock.fits(REFERENCE):
                strided += 1
                dense = wrong(shape, STRIDED)
        except OutOfTime:
            break
    wanted = len(near) + (len(multiples) if refused else 0)
    untried = 0 if why else wanted - tried
    if untried and not strided:
        left_out.append("arrays with padded rows")
    if untried:
        left_out.append(f"{untried} of {counted(wanted, 'other shape')}")
    only = tuple(dict(operator.sizes()) for operator in task.timed) if why or untried else None
    return Serves(only, tuple(task.shapes[shape].describe() for shape in right), why, dense, untried)


def float_properties(
    session: Arena, task: Task, kernel: Kernel, clock: Clock, left_out: list[str], sets: int
) -> Properties:
    """What a kernel does with special numbers. It keeps those that it must keep and was verified on, if they are among
    the first `sets` input sets."""
    probes = {probe for _, _, probe in verified_first(task)[:sets]}
    words = dict.fromkeys((NAN, INF), KEPT) if "special" in probes else {}
    words |= {DENORMALS: KEPT} if "denormal" in probes else {}
    for shape, seed, probe in special_inputs(task):
        try:
            if not clock.fits(REFERENCE):
                raise OutOfTime
            with clock.hearing(REFERENCE):
                verdict = session.verify(kernel, seed, probe, shape)
        except OutOfTime:
            left_out.append("NaN, infinities and denormals")
            break
        except DeepgenError:  # a user's reference need not accept them
            continue
        wrong = FLUSHED if probe == DENORMALS else LOST
        bad = wrong if verdict.verdict is Verdict.WRONG else verdict.verdict.value.replace("_", " ")
        words[probe] = KEPT if verdict.ok else bad
    return Properties(**words, alignment=_alignment(task))


def _alignment(task: Task) -> str:
    """The alignment that calls must have, as trials had: on GPUs at least 16 bytes, whatever is promised."""
    promised = max((param.align for param in task.operator.signature().tensors), default=0)
    if task.target.runner == "gpu":
        promised = max(promised, GPU_ALIGN)
    return f"{promised} bytes" if promised else "element"


@dataclass
class Qualified:
    """The finalists so far, and the dropped trials with their reasons."""

    finalists: list[Finalist] = field(default_factory=list)
    dropped: list[DroppedTrial] = field(default_factory=list)
    sets: int = 0  # input sets on which all finalists are correct


class Qualifying:
    """Verifies candidates on one set of inputs after another, the best candidates first.

    It goes set by set because a reference takes longer than checking a kernel: each is computed once, and when time
    runs out all finalists have passed the same sets.
    """

    def __init__(
        self,
        session: Arena,
        task: Task,
        candidates: Sequence[Trial],
        emit: Callable[[Trial], Kernel],
        default: Trial | None,
        clock: Clock,
    ) -> None:
        self._session, self._task, self._emit, self._clock = session, task, emit, clock
        self._default = None if default is None else default.id
        self._order = {trial.id: place for place, trial in enumerate(candidates)}
        self._waiting = deque(candidates)
        self._seen: set[tuple[int, int, str]] = set()
        self._passed: list[tuple[int, int, str]] = []
        self.sets = verified_first(task)
        self.result = Qualified()

    def fill(self, count: int) -> None:
        """Find that many finalists, as far as candidates and time allow; the first few regardless of time."""
        while len(self.result.finalists) < count and self._waiting:
            if len(self.result.finalists) >= LEAST_FINALISTS and not self._clock.fits(VERIFY, len(self._passed)):
                return
            trial = self._waiting.popleft()
            kernel = self._emit(trial)
            finalist = Finalist(trial, kernel, self._session.build(kernel), trial.id == self._default)
            if all(self._right(finalist, test) for test in self._passed):
                self.result.finalists.append(finalist)

    def lacking(self, count: int) -> int:
        """How many more finalists there could be, up to `count` in all."""
        return max(0, min(count - len(self.result.finalists), len(self._waiting)))

    def next_set(self, count: int) -> bool:
        """Verify all finalists on the next set of inputs, and replace those that fail by other candidates."""
        if self.result.sets == len(self.sets):
            return False
        test = self.sets[self.result.sets]
        self.result.finalists[:] = [f for f in self.result.finalists if self._right(f, test)]
        self._passed.append(test)
        self.result.sets += 1
        self.fill(count)
        return True

    def _right(self, finalist: Finalist, test: tuple[int, int, str]) -> bool:
        shape, seed, probe = test
        other_values = _of_scalars(self._task, shape)
        try:
            with self._clock.hearing(VERIFY if test in self._seen else REFERENCE):
                verdict = self._session.verify(finalist.kernel, seed, probe, shape)
        except DeepgenError:
            if not other_values:  # with other scalar values, a user's reference may refuse
                raise
            return True
        self._seen.add(test)
        if verdict.ok or (other_values and verdict.verdict is Verdict.REFUSED):
            return True
        where, operator = f"on {probe} inputs of seed {seed}", self._task.shapes[shape]
        if other_values:
            where += " with " + ", ".join(f"{name}={value:g}" for name, value in operator.values().items())
        elif shape:
            where += f" at {operator.describe()}"
        self.result.dropped.append(DroppedTrial(finalist.trial.id, verdict.verdict, f"{where}: {verdict.detail}"))
        self.result.dropped.sort(key=lambda row: self._order[row.trial])
        return False


def _fact(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


RESERVES = 4  # candidates per finalist: some may fail on harder inputs
_DISTURBED, _MOST_DISTURBED = 0.75, 2  # share of the usual time, and how many disturbed trials take part
_SLOWED = 3.0  # times the best: other load on the machine does not explain a larger difference
_HEATED, _HEAT_SECONDS = 8, 3.0  # trials in the heat per finalist, and the limit on their run time in seconds
_HEAT_ROUNDS, _HEAT_RUNS = 3, 5  # rounds per trial in the heat, and runs including verification


def entrants(trials: Iterable[Trial], keep: int, within: float = inf) -> tuple[list[Trial], int]:
    """The candidates, best first, and how many of them race: the first `keep` and the disturbed ones.

    If `within` is given, the first ones are limited to those that took at most `within` times as long as the best.
    """
    right = _by_time(trials)
    if within < inf and right:
        most = within * (right[0].seconds or 0.0)
        keep = min(keep, sum(1 for trial in right if (trial.seconds or 0.0) <= most))
    doubtful = [t for t in _disturbed(right) if t not in right[:keep]]
    reserves = [t for t in right[keep : RESERVES * keep] if t not in doubtful]
    return [*right[:keep], *doubtful, *reserves], keep + len(doubtful)


def with_first(first: Sequence[Trial], candidates: Sequence[Trial], keep: int) -> tuple[list[Trial], int]:
    """The candidates with these in front, and how many of them then race."""
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
    """The fastest of the trials that would not race, if they beat the best trial when timed alongside it.

    A shared CPU can be slow for seconds at a time, longer than a trial takes: every run of the fastest kernel may have
    been slow, and nothing in its samples shows that. `samples` limits the number of samples taken.
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
    """The correct trials, fastest first."""
    return sorted((t for t in trials if t.ok), key=lambda trial: (trial.seconds or 0.0, trial.rank))


def _disturbed(right: Sequence[Trial]) -> list[Trial]:
    """Trials that may be the fastest of all although other processes disturbed most of their runs.

    Their fastest run took much less than their median, and less than the best trial's median. Finals are undisturbed.
    """
    leader = right[0].seconds or 0.0 if right else 0.0
    doubtful = [
        (least, trial.id, trial)
        for trial in right
        if trial.seconds and (least := min(trial.measurement.samples)) < min(leader, _DISTURBED * trial.seconds)
    ]
    return [trial for *_, trial in sorted(doubtful, key=lambda row: row[:2])[:_MOST_DISTURBED]]
