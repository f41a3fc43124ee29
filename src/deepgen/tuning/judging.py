"""Full verification of one kernel: what finals do with a finalist, and a record of all checks.

This module makes no checks of its own. The kernel is measured like a trial, then finals run with it alone, and their
requests to the arena are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from deepgen.operators import Operator
from deepgen.operators.filling import DENORMALS, INF, NAN
from deepgen.run.measure.base import AFRESH, MANY_CALLS, SEVERAL_THREADS, STRIDED, Contender, Policy, Task
from deepgen.targets import Target
from deepgen.tuning.engines import LocalEngine
from deepgen.tuning.engines.base import Arena, Outcome
from deepgen.tuning.finals import run_finals
from deepgen.tuning.finals.crowning import fresh_seed
from deepgen.tuning.finals.qualifying import finals_inputs
from deepgen.tuning.request import Request, task_of
from deepgen.tuning.study.finals import Finals
from deepgen.vocabulary import Artifact, DeepgenError, Json, JsonObject, Kernel, Measurement, Trial, Verdict
from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.measurement import Properties

_RACE_SECONDS = 2.0  # without rivals, a race is just more calls of the kernel, all verified


@dataclass(frozen=True)
class Suspect:
    """A kernel to verify, and what it claims to compute."""

    operator: Operator
    target: Target
    kernel: Kernel
    config: Mapping[str, Any] = field(default_factory=dict)
    artifact: Artifact | None = None  # its existing binary, if that is to be verified
    source: str = ""  # where it came from, in words


@dataclass(frozen=True)
class Tried(Serializable):
    """One check and its outcome."""

    what: str
    verdict: Verdict
    detail: str = ""
    tells: bool = field(default=False, metadata=coded(omit=True))  # it only tests a property, so failing is not a fault

    @property
    def held(self) -> bool:
        """Whether the results were correct, even if the time did not settle."""
        return self.verdict in (Verdict.CORRECT, Verdict.UNSTABLE)

    @property
    def refused(self) -> bool:
        """Whether the kernel does not claim to support this."""
        return self.verdict is Verdict.REFUSED


@dataclass(frozen=True)
class Judgement:
    """All checks and the properties of a kernel."""

    suspect: Suspect
    tried: tuple[Tried, ...]
    seconds: float | None  # of a run, if it was correct
    properties: Properties
    left_out: tuple[str, ...]  # checks that were not made, in words
    seed: int

    @property
    def failed(self) -> tuple[Tried, ...]:
        return tuple(one for one in self.tried if not (one.held or one.refused or one.tells))

    @property
    def right(self) -> bool:
        return not self.failed

    def to_json(self) -> JsonObject:
        suspect = self.suspect
        tried: list[Json] = [one.to_json() for one in self.tried]
        return {
            "right": self.right,
            "kernel_id": suspect.kernel.id,
            "source": suspect.source,
            "operator": suspect.operator.describe(),
            "target": suspect.target.name,
            "config": dict(suspect.config),
            "seed": self.seed,
            "seconds": self.seconds,
            "tried": tried,
            "properties": self.properties.to_json(),
            "left_out": [*self.left_out],
        }


def judge(
    suspect: Suspect,
    *,
    engine: LocalEngine | None = None,
    policy: Policy | None = None,
    seed: int = 0,
) -> Judgement:
    """Run all the checks that a winner has to pass on one kernel."""
    engine, policy = engine or LocalEngine(), replace(policy or Policy(), calm_seconds=0.0)
    task = task_of(Request(suspect.operator, suspect.target, seed=seed, policy=policy))
    built = {} if suspect.artifact is None else {suspect.kernel.id: suspect.artifact}
    with replace(engine, built=built).open(task) as session:
        witness = _Witness(session, task)
        session.submit(0, suspect.kernel, first=True)
        outcome = _first(session.results)
        measured = outcome.measurement
        witness.note("usual inputs, before and after it was timed", measured)
        finals, seconds = Finals(None), measured.seconds if measured.right else None
        if measured.right:
            measured = replace(measured, verdict=Verdict.CORRECT)
            trial = Trial(0, 0, suspect.config, suspect.kernel.id, measured)
            finals = run_finals(
                cast(Arena, witness),
                task,
                [trial],
                lambda _: suspect.kernel,
                default=trial,
                keep=1,
                baselines=False,
                max_seconds=_RACE_SECONDS,
            )
            if witness.calls:
                witness.note(f"{witness.calls} more timed calls", witness.last)
        if outcome.artifact is not None:
            witness.finish(suspect.kernel)
    properties = finals.properties or Properties()
    # The fresh process runs beside the other checks, so its outcome may come at any point.
    tried = sorted(witness.tried, key=lambda one: one.what.startswith(_WAYS[AFRESH]))
    return Judgement(suspect, tuple(tried), seconds, properties, finals.left_out, seed)


def _first(results: Callable[[float], list[Outcome]]) -> Outcome:
    while not (outcomes := results(1.0)):
        pass
    return outcomes[0]


class _Witness:
    """An arena that records all requests and their outcomes."""

    def __init__(self, arena: Arena, task: Task) -> None:
        self._arena, self._task = arena, task
        self._inputs: set[tuple[int, int, str]] = set()
        self.tried: list[Tried] = []
        self.calls, self.last = 0, Measurement(Verdict.CORRECT)  # calls in races, where the kernel runs alone

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._arena, name)
        if not callable(asked):
            return asked

        def noted(*args: Any, **options: Any) -> Any:
            result = asked(*args, **options)
            if isinstance(result, Measurement):
                self.note(name.replace("_", " "), result)
            return result

        return noted

    def note(self, what: str, measured: Measurement, *, tells: bool = False) -> None:
        detail = measured.detail if measured.verdict is not Verdict.CORRECT else ""
        self.tried.append(Tried(what, measured.verdict, detail, tells))

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        self._inputs.add((shape, seed, probe))
        measured = self._arena.verify(kernel, seed, probe, shape)
        what, operator = _WAYS.get(probe, f"{_INPUTS.get(probe, probe)} inputs"), self._task.shapes[shape]
        where = f" at {operator.describe()}" if shape else f", seed {seed}"
        if operator.values() != self._task.operator.values():
            where = " with " + ", ".join(f"{name}={value:g}" for name, value in operator.values().items())
        tells = probe == SEVERAL_THREADS or (probe in _SPECIAL and not self._task.policy.strict_floats)
        self.note(what + where, measured, tells=tells)
        return measured

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        results = self._arena.compare(contenders, rounds, seed)
        for measured in results:
            self.calls += len(measured.samples)
            self.last = measured if self.last.ok else self.last
        return results

    def finish(self, kernel: Kernel) -> None:
        """Run the checks that remain because finals end at the first fault."""
        ways = [(0, self._task.seed, way) for way in (MANY_CALLS, SEVERAL_THREADS)]
        for shape, seed, probe in (*finals_inputs(self._task), *ways):
            if (shape, seed, probe) not in self._inputs:
                with suppress(DeepgenError):  # a user's operator may lack inputs or a reference for this shape
                    self.verify(kernel, seed, probe, shape)
        if not any(probe == AFRESH for *_, probe in self._inputs):
            self.verify(kernel, fresh_seed(), AFRESH)


_INPUTS = {"normal": "usual", NAN: "NaN in usual", INF: "infinities in usual", DENORMALS: "denormal"}
_SPECIAL = (NAN, INF, DENORMALS)
_WAYS = {
    AFRESH: "calls in a fresh process",
    STRIDED: "usual inputs with room between rows",
    MANY_CALLS: "many calls on usual inputs",
    SEVERAL_THREADS: "calls from several threads at once on usual inputs",
}
