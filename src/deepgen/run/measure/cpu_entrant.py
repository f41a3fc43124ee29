"""One contender at work on a bench, a kernel or a baseline: every run of it, timed or not, is checked in full."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from deepgen.operators import Array
from deepgen.run.call import plans
from deepgen.run.call.native import NativeKernel, NotLoadable
from deepgen.run.measure import limits
from deepgen.run.measure.base import Task
from deepgen.run.measure.bench import (
    REWRITTEN,
    STALE,
    Bench,
    Guarded,
    InputSet,
    Rejected,
    Right,
    look_for_damage,
    on_call,
)
from deepgen.run.measure.channel import Pulse, Stage
from deepgen.run.measure.harness import Harness
from deepgen.run.measure.process_state import Threads
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, Verdict, WorkspaceArg

_GARBAGE = 0xFF  # fresh memory is zero here but not in a user's process: no kernel may count on it


@dataclass
class Surroundings:
    """What all entrants of one worker share."""

    task: Task
    harness: Harness
    pulse: Pulse
    threads: Threads

    @cached_property
    def own_seconds(self) -> float:
        """Asked for after every run, and an operator may take a while to count its work."""
        return limits.own_seconds(self.task)


@dataclass
class CpuEntrant:
    """One contender. `who` is its place in the request, so that a crash can be attributed to it."""

    around: Surroundings
    bench: Bench
    who: int
    run_limit: float
    baseline: bool = False
    prepare: Callable[[], None] | None = None
    run: Callable[[], Any] = lambda: None
    keep: Callable[[Any], object] | None = None  # copies the new result of a baseline to the output
    workspaces: dict[str, Guarded] = field(default_factory=dict)  # by the names that the launch plan gives them
    scratch: list[Guarded] = field(default_factory=list)  # those that `prepare` leaves nothing in
    error: float = 0.0
    calls: int = 0
    reproducible: bool = True
    _constant: frozenset[str] = frozenset()
    _sets: Sequence[InputSet] = ()
    _prepared: InputSet | None = None  # what `prepare` was given
    _current: int = -1  # which of the sets the inputs are of
    _answers: dict[int, Right] = field(default_factory=dict)  # to each of them, the first

    def __post_init__(self) -> None:
        self._sets = self.bench.alternating.under(self._constant)

    def expect(self, plan: LaunchPlan) -> None:
        """Prepare the alternating inputs for a kernel with this plan."""
        self._constant = plans.constant(plan)
        self._sets = self.bench.alternating.under(self._constant)

    def load(self, kernel: Kernel, binary: str) -> None:
        """Load the library and give the kernel its memory."""
        self.around.pulse.enter(Stage.LOAD, limits.LOAD_SECONDS, self.who)
        self.around.harness.begin()
        scalars = self.bench.operator.scalars()
        try:
            plans.check_shape(kernel, scalars)
            native = NativeKernel(kernel, binary)
            self._enter_own()
            bound = native.bind(self.bench.arrays, scalars, self._allocate)
        except (NotLoadable, BadInput) as error:
            raise Rejected(Verdict.REFUSED, str(error)) from error
        except MemoryError as error:
            raise Rejected(Verdict.OUT_OF_MEMORY, str(error)) from error
        self.scratch = [w for name, w in self.workspaces.items() if name not in bound.prepared]
        self.prepare = bound.prepare if kernel.plan.prepare else None
        self.run = bound.run

    def answer(self) -> None:
        """Give the answers that others are compared with: this one is not compared with any."""
        self._tell_places()
        for chosen in self.bench.unanswered:
            self.bench.use(chosen)
            self.bench.reset()
            self._enter(Stage.JUDGE)
            self.around.harness.begin()
            if self.prepare is not None:
                self.prepare()
            self._ended(self.run())
            look_for_damage(self._buffers())
            self.bench.take(chosen)

    def first(self) -> None:
        """Prepare, run once and verify."""
        self._tell_places()
        self._verify()

    def timed(self) -> float:
        """Seconds of one run, which is checked like the first.

        It finds other inputs than the run before. Where caches are to be warm, an untimed run has met them first: what
        rewriting left in the caches is not what is timed.
        """
        run = self._ready()
        started = time.perf_counter_ns()
        result = run()
        ended = time.perf_counter_ns()
        self._ended(result)
        self._check()
        return (ended - started) * 1e-9

    def between(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """One run under the conditions of a timed one, with something called right before it and right after."""
        run = self._ready()
        begin()
        result = run()
        end()
        self._ended(result)
        self._check()

    def _ready(self) -> Callable[[], Any]:
        """What runs it, with everything done that comes before a timed run."""
        around = self.around
        if around.task.policy.cold:
            self._next_inputs()
        else:
            self._verify()
        self.bench.reset()
        around.threads.settle()
        if around.task.policy.cold:
            around.harness.flush([b.all for b in self._cold()])
        self._enter(Stage.TIME)
        around.harness.begin()
        return self.run

    def last(self) -> None:
        """Verify once more, with different garbage in the workspace."""
        for workspace in self.scratch:
            workspace.all.fill(_GARBAGE)
        self._verify()

    def close(self) -> None:
        self.run = self.prepare = None  # type: ignore[assignment]
        for workspace in self.workspaces.values():
            workspace.close()

    def _verify(self) -> None:
        self._next_inputs()
        self.bench.reset()
        self._enter(Stage.VERIFY)
        self.around.harness.begin()
        self._ended(self.run())
        self._check()

    def _next_inputs(self) -> None:
        """The next set's numbers at the same addresses; prepared data is prepared again if its inputs changed."""
        self._current = (self._current + 1) % len(self._sets)
        chosen, before = self._sets[self._current], self._prepared
        self.bench.use(chosen)
        if self.prepare is None:
            return
        if before is None or any(
            chosen.inputs[n] is not before.inputs[n] for n in chosen.inputs if n in self._constant
        ):
            self._enter(Stage.PREPARE)
            self.around.harness.begin()
            self.prepare()
            self._enter_own()
            look_for_damage(self._buffers())
            self._prepared = chosen

    def _check(self) -> None:
        self.calls += 1
        with on_call(self.calls):
            look_for_damage(self._buffers())
        first = self._answers.get(self._current)
        if first is not None and self.bench.same_as(first):
            return
        self.reproducible = self.reproducible and first is None
        with on_call(self.calls, self._since):
            right = self.bench.judge()
        self.error = max(self.error, right.error)
        self._answers.setdefault(self._current, right)

    def _since(self) -> str:
        """What may explain a wrong result on these inputs."""
        if any(self.bench.same_as(answer) for place, answer in self._answers.items() if place != self._current):
            return STALE
        return "" if self._current in self._answers else REWRITTEN

    def _cold(self) -> list[Guarded]:
        """What a cold run must read from memory: tensors, and data prepared from them ahead of time.

        Scratch memory stays as the last run left it, because a baseline's, which nobody can flush, does too.
        """
        scratch = {id(buffer) for buffer in self.scratch}
        return [buffer for buffer in self._buffers() if id(buffer) not in scratch]

    def _buffers(self) -> list[Guarded]:
        return [*self.bench.buffers.values(), *self.workspaces.values()]

    def _allocate(self, arg: WorkspaceArg, size: int) -> Array:
        buffer = Guarded(f"workspace {arg.name}", max(size, 1), arg.align)
        self.workspaces[arg.name] = buffer
        buffer.all.fill(_GARBAGE)
        return buffer.all

    def _tell_places(self) -> None:
        self.around.pulse.tell([b.place() for b in self._buffers()])

    def _enter(self, stage: Stage) -> None:
        self.around.pulse.enter(stage, self.run_limit, self.who)

    def _ended(self, result: Any) -> None:
        """After a run, which may have made a new result."""
        self._enter_own()
        if self.keep is not None:
            self.keep(result)

    def _enter_own(self) -> None:
        self.around.pulse.enter(Stage.CHECK, self.around.own_seconds, self.who)
