"""One contender on a device, a kernel or a baseline: timed by the device's own clock, checked after every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from deepgen import baselines
from deepgen.operators import Operator, Tensor, TensorFacts
from deepgen.operators.signature import DENSE, dense_strides
from deepgen.run.call import plans
from deepgen.run.call.gpu_kernel import BoundPlan, GpuKernel
from deepgen.run.measure import limits
from deepgen.run.measure.base import Task
from deepgen.run.measure.bench import REWRITTEN, STALE, Rejected, on_call
from deepgen.run.measure.channel import Pulse, Stage
from deepgen.run.measure.gpu_bench import DeviceSet, GpuBench
from deepgen.run.measure.gpu_device import LONGER, LONGEST, SHORTEST, Checks, DeviceBuffer, Queue, Sample
from deepgen.run.measure.referee import ContextLost
from deepgen.targets.gpu_driver import Driver, DriverError
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, Verdict, WorkspaceArg

_GARBAGE = 0xFF  # fresh memory may hold zeros: no kernel may count on them
_RETAKES, _PATIENCE = 6, 2  # of a sample whose queue was not full; such samples in spite of that
_DOING = {
    Stage.LOAD: "while it was loaded",
    Stage.PREPARE: "while it prepared its data",
    Stage.VERIFY: "in a verifying run",
    Stage.TIME: "in a timed run",
    Stage.JUDGE: "where the kernel ran that answers are compared with",
}


@dataclass
class Device:
    """What all entrants of one worker share."""

    task: Task
    driver: Driver
    checks: Checks
    pulse: Pulse
    queue: Queue
    prepared: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)  # baselines, once a bench

    @cached_property
    def own_seconds(self) -> float:
        """Asked for after every run, and an operator may take a while to count its work."""
        return limits.own_seconds(self.task)


class GpuEntrant:
    """One contender. `who` is its place in the request, so that a crash can be attributed to it."""

    def __init__(self, device: Device, bench: GpuBench, who: int, run_limit: float) -> None:
        self.device, self.bench, self.who, self.run_limit = device, bench, who, run_limit
        self.error = 0.0
        self.calls = 0
        self.reproducible = True
        self.late = 0  # samples for which the host was too slow
        self._hold = SHORTEST
        self._run: Callable[[], None] = lambda: None
        self._prepare: BoundPlan | None = None
        self._kernel: GpuKernel | None = None
        self._workspaces: dict[str, DeviceBuffer] = {}
        self._scratch: list[DeviceBuffer] = []
        self._constant: frozenset[str] = frozenset()
        self._sets = bench.alternating.under(self._constant)
        self._prepared: DeviceSet | None = None  # what the preparation was given
        self._current = -1  # which of the sets the inputs are of
        self._right: set[int] = set()  # those on which it has been right: the bench keeps its answers

    def load(self, kernel: Kernel, binary: str) -> None:
        """Load the module and give the kernel its memory."""
        with self._stage(Stage.LOAD, limits.LOAD_SECONDS):
            operator = self.bench.operator
            scalars = operator.scalars()
            plans.check_shape(kernel, scalars)
            self._kernel = GpuKernel.read(self.device.driver, kernel, binary)
            shapes = {t.name: (t.shape, t.dtype.name) for t in operator.tensors()}
            bound = self._kernel.bind(self.bench.addresses(), scalars, self._allocate, shapes)
        self._prepare = bound.prepare if kernel.plan.prepare else None
        self._run = bound.run.run
        self._scratch = [w for name, w in self._workspaces.items() if name not in bound.prepared]
        self._constant = plans.constant(kernel.plan)
        self._sets = self.bench.alternating.under(self._constant)

    def load_baseline(self, name: str, threads: int) -> None:
        # A comparison takes several requests; a library's algorithm is chosen in the first.
        prepared, key = self.device.prepared, (name, id(self.bench))
        if key not in prepared:
            with self._stage(Stage.LOAD, limits.START_SECONDS):
                baseline = baselines.by_name(name, self.device.task.own_baselines)
                arguments = self.bench.operator, self.bench.tensors(), threads
                if isinstance(baseline, baselines.Choosing):
                    prepared[key] = baseline.choose(*arguments, self._seconds)
                else:
                    prepared[key] = baseline.prepare(*arguments)
        self._run = prepared[key]

    def answer(self) -> None:
        """Give the answers that others are compared with: this one is not compared with any."""
        for chosen in self.bench.unanswered:
            self.bench.use(chosen)
            with self._stage(Stage.JUDGE, self.run_limit):
                self.bench.reset()
                if self._prepare is not None:
                    self._prepare.run()
                self._run()
                self.device.driver.synchronize()
            self._look_for_damage()
            self.bench.take(chosen)

    def first(self) -> None:
        """Prepare, run once and verify."""
        self._verify()
        self._look_for_damage()

    def timed(self) -> float:
        """Seconds of one run, which is checked like the first."""
        sample = self._full(self._sample)
        self.late += not sample.full
        return sample.seconds

    def _full(self, sample: Callable[[], Sample]) -> Sample:
        """A sample with a full queue: where the host was too slow, it is taken again, unless it always is."""
        taken = sample()
        tries = _RETAKES if self.late < _PATIENCE else 0
        while not taken.full and tries:
            tries -= 1
            self._hold = min(LONGER * self._hold, LONGEST)
            taken = sample()
        return taken

    def _seconds(self, run: Callable[[], None]) -> float:
        """Of one run in the same state, unchecked: for choosing among implementations."""

        def sample() -> Sample:
            if self.device.task.policy.cold:
                self.device.queue.flush()
            return self.device.queue.timed(run, self._hold)

        return self._full(sample).seconds

    def _sample(self) -> Sample:
        """It finds other inputs than the run before. Where caches are to be warm, an untimed run has met them first:
        what rewriting left in the caches is not what is timed."""
        self._next_inputs()
        with self._stage(Stage.TIME, self.run_limit):
            self.bench.reset()
            if self.device.task.policy.cold:
                self.device.queue.flush()
            else:
                self._run()
            sample = self.device.queue.timed(self._run, self._hold)
        self._check()
        return sample

    def between(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """One run, with something called right before it and right after: a profiler is told what to look at."""
        self._next_inputs()
        with self._stage(Stage.VERIFY, limits.PROFILED_SECONDS):
            self.bench.reset()
            self.device.driver.synchronize()
            begin()
            self._run()
            self.device.driver.synchronize()
            end()
        self._check()

    def last(self) -> None:
        """Verify once more, with other garbage in the scratch memory; damage done by any run shows here."""
        for workspace in self._scratch:
            self.device.driver.fill(workspace.start, _GARBAGE, workspace.bytes)
        self._verify()
        self._look_for_damage()

    def close(self) -> None:
        self._run, self._prepare = (lambda: None), None
        with suppress(DriverError):  # a context that is lost gives nothing back, and takes all with it
            for workspace in self._workspaces.values():
                workspace.close()
            if self._kernel is not None:
                self._kernel.close()
        self._workspaces.clear()
        self._kernel = None

    def _verify(self) -> None:
        self._next_inputs()
        with self._stage(Stage.VERIFY, self.run_limit):
            self.bench.reset()
            self._run()
            self.device.driver.synchronize()
        self._check()

    def _next_inputs(self) -> None:
        """The next set's numbers at the same addresses; prepared data is prepared again if its inputs changed."""
        self._current = (self._current + 1) % len(self._sets)
        chosen, before = self._sets[self._current], self._prepared
        self.bench.use(chosen)
        if self._prepare is None:
            return
        if before is None or any(chosen.inputs[n] is not before.inputs[n] for n in self._constant & {*chosen.inputs}):
            with self._stage(Stage.PREPARE, self.run_limit):
                self._prepare.run()
                self.device.driver.synchronize()
            self._look_for_damage()
            self._prepared = chosen

    def _check(self) -> None:
        self.calls += 1
        with on_call(self.calls):
            self.bench.look_at_inputs()
        seen = self._current in self._right
        if seen and self.bench.same_as_kept(self._sets[self._current]):
            return
        self.reproducible = self.reproducible and not seen
        with on_call(self.calls, self._since):
            self.error = max(self.error, self.bench.judge())
        if not seen:
            self.bench.keep()
            self._right.add(self._current)

    def _since(self) -> str:
        """What may explain a wrong result on these inputs."""
        if any(self.bench.same_as_kept(self._sets[place]) for place in self._right if place != self._current):
            return STALE
        return "" if self._current in self._right else REWRITTEN

    def _look_for_damage(self) -> None:
        with on_call(self.calls):
            self.bench.look_for_damage()
            for workspace in self._workspaces.values():
                if damage := self.device.checks.damage(workspace):
                    raise Rejected(Verdict.WRONG, damage)

    @contextmanager
    def _stage(self, stage: Stage, limit: float) -> Iterator[None]:
        """Code of the contender runs: it must end in time, and its faults become verdicts."""
        pulse = self.device.pulse
        pulse.enter(stage, limit, self.who)
        try:
            yield
        except DriverError as error:
            if error.sticky:
                raise ContextLost(f"{error.name} {_DOING[stage]} (call {self.calls + 1})") from error
            verdict = Verdict.OUT_OF_MEMORY if error.out_of_memory else Verdict.REFUSED
            raise Rejected(verdict, str(error)) from error
        except DeepgenError as error:
            raise Rejected(Verdict.REFUSED, str(error)) from error
        pulse.enter(Stage.CHECK, self.device.own_seconds, self.who)

    def _allocate(self, arg: WorkspaceArg, size: int) -> int:
        buffer = DeviceBuffer(self.device.driver, f"workspace {arg.name}", size)
        self._workspaces[arg.name] = buffer
        self.device.driver.fill(buffer.start, _GARBAGE, size)
        return buffer.start


_ROOM = 64  # bytes after each row: a multiple of what any kernel loads at once
_GAP = 0xB7  # in every byte of it


@dataclass(frozen=True)
class Padded:
    """A tensor's rows in a buffer of their own."""

    tensor: Tensor
    buffer: DeviceBuffer
    dense: int  # the address of the same rows without room between them

    @property
    def rows(self) -> int:
        return prod(self.tensor.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.tensor.shape[-1] * self.tensor.dtype.bytes


class StridedEntrant(GpuEntrant):
    """Rows are copied to where the kernel finds them and back, so that everything else is as for dense tensors."""

    def load(self, kernel: Kernel, binary: str) -> None:
        operator = self.bench.operator
        facts = padded_facts(operator, kernel.plan)
        if not facts:
            raise Rejected(Verdict.REFUSED, "it serves dense arrays only")
        with self._stage(Stage.LOAD, limits.LOAD_SECONDS):
            scalars = operator.strided(facts)
            plans.check_shape(kernel, scalars)
            self._kernel = GpuKernel.read(self.device.driver, kernel, binary)
            self._padded = [self._place(tensor) for tensor in operator.tensors() if tensor.name in facts]
            addresses = {**self.bench.addresses(), **{p.tensor.name: p.buffer.start for p in self._padded}}
            shapes = {t.name: (t.shape, t.dtype.name) for t in operator.tensors()}
            bound = self._kernel.bind(addresses, scalars, self._allocate, shapes)
        self._prepare = _After(self._scatter, bound.prepare) if kernel.plan.prepare else None
        self._run = lambda: self._between(bound.run.run)
        self._constant = plans.constant(kernel.plan)
        self._sets = self.bench.alternating.under(self._constant)

    def _place(self, tensor: Tensor) -> Padded:
        rows, row = prod(tensor.shape[:-1]), tensor.shape[-1] * tensor.dtype.bytes
        buffer = DeviceBuffer(self.device.driver, f"{tensor.name} with room between rows", rows * (row + _ROOM))
        self._workspaces[f"{tensor.name} strided"] = buffer  # looked at for damage and closed like any
        return Padded(tensor, buffer, self.bench.addresses()[tensor.name])

    def _scatter(self) -> None:
        driver = self.device.driver
        for padded in self._padded:
            driver.fill(padded.buffer.start, _GAP, padded.buffer.bytes)
            for row in range(padded.rows):
                to = padded.buffer.start + row * (padded.row_bytes + _ROOM)
                driver.copy(to, padded.dense + row * padded.row_bytes, padded.row_bytes)

    def _between(self, run: Callable[[], None]) -> None:
        driver = self.device.driver
        self._scatter()
        run()
        driver.synchronize()
        for padded in self._padded:
            pitch = padded.row_bytes + _ROOM
            content = padded.buffer.get(np.empty((padded.rows, pitch), np.uint8))
            if padded.tensor.role != "input" and (content[:, padded.row_bytes :] != _GAP).any():
                raise Rejected(Verdict.WRONG, f"wrote between the rows of {padded.tensor.name}")
            for row in range(padded.rows):
                driver.copy(padded.dense + row * padded.row_bytes, padded.buffer.start + row * pitch, padded.row_bytes)


class _After(BoundPlan):
    """A plan that runs once something else was done."""

    def __init__(self, first: Callable[[], None], plan: BoundPlan) -> None:
        self._first, self._plan = first, plan

    def run(self, stream: int | None = 0) -> None:
        self._first()
        self._plan.run()


def padded_facts(operator: Operator, plan: LaunchPlan) -> dict[str, TensorFacts]:
    """Tensors with room after each row, of those that the launch plan tells the strides of."""
    passed, plain, signature = plans.names_of(plan), operator.scalars(), operator.signature()
    out: dict[str, TensorFacts] = {}
    for tensor in operator.tensors():
        if len(tensor.shape) < 2 or tensor.shape[-2] < 2 or signature[tensor.name].strides == DENSE:
            continue
        shape = (*tensor.shape[:-1], tensor.shape[-1] + _ROOM // tensor.dtype.bytes)
        facts = TensorFacts(tensor.shape, tensor.dtype.name, dense_strides(shape))
        changed = {name for name, value in operator.strided({tensor.name: facts}).items() if plain[name] != value}
        if changed & passed:
            out[tensor.name] = facts
    return out
