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

ROUGH = 30.0  # times the tolerance: a baseline with at most this error is timed, and reported as less accurate
GARBAGE = 0xFF  # fresh memory may be zero here but not in a user's process, so no kernel may rely on it


@dataclass
class Surroundings:
    """The state shared by all entrants of a worker."""

    task: Task
    pulse: Pulse

    @cached_property
    def own_seconds(self) -> float:
        """Cached, as it is used after every run, and counting an operator's work may take a while."""
        return limits.own_seconds(self.task)


class Entrant(ABC):
    """One contender. `who` is its index in the request, to which a crash is attributed."""

    def __init__(self, bench: Any, who: int, run_limit: float) -> None:
        """`bench`: a Bench or a GpuBench."""
        self.bench, self.who, self.run_limit = bench, who, run_limit
        self.error = 0.0
        self.leeway = 1.0  # allowed error, as a multiple of the tolerance
        self.form = ""  # for a baseline that computes it in another form than its library does by default, in words
        self.verifying = WorkerStage.VERIFY
        self.calls = 0
        self.reproducible = True
        self.partly = False  # whether each timed run is judged by another part of large outputs
        self.changing = False  # whether a run on nearly equal inputs precedes each verified one
        self._prepare: Callable[[], object] | None = None
        self._run: Callable[[], Any] = lambda: None
        self._prepared: Any = None  # the set of inputs that was prepared
        self._current = -1  # index of the current set of inputs
        self._answers: dict[int, Any] = {}  # the first answers to each set
        self._use_sets(frozenset())

    @abstractmethod
    def load(self, kernel: Kernel, binary: str) -> None:
        """Load the binary and give the kernel its memory."""

    @abstractmethod
    def timed(self) -> float:
        """Seconds of one run, which is checked like the first."""

    def burst(self) -> float:
        """Seconds of a run among consecutive ones of its own, if the device supports it."""
        return self.timed()

    @abstractmethod
    def between(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """One run under the conditions of a timed one, calling `begin` right before and `end` right after it."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _stage(self, stage: WorkerStage, limit: float | None = None) -> AbstractContextManager[None]:
        """A stage in which the contender's code runs; it has a time limit, by default that of one run."""

    @abstractmethod
    def _run_once(self, stage: WorkerStage, *, prepare: bool = False, reset: bool = True) -> None:
        """Poison the outputs and run to completion, after the preparation if requested."""

    @abstractmethod
    def _spoil_scratch(self) -> None:
        """Fill memory that keeps no data between runs with garbage."""

    @abstractmethod
    def _look_for_damage(self) -> None:
        """Raises Rejected if something was written outside tensors and workspaces."""

    @abstractmethod
    def _look_after_run(self) -> None:
        """The quick check after every run."""

    @abstractmethod
    def _judged(self) -> tuple[float, Any]:
        """The error of the outputs, and what later outputs are compared with. Raises Rejected."""

    def _as_before(self, right: Any) -> bool:
        """Whether the outputs are equal to these, which were right for the same inputs."""
        return bool(self.bench.same_as(right))

    @abstractmethod
    def _kept(self, error: float) -> Any:
        """The reference for later outputs, from outputs with this error."""

    def expect(self, plan: LaunchPlan) -> None:
        """Select the alternating inputs for a kernel with this plan."""
        self._use_sets(plans.constant(plan))

    def answer(self) -> None:
        """Provide the answers that others are compared with; this kernel itself is not compared."""
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
        """Run it this often, or for this long, and check only for growing resources."""
        self._next_inputs()
        reset = any(tensor.role == INOUT for tensor in self.bench.operator.tensors())  # or its results would grow
        return repeated(lambda: self._run_once(WorkerStage.TIME, reset=reset), seconds, calls)

    def at_once(self) -> str | None:
        """Call it from several threads, each with memory of its own. Returns what is wrong. Raises Rejected if the
        device does not support such calls."""
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
        """Switch to the next set of inputs at the same addresses, and prepare again if its constant inputs changed."""
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
        if first is not None and self._as_before(first):
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
        """A possible explanation of a wrong result on these inputs."""
        if any(self.bench.same_as(answer) for place, answer in self._answers.items() if place != self._current):
            return STALE
        return "" if self._current in self._answers else REWRITTEN
