"""One contender on a device, a kernel or a baseline: timed with the device's own clock, checked after every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np

from deepgen import baselines
from deepgen.operators import Operator, Tensor, TensorFacts
from deepgen.operators.signature import DENSE, INOUT, dense_strides
from deepgen.run.call import plans
from deepgen.run.call.gpu_kernel import BoundGpu, BoundPlan, GpuKernel
from deepgen.run.measure import limits
from deepgen.run.measure.bench import Rejected, on_call
from deepgen.run.measure.channel import DOING, WorkerStage
from deepgen.run.measure.endurance import FEWEST, LANE_CALLS, LANES
from deepgen.run.measure.entrant import GARBAGE, Entrant, Surroundings
from deepgen.run.measure.gpu_bench import DeviceSet, GpuBench
from deepgen.run.measure.gpu_device import LONGER, LONGEST, SHORTEST, Checks, DeviceBuffer, Queue, QueueSample
from deepgen.run.measure.referee import ContextLost
from deepgen.targets.gpu_driver import Driver, DriverError, Stream
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, Verdict, WorkspaceArg

_RUNS, _HELD = 4, 1 << 18  # runs per stream between checks; cycles for which the device is held while all are enqueued
_RETAKES, _PATIENCE = 6, 2  # retakes of a sample whose queue was not full; such samples after which none is retaken


@dataclass(frozen=True)
class Lane:
    """Runs on one stream, concurrently with other streams."""

    chosen: DeviceSet  # inputs
    written: Mapping[str, DeviceBuffer]
    run: Callable[[], None]


@dataclass
class GpuSurroundings(Surroundings):
    """The state shared by all entrants of a GPU's worker."""

    driver: Driver
    checks: Checks
    queue: Queue
    prepared: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)  # baselines, once per bench


class GpuEntrant(Entrant):
    """Timed with the device's own clock. Damage outside tensors is checked at the beginning and at the end."""

    bench: GpuBench

    def __init__(self, device: GpuSurroundings, bench: GpuBench, who: int, run_limit: float) -> None:
        super().__init__(bench, who, run_limit)
        self.device = device
        self.late = 0  # samples for which the host was too slow
        self._hold = SHORTEST
        self._kernel: GpuKernel | None = None
        self._keep: Callable[[], object] = lambda: None  # copies a baseline's new result to the output
        self._workspaces: dict[str, DeviceBuffer] = {}
        self._scratch: list[DeviceBuffer] = []

    def load(self, kernel: Kernel, binary: str) -> None:
        bound = self._bound(kernel, binary, self.bench.operator.scalars())
        self._run = bound.run.run
        self._prepare = partial(self._prepare_plan, bound.prepare) if kernel.plan.prepare else None
        self._scratch = [w for name, w in self._workspaces.items() if name not in bound.prepared]

    def _bound(self, kernel: Kernel, binary: str, scalars: plans.Scalars) -> BoundGpu:
        """Load the module, and bind the kernel to its memory."""
        with self._stage(WorkerStage.LOAD, limits.LOAD_SECONDS):
            plans.check_shape(kernel, scalars)
            self._kernel = GpuKernel.read(self.device.driver, kernel, binary)
            shapes = {t.name: (t.shape, t.dtype.name) for t in self.bench.operator.tensors()}
            bound = self._kernel.bind(self._addresses(), scalars, self._allocate, shapes)
        self.expect(kernel.plan)
        return bound

    def _addresses(self) -> dict[str, int]:
        return self.bench.addresses()

    def _prepare_plan(self, plan: BoundPlan) -> None:
        plan.run()
        self.device.driver.synchronize()

    def load_baseline(self, name: str, threads: int) -> None:
        # A comparison takes several requests; a library's algorithm is chosen in the first one.
        prepared, key = self.device.prepared, (name, id(self.bench))
        if key not in prepared:
            with self._stage(WorkerStage.LOAD, limits.START_SECONDS):
                baseline = baselines.by_name(name, self.device.task.own_baselines)
                arguments = self.bench.operator, self.bench.tensors(), threads
                if isinstance(baseline, baselines.Choosing):
                    prepared[key] = baseline.choose(*arguments, self._seconds)
                else:
                    prepared[key] = baseline.prepare(*arguments)
        run = prepared[key]
        self._run, self._keep = run.apart() if isinstance(run, baselines.NewResult) else (run, self._keep)
        self.form = getattr(run, "form", "")
        if isinstance(run, baselines.PackedAhead):
            self._run, self._prepare = run.call, partial(self._pack_again, run.pack)
            self._use_sets(run.constant)

    def _pack_again(self, pack: Callable[[], None]) -> None:
        pack()
        self.device.driver.synchronize()

    def first(self) -> None:
        super().first()
        self._look_for_damage()

    def timed(self) -> float:
        sample = self._full(self._sample)
        self.late += not sample.full
        return sample.seconds

    def _full(self, sample: Callable[[], QueueSample]) -> QueueSample:
        """A sample with a full queue: if the host was too slow it is taken again, unless it always is."""
        taken = sample()
        tries = _RETAKES if self.late < _PATIENCE else 0
        while not taken.full and tries:
            tries -= 1
            self._hold = min(LONGER * self._hold, LONGEST)
            taken = sample()
        return taken

    def _seconds(self, run: Callable[[], None]) -> float:
        """Seconds of one run in the same state, unchecked: for choosing among implementations."""

        def sample() -> QueueSample:
            if self.device.task.policy.cold:
                self.device.queue.flush()
            return self.device.queue.timed(run, self._hold)

        return self._full(sample).seconds

    def _sample(self) -> QueueSample:
        """Time a run on other inputs than the previous one. If caches are to be warm, an untimed run precedes it, so
        that the effect of rewriting inputs on the caches is not timed."""
        self._next_inputs()
        with self._stage(WorkerStage.TIME):
            self.bench.reset()
            if self.device.task.policy.cold:
                self.device.queue.flush()
            else:
                self._run()
            sample = self.device.queue.timed(self._run, self._hold)
        self._check()
        return sample

    def between(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """Run once between two calls that start and stop a profiler."""
        self._next_inputs()
        with self._stage(WorkerStage.VERIFY, limits.PROFILED_SECONDS):
            self.bench.reset()
            self.device.driver.synchronize()
            begin()
            self._run()
            self.device.driver.synchronize()
            end()
        self._check()

    def last(self) -> None:
        super().last()
        self._look_for_damage()

    def at_once(self) -> str | None:
        """Call on several streams, all enqueued while the device is held, so that they overlap as much as possible."""
        assert self._kernel is not None, "it was loaded"
        driver, operator = self.device.driver, self.bench.operator
        workspaces = plans.workspaces(self._kernel.kernel.plan, operator.scalars()).values()
        each = sum(tensor.bytes for tensor in self.bench.outputs) + sum(size for _, size in workspaces)
        if LANES * each > driver.free_bytes() // 2:
            raise Rejected(Verdict.REFUSED, "there is not enough memory for concurrent calls")
        streams = [driver.stream() for _ in range(LANES)]
        try:
            with self._stage(WorkerStage.THREADS, LANE_CALLS * self.run_limit):
                return self._overlapped([self._lane(self._kernel, at, place) for place, at in enumerate(streams)])
        finally:
            with suppress(DriverError):  # a lost context takes them with it
                for stream in streams:
                    driver.drop_stream(stream)

    def _overlapped(self, lanes: Sequence[Lane]) -> str | None:
        device = self.device
        runs = 1 if any(t.role == INOUT for t in self.bench.outputs) else _RUNS  # otherwise its results would grow
        latest = time.monotonic() + device.task.policy.calls_seconds
        for number in range(LANE_CALLS // runs):
            for lane in lanes:
                self._spoil(lane)
            device.queue.hold(_HELD)
            for _ in range(runs):
                for lane in lanes:
                    lane.run()
            device.driver.synchronize()
            wrong = next(filter(None, map(self._flaw, lanes)), None)
            if wrong is not None or (number >= FEWEST and time.monotonic() > latest):
                return wrong
        return None

    def _spoil(self, lane: Lane) -> None:
        """Poison the outputs, or restore those that are also read."""
        driver = self.device.driver
        for tensor in self.bench.outputs:
            to = lane.written[tensor.name].start
            if tensor.role == INOUT:
                driver.copy(to, lane.chosen.inputs[tensor.name].start, tensor.bytes)
            else:
                driver.fill(to, GARBAGE, tensor.bytes)

    def _flaw(self, lane: Lane) -> str | None:
        """What is wrong with a lane's results, in words; None if they are correct."""
        bench = self.bench
        bench.use(lane.chosen)
        for tensor in bench.outputs:
            self.device.driver.copy(bench.addresses()[tensor.name], lane.written[tensor.name].start, tensor.bytes)
        try:
            if not bench.unchanged(lane.chosen):
                bench.judge()
        except Rejected as off:
            return off.detail
        return None

    def _lane(self, kernel: GpuKernel, stream: Stream, place: int) -> Lane:
        """Create the runs of one stream: with memory of its own, and other inputs than the next stream's."""
        operator, chosen = self.bench.operator, self._sets[place % len(self._sets)]
        written = {t.name: DeviceBuffer(self.device.driver, t.name, t.bytes) for t in self.bench.outputs}
        self._workspaces.update({f"{name} {place}": buffer for name, buffer in written.items()})  # closed as such
        addresses = {name: buffer.start for name, buffer in {**chosen.inputs, **written}.items()}
        shapes = {t.name: (t.shape, t.dtype.name) for t in operator.tensors()}
        bound = kernel.bind(addresses, operator.scalars(), partial(self._allocate, lane=f" {place}"), shapes)
        if self._prepare is not None:
            bound.prepare.run()
            self.device.driver.synchronize()
        return Lane(chosen, written, partial(bound.run.run, stream))

    def _spoil_scratch(self) -> None:
        for workspace in self._scratch:
            self.device.driver.fill(workspace.start, GARBAGE, workspace.bytes)

    def close(self) -> None:
        self._run, self._keep, self._prepare = (lambda: None), (lambda: None), None
        with suppress(DriverError):  # a lost context frees all its memory itself
            for workspace in self._workspaces.values():
                workspace.close()
            if self._kernel is not None:
                self._kernel.close()
        self._workspaces.clear()
        self._kernel = None

    def _run_once(self, stage: WorkerStage, *, prepare: bool = False, reset: bool = True) -> None:
        with self._stage(stage):
            if reset:
                self.bench.reset()
            if prepare and self._prepare is not None:
                self._prepare()
            self._run()
            self._keep()
            self.device.driver.synchronize()

    def _check(self) -> None:
        self._keep()
        first = self._answers.get(self._current)
        if first is not None and self.bench.unchanged(first):
            self.calls += 1
        else:
            super()._check()

    def _look_after_run(self) -> None:
        self.bench.look_at_inputs()

    def _judged(self) -> tuple[float, DeviceSet]:
        error = self.bench.judge()
        return error, self._kept(error)

    def _kept(self, error: float) -> DeviceSet:
        if self._current not in self._answers:
            self.bench.keep()
        chosen: DeviceSet = self._sets[self._current]
        return chosen

    def _look_for_damage(self) -> None:
        with on_call(self.calls):
            self.bench.look_for_damage()
            for workspace in self._workspaces.values():
                if damage := self.device.checks.damage(workspace):
                    raise Rejected(Verdict.WRONG, damage)

    @contextmanager
    def _stage(self, stage: WorkerStage, limit: float | None = None) -> Iterator[None]:
        """Set the stage in the pulse, and convert faults to verdicts."""
        pulse = self.device.pulse
        pulse.enter(stage, self.run_limit if limit is None else limit, self.who)
        try:
            yield
        except DriverError as error:
            if error.sticky:
                raise ContextLost(f"{error.name} {DOING[stage]} (call {self.calls + 1})") from error
            verdict = Verdict.OUT_OF_MEMORY if error.out_of_memory else Verdict.REFUSED
            raise Rejected(verdict, str(error)) from error
        except DeepgenError as error:
            raise Rejected(Verdict.REFUSED, str(error)) from error
        pulse.enter(WorkerStage.CHECK, self.device.own_seconds, self.who)

    def _allocate(self, arg: WorkspaceArg, size: int, lane: str = "") -> int:
        buffer = DeviceBuffer(self.device.driver, f"workspace {arg.name}", size)
        self._workspaces[arg.name + lane] = buffer
        self.device.driver.fill(buffer.start, GARBAGE, size)
        return buffer.start


_ROOM = 64  # bytes of padding after each row: a multiple of any kernel's load width
_GAP = 0xB7  # in every byte of the padding


@dataclass(frozen=True)
class Padded:
    """A tensor's rows in a padded buffer."""

    tensor: Tensor
    buffer: DeviceBuffer
    dense: int  # address of the same rows without padding

    @property
    def rows(self) -> int:
        return prod(self.tensor.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.tensor.shape[-1] * self.tensor.dtype.bytes


class StridedEntrant(GpuEntrant):
    """Copies rows to padded buffers before a run and back after it, so that the rest is as for dense tensors."""

    def load(self, kernel: Kernel, binary: str) -> None:
        operator = self.bench.operator
        facts = padded_facts(operator, kernel.plan)
        if not facts:
            raise Rejected(Verdict.REFUSED, "it supports dense arrays only")
        self._strided = {*facts}
        bound = self._bound(kernel, binary, operator.strided(facts))
        self._run = partial(self._between, bound.run.run)
        if kernel.plan.prepare:
            self._prepare = partial(self._prepare_plan, bound.prepare)

    def _prepare_plan(self, plan: BoundPlan) -> None:
        self._scatter()
        super()._prepare_plan(plan)

    def _addresses(self) -> dict[str, int]:
        self._padded = [self._place(tensor) for tensor in self.bench.operator.tensors() if tensor.name in self._strided]
        return {**self.bench.addresses(), **{p.tensor.name: p.buffer.start for p in self._padded}}

    def _place(self, tensor: Tensor) -> Padded:
        rows, row = prod(tensor.shape[:-1]), tensor.shape[-1] * tensor.dtype.bytes
        buffer = DeviceBuffer(self.device.driver, f"{tensor.name} with padded rows", rows * (row + _ROOM))
        self._workspaces[f"{tensor.name} strided"] = buffer  # checked for damage and closed like a workspace
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


def padded_facts(operator: Operator, plan: LaunchPlan) -> dict[str, TensorFacts]:
    """Facts of tensors with padded rows, for tensors whose strides the launch plan passes to the kernel."""
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
