"""One contender on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.baselines.base import PackedAhead
from deepgen.operators import Array, Tensor
from deepgen.operators.signature import OUTPUT
from deepgen.run.call import plans
from deepgen.run.call.native import NativeKernel, NotLoadable
from deepgen.run.measure import limits
from deepgen.run.measure.bench import Bench, Rejected, Right, look_for_damage, poison
from deepgen.run.measure.channel import WorkerStage
from deepgen.run.measure.endurance import LANE_CALLS, LANES, at_once, keeps_data
from deepgen.run.measure.entrant import GARBAGE, Entrant, Surroundings
from deepgen.run.measure.guarded import Guarded
from deepgen.run.measure.harness import Harness, StepKind, Steps
from deepgen.run.measure.process_state import Threads, Waits
from deepgen.vocabulary import BadInput, Kernel, Verdict, WorkspaceArg

_AWAKE_SECONDS, _BURST_SECONDS, _MOST_RUNS = 2e-3, 5e-3, 20_000  # of a burst: warming up, timed, and its most runs
# Short kernels are called several times in a row by concurrent threads: else these spend most of their time in Python,
# where only one runs, and the calls seldom overlap.
_LANE_SECONDS, _LANE_RUNS = 5e-4, 200
# Input sizes up to which they are compared after every run, and after timed runs too: comparing takes as long as a
# quick kernel. Larger inputs are rewritten for each contender.
_COMPARED_BYTES, _COMPARED_IF_TIMED = 32 << 20, 1 << 20
_LOADING = "deepgen.run.call.loaded"  # imported by name: bundles do not contain it, as nobody calls kernels there
_STAGES = 4  # time limit of a burst, in units of a run's limit


@dataclass
class CpuSurroundings(Surroundings):
    """The state shared by all entrants of a CPU's worker."""

    harness: Harness
    threads: Threads


class CpuEntrant(Entrant):
    """Timed with the system's clock, in this process."""

    bench: Bench

    def __init__(self, around: CpuSurroundings, bench: Bench, who: int, run_limit: float) -> None:
        super().__init__(bench, who, run_limit)
        self.around = around
        self.baseline = False
        self._timing: bool | None = None  # whether guard pages are set for timed runs
        self.waits = Waits(0.0, 0.0)  # over all bursts
        self._keep: Callable[[Any], object] | None = None
        self._packed: Callable[[], Sequence[tuple[int, int]]] = tuple  # memory of a baseline's packed weights
        self._native: NativeKernel | None = None
        self._workspaces: dict[str, Guarded] = {}  # by their names in the launch plan
        self._scratch: list[Guarded] = []  # those in which the preparation leaves no data

    def load(self, kernel: Kernel, binary: str) -> None:
        scalars = self.bench.operator.scalars()
        try:
            with self._stage(WorkerStage.LOAD, limits.LOAD_SECONDS):
                plans.check_shape(kernel, scalars)
                native = self._native = NativeKernel(kernel, binary)
            bound = native.bind(self.bench.arrays, scalars, self._allocate)
        except (NotLoadable, BadInput) as error:
            raise Rejected(Verdict.REFUSED, str(error)) from error
        except MemoryError as error:
            raise Rejected(Verdict.OUT_OF_MEMORY, str(error)) from error
        self._scratch = [w for name, w in self._workspaces.items() if name not in bound.prepared]
        self._prepare = bound.prepare if kernel.plan.prepare else None
        self._run = bound.run

    def call(self, kernel: Kernel, binary: str) -> None:
        """Load it a second time, as users do, and let runs be calls from Python."""
        operator, arrays = self.bench.operator, self.bench.arrays
        outputs = [arrays[tensor.name] for tensor in operator.tensors() if tensor.role == OUTPUT]
        loaded = import_module(_LOADING).load(kernel, operator, self.around.task.target, Path(binary))
        inputs = [arrays[tensor.name] for tensor in operator.tensors() if tensor.role != OUTPUT]
        out = outputs[0] if len(outputs) == 1 else tuple(outputs) or None
        self._run = partial(loaded, *inputs, out=out)

    def take(self, run: Callable[[], Any], keep: Callable[[Any], object] | None) -> None:
        """Set a baseline's call. `keep` copies its new result to the output, if it returns one."""
        self._run, self._keep = run, keep

    def take_packed(self, run: PackedAhead) -> None:
        """Set a baseline whose weights are packed ahead, like a kernel's own."""
        self.take(run.call, run.keep)
        self._prepare, self._packed = run.pack, run.places
        self._use_sets(run.constant)

    def answer(self) -> None:
        self._tell_places()
        self._guard(timing=False)
        super().answer()

    def first(self) -> None:
        self._tell_places()
        self._guard(timing=False)
        super().first()

    def last(self) -> None:
        self._guard(timing=False)
        super().last()
        self.bench.look_at_inputs()

    def timed(self) -> float:
        """Time a run on other inputs than the previous one. If caches are to be warm, an untimed run precedes it, so
        that the effect of rewriting inputs on the caches is not timed."""
        self._guard(timing=True)
        self._ready()
        run = self._run
        with self._stage(WorkerStage.TIME):
            started = time.perf_counter_ns()
            result = run()
            ended = time.perf_counter_ns()
        self._ended(result)
        self._check()
        return (ended - started) * 1e-9

    def burst(self) -> float:
        """As users call it: with threads awake and caches warm, whatever the policy is for interleaved runs."""
        around, run = self.around, as_spelled(self._run)
        self._guard(timing=True)
        self._next_inputs()
        self.bench.reset()
        around.threads.settle()
        with self._stage(WorkerStage.TIME, _STAGES * self.run_limit):
            first = around.threads.waits()
            count, awake = 0, 0.0
            started = time.perf_counter()
            while awake < _AWAKE_SECONDS:
                result = run(1)
                count, awake = count + 1, time.perf_counter() - started
            count = max(1, min(_MOST_RUNS, round(_BURST_SECONDS * count / awake)))
            started = time.perf_counter()
            result = run(count)
            seconds = (time.perf_counter() - started) / count
            self.waits += around.threads.waits() - first
        self._ended(result)
        if self.bench.accumulates:  # it read its own result as input
            self._run_once(WorkerStage.VERIFY)
        self._check()
        return seconds

    def between(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._ready()
        with self._stage(WorkerStage.TIME):
            begin()
            result = self._run()
            end()
        self._ended(result)
        self._check()

    def at_once(self) -> str | None:
        assert self._native is not None, "it was loaded"
        limit = LANE_CALLS * self.run_limit
        with self._stage(WorkerStage.THREADS, limit):
            lanes = [self._lane(place, self._native) for place in range(LANES)]
            # Threads of ours have static data, which a lock guards.
            kept = None if self._native.has_threads else keeps_data(self._native.path, lanes)
            return kept or at_once(lanes, self.around.task.policy.calls_seconds)

    def _lane(self, place: int, native: NativeKernel) -> Callable[[], str | None]:
        """Calls of one thread: with memory of its own, and other inputs than the next thread's."""
        bench, operator = self.bench, self.bench.operator
        chosen = self._sets[place % len(self._sets)]
        arrays = {t.name: np.empty(t.shape, t.dtype.numpy()) for t in operator.tensors()}
        for name, values in chosen.inputs.items():
            arrays[name][...] = values
        bound = native.bind(arrays, operator.scalars())
        if self._prepare is not None:
            bound.prepare()
        carry_out = self.around.harness.do
        before = Steps(_refills(operator.tensors(), arrays, chosen.inputs))
        burst = 1

        def call() -> str | None:
            nonlocal burst
            carry_out(before)
            started = time.perf_counter()
            for _ in range(burst):
                bound.run()  # the closure keeps the workspaces alive
            if not bench.accumulates:
                seconds = (time.perf_counter() - started) / burst
                burst = max(1, min(_LANE_RUNS, int(_LANE_SECONDS / seconds)))
            return bench.flaw(chosen, arrays)

        return call

    def close(self) -> None:
        self._run, self._prepare = (lambda: None), None
        for workspace in self._workspaces.values():
            workspace.close()

    def _ready(self) -> None:
        """Everything to do before a timed run."""
        around = self.around
        if around.task.policy.cold:
            self._next_inputs()
        else:
            self._verify()
        self.bench.reset(partly=self.partly)
        around.threads.settle()
        if around.task.policy.cold:
            around.harness.flush(self._cold)
            if around.harness.by_lines and (packed := self._packed()):
                around.harness.do(Steps((StepKind.FLUSH, start, 0, size) for start, size in packed))

    @contextmanager
    def _stage(self, stage: WorkerStage, limit: float | None = None) -> Iterator[None]:
        self.around.pulse.enter(stage, self.run_limit if limit is None else limit, self.who)
        self.around.harness.begin()
        yield
        self.around.pulse.enter(WorkerStage.CHECK, self.around.own_seconds, self.who)

    def _run_once(self, stage: WorkerStage, *, prepare: bool = False, reset: bool = True) -> None:
        if reset:
            self.bench.reset()
        with self._stage(stage):
            if prepare and self._prepare is not None:
                self._prepare()
            result = self._run()
        self._ended(result)

    def _ended(self, result: Any) -> None:
        """Called after a run, which may have returned a new result."""
        if self._keep is not None:
            self._keep(result)

    def _spoil_scratch(self) -> None:
        for workspace in self._scratch:
            workspace.all.fill(GARBAGE)

    def _look_for_damage(self) -> None:
        if self.around.harness.do(self._intact) >= 0:
            look_for_damage(self._buffers())

    def _look_after_run(self) -> None:
        self._look_for_damage()
        if self.bench.input_bytes <= (_COMPARED_IF_TIMED if self._timing else _COMPARED_BYTES):
            self.bench.look_at_inputs()

    def _next_inputs(self) -> None:
        if self.bench.input_bytes > _COMPARED_IF_TIMED:
            self.bench.taken_by(self)
        super()._next_inputs()

    def _as_before(self, right: Right) -> bool:
        return self.bench.same_as(right, partly=True)

    def _judged(self) -> tuple[float, Right]:
        try:
            right = self.bench.judge()
        except Rejected:
            self.bench.look_at_inputs()  # it may have read what it wrote there before
            raise
        return right.error, right

    def _kept(self, error: float) -> Right:
        return self.bench.outputs(error)

    @cached_property
    def _cold(self) -> Steps:
        """The memory that a cold run must read from DRAM: tensors, and data prepared from them.

        Scratch memory keeps its cache state from the last run, because a baseline's cannot be flushed either.
        """
        scratch = {id(buffer) for buffer in self._scratch}
        return Steps((StepKind.FLUSH, b.start, 0, b.bytes) for b in self._buffers() if id(b) not in scratch)

    @cached_property
    def _intact(self) -> Steps:
        return Steps(step for buffer in self._buffers() for step in buffer.intact())

    def _guard(self, *, timing: bool) -> None:
        """Set guards: while a kernel is verified, no byte outside its tensors may be read."""
        if timing is not self._timing:
            self._timing = timing
            for buffer in self._buffers():
                buffer.allow_reads(timing)

    def _buffers(self) -> list[Guarded]:
        return [*self.bench.buffers.values(), *self._workspaces.values()]

    def _allocate(self, arg: WorkspaceArg, size: int) -> Array:
        buffer = Guarded(f"workspace {arg.name}", max(size, 1), arg.align)
        self._workspaces[arg.name] = buffer
        buffer.all.fill(GARBAGE)
        return buffer.all

    def _tell_places(self) -> None:
        self.around.pulse.tell([b.place() for b in self._buffers()])


def _refills(
    tensors: Sequence[Tensor], arrays: Mapping[str, Array], inputs: Mapping[str, Array]
) -> Iterator[tuple[StepKind, int, int, int]]:
    """The steps before a run on these arrays: poison results, and restore tensors that are read and written."""
    for tensor in tensors:
        array = arrays[tensor.name]
        if tensor.role == "inout":
            yield StepKind.COPY, array.ctypes.data, inputs[tensor.name].ctypes.data, array.nbytes
        elif tensor.role == OUTPUT:
            yield StepKind.FILL, array.ctypes.data, poison(tensor.dtype, 0), array.nbytes


def as_spelled(run: Callable[[], Any]) -> Callable[[int], Any]:
    """A function that takes a number of runs and returns the last result, without unpacking if possible."""
    if isinstance(run, partial) and {*run.keywords} == {"out"} and len(run.args) in _SPELLED:
        return partial(_SPELLED[len(run.args)], run.func, run.keywords["out"], *run.args)
    return partial(_plain, run)


def _plain(run: Callable[[], Any], count: int) -> Any:
    for _ in range(count):
        result = run()
    return result


def _of_one(call: Callable[..., Any], out: Any, a: Any, count: int) -> Any:
    for _ in range(count):
        result = call(a, out=out)
    return result


def _of_two(call: Callable[..., Any], out: Any, a: Any, b: Any, count: int) -> Any:
    for _ in range(count):
        result = call(a, b, out=out)
    return result


def _of_three(call: Callable[..., Any], out: Any, a: Any, b: Any, c: Any, count: int) -> Any:
    for _ in range(count):
        result = call(a, b, c, out=out)
    return result


_SPELLED: dict[int, Callable[..., Any]] = {1: _of_one, 2: _of_two, 3: _of_three}
