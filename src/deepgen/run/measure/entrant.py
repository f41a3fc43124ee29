"""One contender (a kernel or a baseline) on a bench, on any device: every run is checked in full."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deepgen.operators.signature import INOUT
from deepgen.run.call import plans
from deepgen.run.measure import limits
from deepgen.run.measure.base import Task
from deepgen.run.measure.bench import REWRITTEN, STALE, Rejected, on_call
from deepgen.run.measure.channel import Pulse, WorkerStage
from deepgen.run.measure.endurance import repeated
from deepgen.vocabulary import Kernel, LaunchPlan, Verdict

ROUGH = 30.0  # times the tolerance: a baseline that errs no more than that is timed, and said to be less accurate
GARBAGE = 0xFF  # fresh memory may be zero here, but not in a user's process: no kernel may count on it


@dataclass
class Surroundings:
    """What all entrants of one worker share."""

    task: Task
    pulse: Pulse

    @cached_property
    def own_seconds(self) -> float:
        """Asked for after every run, and an operator may take a while to count its work."""
        return limits.own_seconds(self.task)


class Entrant(ABC):
    """One contender. `who` is its place in the request, so that a crash can be attributed to it."""

    def __init__(self, bench: Any, who: int, run_limit: float) -> None:
        """`bench`: a Bench or a GpuBench."""
        self.bench, self.who, self.run_limit = bench, who, run_limit
        self.error = 0.0
        self.leeway = 1.0  # times the tolerance that it may err
        self.form = ""  # of a baseline that computes it in another way than its library would by itself, in words
        self.verifying = WorkerStage.VERIFY
        self.calls = 0
        self.reproducible = True
        self.changing = False  # whether a run on nearly the same inputs comes before each one that is verified
        self._prepare: Callable[[], object] | None = None
        self._run: Callable[[], Any] = lambda: None
        self._prepared: Any = None  # the set of inputs that the preparation was given
        self._current = -1  # which of the sets the inputs are of
        self._answers: dict[int, Any] = {}  # to each of them, the first
        self._use_sets(frozenset())

    @abstractmethod
    def load(self, kernel: Kernel, binary: str) -> None:
        """Load the binary and give the kernel its memory."""

    @abstractmethod
    def timed(self) -> float:
        """Seconds of one run, which is checked like the first."""

    def burst(self) -> float:
        """Seconds of a run among others of its own that follow each other at once, where a device has that."""
        return self.timed()

    @abstractmethod
    def between(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """One run under the conditions of a timed one, with something called right before it and right after."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _stage(self, stage: WorkerStage, limit: float | None = None) -> AbstractContextManager[None]:
        """Code of the contender runs: it must end in time, that of one run by default."""

    @abstractmethod
    def _run_once(self, stage: WorkerStage, *, prepare: bool = False, reset: bool = True) -> None:
        """Spoil the outputs and run to the end, after the preparation where that is asked for."""

    @abstractmethod
    def _spoil_scratch(self) -> None:
        """Fill memory that holds nothing from run to run with garbage."""

    @abstractmethod
    def _look_for_damage(self) -> None:
        """Raises Rejected where something was written outside tensors and workspaces."""

    @abstractmethod
    def _look_after_run(self) -> None:
        """The quick look after every run."""

    @abstractmethod
    def _judged(self) -> tuple[float, Any]:
        """The error of the outputs and what the bench compares later outputs with. Raises Rejected."""

    @abstractmethod
    def _kept(self, error: float) -> Any:
        """What the bench compares later outputs with, of outputs that err as much as that."""

    def expect(self, plan: LaunchPlan) -> None:
        """Prepare the alternating inputs for a kernel with this plan."""
        self._use_sets(plans.constant(plan))

    def answer(self) -> None:
        """Give the answers that others are compared with: this one is not compared with any."""
        for chosen in self.bench.unanswered:
            self.bench.use(chosen)
            self._run_once(WorkerStage.JUDGE, prepare=True)
            self._look_for_damage()
            self.bench.take(chosen)

    def first(self) -> None:
        """Prepare, run once and verify."""
        self._verify()

    def last(self) -> None:
        """Verify once more, with different garbage in the scratch memory."""
        self._spoil_scratch()
        self._verify()

    def again(self) -> None:
        """One more run, verified like the first."""
        self._verify()

    def wear(self, calls: int, seconds: float) -> str | None:
        """Run it so often, or for so long, and look at nothing but what grows."""
        self._next_inputs()
        reset = any(tensor.role == INOUT for tensor in self.bench.operator.tensors())  # or its results would grow
        return repeated(lambda: self._run_once(WorkerStage.TIME, reset=reset), seconds, calls)

    def at_once(self) -> str | None:
        """Called from several threads on memory of its own each: what is wrong then. Raises Rejected where a device
        has no such calls."""
        raise Rejected(Verdict.REFUSED, "not called from several threads here")

    def _use_sets(self, constant: frozenset[str]) -> None:
        self._constant = constant
        self._sets = self.bench.alternating.under(constant)
        self.bench.begin()

    def _verify(self) -> None:
        self._next_inputs()
        if self.changing and self.bench.disturb(self._constant, self.calls):
            self._run_once(self.verifying)
            self.bench.settle()
            self._look_for_damage()
        self._run_once(self.verifying)
        self._check()

    def _next_inputs(self) -> None:
        """The next set's numbers at the same addresses; prepared data is prepared again if its inputs changed."""
        self._current = (self._current + 1) % len(self._sets)
        chosen, before = self._sets[self._current], self._prepared
        self.bench.use(chosen)
        if self._prepare is None:
            return
        if before is None or any(chosen.inputs[n] is not before.inputs[n] for n in self._constant & {*chosen.inputs}):
            with self._stage(WorkerStage.PREPARE):
                self._prepare()
            self._look_for_damage()
            self._prepared = chosen

    def _check(self) -> None:
        self.calls += 1
        with on_call(self.calls):
            self._look_after_run()
        first = self._answers.get(self._current)
        if first is not None and self.bench.same_as(first):
            return
        self.reproducible = self.reproducible and first is None
        with on_call(self.calls, self._since):
            try:
                error, answer = self._judged()
            except Rejected as off:
                if off.error is None or not 1.0 < off.error <= self.leeway:
                    raise
                error, answer = off.error, self._kept(off.error)
        self.error = max(self.error, error)
        self._answers.setdefault(self._current, answer)

    def _since(self) -> str:
        """What may explain a wrong result on these inputs."""
        if any(self.bench.same_as(answer) for place, answer in self._answers.items() if place != self._current):
            return STALE
        return "" if self._current in self._answers else REWRITTEN
