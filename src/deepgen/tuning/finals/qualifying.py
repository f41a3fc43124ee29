"""Qualifying: finalists must be right on other inputs than they were timed on, and the winner at other shapes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepgen.operators.filling import DENORMALS, INF, NAN
from deepgen.run.measure import handed
from deepgen.run.measure.base import STRIDED, Task
from deepgen.tuning.bounded import OutOfTime
from deepgen.tuning.costs import REFERENCE, VERIFY
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.finals.plan import LEAST_FINALISTS, STRIDED_SHAPES
from deepgen.tuning.progress import Clock
from deepgen.tuning.study.finals import DroppedTrial, Serves
from deepgen.tuning.study.text import counted
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Trial, Verdict
from deepgen.vocabulary.kernel import GPU_ALIGN
from deepgen.vocabulary.measurement import FLUSHED, KEPT, LOST, Properties

OTHER_SEEDS = 2  # sets of inputs that a finalist must be right on, in addition to the study's own


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
        """Among equals the default wins, then the one with the fewest resources, then the lowest rank."""
        facts = self.artifact.facts
        return not self.default, _fact(facts.get("shared_bytes")), _fact(facts.get("code_bytes")), self.trial.rank


def finals_inputs(task: Task) -> Iterator[tuple[int, int, str]]:
    """Shape, seed and probe of all that finals verify kernels on, beside what they are timed on."""
    for shape in range(len(task.timed)):
        for seed, probe in handed.sets(task.operator, task.seed, OTHER_SEEDS):
            if shape == 0 or (probe == "normal" and seed == task.seed + 1):
                yield shape, seed, probe
    if task.policy.strict_floats:
        yield from special_inputs(task)
    for shape in range(len(task.timed), len(task.shapes)):
        yield shape, task.seed, "normal"


def special_inputs(task: Task) -> list[tuple[int, int, str]]:
    """Those that tell what a kernel does with NaN, infinities and denormal numbers."""
    return [(0, task.seed, probe) for probe in task.operator.float_probes()]


def verified_first(task: Task) -> list[tuple[int, int, str]]:
    """What finalists are verified on, in the order of what may be left out last."""
    tests = [*finals_inputs(task)]
    usual, scalars = (
        [test for test in tests if test[0] < len(task.timed)],
        [t for t in tests if _of_scalars(task, t[0])],
    )
    # One that is not drawn as the usual inputs are tells most, so it is the one that is never left out.
    first = next((test for test in usual if test[2] != "normal"), usual[0]) if usual else None
    return [first, *scalars, *(test for test in usual if test != first)] if first else scalars


def _of_scalars(task: Task, shape: int) -> bool:
    """Whether it is the usual shape with other values of scalars."""
    return shape >= len(task.shapes) - len(task.variants)


def rehearse(session: Arena, task: Task, kernel: Kernel, clock: Clock) -> None:
    """Verify a kernel on what finals begin with, to know what that takes with a new reference and with an old one.
    Finals need that reference too."""
    for shape, seed, probe in verified_first(task)[:1]:
        for step in (REFERENCE, VERIFY):
            with clock.hearing(step):
                session.verify(kernel, seed, probe, shape)


def tried_at_neighbours(
    session: Arena, task: Task, kernel: Kernel, clock: Clock, left_out: list[str] | None = None
) -> Serves:
    """Whether a kernel is right at other shapes that it says it serves; if not, it keeps those that it was timed at.

    It also keeps only those when the time is up before all are tried; `left_out` then says so. One that refuses a
    neighbour may serve multiples of its shape, and is tried there.
    """
    left_out = [] if left_out is None else left_out
    right: list[int] = []
    refused: list[int] = []
    near = range(len(task.timed), len(task.timed) + len(task.neighbours))
    multiples = range(near.stop, near.stop + len(task.multiples))

    def wrong(shape: int, probe: str) -> str | None:
        """What is wrong there, in words; None where it is right or does not claim to serve the shape."""
        try:
            with clock.hearing(REFERENCE):
                verdict = session.verify(kernel, task.seed, probe, shape)
        except DeepgenError:  # a user's operator may have no inputs or no reference of this shape
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
        if shape in multiples and not refused:  # all neighbours were right, and they are none
            break
        try:
            if not clock.fits(REFERENCE):
                break
            why = wrong(shape, "normal")
            tried += 1
            if why:
                break
            # A user's arrays may be parts of larger ones.
            if dense is None and strided < STRIDED_SHAPES and shape in right and clock.fits(REFERENCE):
                strided += 1
                dense = wrong(shape, STRIDED)
        except OutOfTime:
            break
    wanted = len(near) + (len(multiples) if refused else 0)
    untried = 0 if why else wanted - tried
    if untried and not strided:
        left_out.append("arrays with room between rows")
    if untried:
        left_out.append(f"{untried} of {counted(wanted, 'other shape')}")
    only = tuple(dict(operator.sizes()) for operator in task.timed) if why or untried else None
    return Serves(only, tuple(task.shapes[shape].describe() for shape in right), why, dense, untried)


def float_properties(
    session: Arena, task: Task, kernel: Kernel, clock: Clock, left_out: list[str], sets: int
) -> Properties:
    """What a kernel does with special numbers. Those that it must keep it passed, if they are among the first `sets`
    of inputs, for which there was time."""
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
            left_out.append("NaN, infinities and denormal numbers")
            break
        except DeepgenError:  # a user's reference need not take them
            continue
        wrong = FLUSHED if probe == DENORMALS else LOST
        bad = wrong if verdict.verdict is Verdict.WRONG else verdict.verdict.value.replace("_", " ")
        words[probe] = KEPT if verdict.ok else bad
    return Properties(**words, alignment=_alignment(task))


def _alignment(task: Task) -> str:
    """What calls are held to, as trials were: on GPUs 16 bytes at least, whatever is promised."""
    promised = max((param.align for param in task.operator.signature().tensors), default=0)
    if task.target.runner == "gpu":
        promised = max(promised, GPU_ALIGN)
    return f"{promised} bytes" if promised else "element"


@dataclass
class Qualified:
    """Who takes part in the race, who does not and why: as far as it is known, should the time end."""

    finalists: list[Finalist] = field(default_factory=list)
    dropped: list[DroppedTrial] = field(default_factory=list)
    sets: int = 0  # of inputs that all finalists are right on


class Qualifying:
    """Has candidates verified on one set of inputs after the other, the best candidates first.

    Set by set, because a set's reference takes longer than a kernel's check: each is computed once, and when the time
    is up all finalists have passed the same.
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
        """As many finalists as that, if the candidates and the time suffice; the first ones are looked for always."""
        while len(self.result.finalists) < count and self._waiting:
            if len(self.result.finalists) >= LEAST_FINALISTS and not self._clock.fits(VERIFY, len(self._passed)):
                return
            trial = self._waiting.popleft()
            kernel = self._emit(trial)
            finalist = Finalist(trial, kernel, self._session.build(kernel), trial.id == self._default)
            if all(self._right(finalist, test) for test in self._passed):
                self.result.finalists.append(finalist)

    def lacking(self, count: int) -> int:
        """How many finalists more there could be, up to so many in all."""
        return max(0, min(count - len(self.result.finalists), len(self._waiting)))

    def next_set(self, count: int) -> bool:
        """Verify all finalists on the next set of inputs, and candidates in place of those that fail there."""
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
            if not other_values:  # which a user's reference may refuse
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
