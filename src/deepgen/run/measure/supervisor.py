"""The supervisor: it runs kernels in a worker process, so that a bad one costs at most one restart."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from deepgen.run.counters import Counted
from deepgen.run.measure import conditions, handed, limits
from deepgen.run.measure.base import AFRESH, REFERENCE, Contender, RunnerOptions, Task, entry, row
from deepgen.run.measure.channel import WorkerStage
from deepgen.run.measure.helpers import built_here, references
from deepgen.run.measure.limits import Floor
from deepgen.run.measure.process import Lost, TimingWindow
from deepgen.run.measure.race import is_beaten, unsettled
from deepgen.run.measure.worker_slot import DeviceSetAside, WorkerSlot
from deepgen.targets import host
from deepgen.toolchains import Cache
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, Measurement, Verdict
from deepgen.vocabulary.folders import Scratch, sweep
from deepgen.vocabulary.measurement import IMPOSSIBLE

if TYPE_CHECKING:
    from deepgen.run.counters.profiler import Profiler

_OTHER_SEEDS, _SPARE_CORES = 2, 4  # seeds for finals; cores with which computing answers does not delay builds
ATTEMPTS = 3  # of a request whose worker dies although no kernel is to blame
DEATHS = 3  # in a row: on one kernel they exclude the kernel, on different kernels the device
RETAKES = 2  # of a disturbed measurement
_RETAKEN = 0.05  # largest share of the time left to a run: longer measurements are not repeated
ALWAYS_BUSY = 9  # surplus of disturbed measurements above which nothing is measured again, until it falls
_LOOK_SECONDS = 0.1  # for sampling the machine's load before a kernel is called unstable
TOO_FAST = 0.5  # times the best time: a faster result is confirmed in a fresh worker


class Supervisor:
    """Measures kernels on this machine, one at a time. `close` may be called from another thread."""

    def __init__(self, task: Task, options: RunnerOptions | None = None) -> None:
        """A time far below `least_seconds` is rejected, even if the peak is measured again by `least_again`, which
        happens at most once per PEAK_HOLDS."""
        options = options or RunnerOptions()
        self.task, self._spare, self._apart = task, options.spare, options.apart
        self._builds_running = options.builds_running
        self._floor = Floor(task, options.least_seconds, options.least_again)
        self._retakes = RETAKES
        sweep()
        self._scratch = Scratch("measure")
        self._arrays = options.arrays or self._scratch.path
        self._build = partial(built_here, cache=options.cache, toolchains=options.toolchains)
        self._helpers = options.helpers
        self._opening: dict[str, Any] = {}
        self._slot = WorkerSlot(task, self._opened_with)
        self._profiler: Profiler | None = None
        if task.target.runner == "gpu":
            from deepgen.run.counters.profiler import Profiler

            self._profiler = Profiler(task, self._scratch.path, options.toolchains or {})
        self._busy = 0  # disturbed measurements minus undisturbed ones
        self._printed = 0  # bytes printed in the last request
        self._streak: list[str] = []  # kernels on which the worker died, since a kernel last survived
        self._deaths: Counter[str] = Counter()
        self._verdicts: dict[str, Measurement] = {}  # of kernels on which the worker died
        self._good: Mapping[str, Any] | None = None  # the request of the last correct kernel
        self._handing = handed.handing(self._arrays, options.cache if isinstance(options.cache, Cache) else None)
        if options.ahead:
            self._hand_over_ahead()
            threading.Thread(target=self._prepare, name="deepgen-worker", daemon=True).start()

    @property
    def worker_pid(self) -> int | None:
        return self._slot.pid

    @property
    def starts(self) -> int:
        """The number of workers started so far."""
        return self._slot.starts

    def measure(self, kernel: Kernel, artifact: Artifact, *, beat: float | None = None, shape: int = 0) -> Measurement:
        key = artifact.kernel_id
        if self._deaths[key] >= DEATHS:
            return self._verdicts[key]
        self._hand_over(self.task.seed, "normal", shape)
        request = {"do": "measure", "beat": beat, "shape": shape, **entry(kernel, artifact)}
        try:
            measured = self._settled(request, key)
            if measured.ok and self._suspicious(measured, beat, shape):
                measured = self._confirmed(measured, request, key)
        except Lost as lost:
            return _verdict(lost)
        if measured.ok:
            self._good = request
        return measured

    def verify(self, kernel: Kernel, artifact: Artifact, seed: int, probe: str, shape: int = 0) -> Measurement:
        if probe == AFRESH:
            return Measurement(Verdict.REFUSED, "only a session where the reference is calls kernels afresh")
        key = artifact.kernel_id
        if self._deaths[key] >= DEATHS:
            return self._verdicts[key]
        self._hand_over(seed, probe, shape)
        try:
            request = {"do": "verify", "seed": seed, "probe": probe, "shape": shape, **entry(kernel, artifact)}
            return self._take(request, [key])[0][0]
        except Lost as lost:
            return _verdict(lost)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int, shape: int = 0) -> list[Measurement]:
        self._hand_over(self.task.seed, "normal", shape)
        entries = [row(c) for c in contenders]
        keys = [c.artifact.kernel_id if c.artifact else f"baseline {c.name}" for c in contenders]
        out = {i: self._verdicts[k] for i, k in enumerate(keys) if self._deaths[k] >= DEATHS}
        retaken = 0
        while racing := [i for i in range(len(entries)) if i not in out]:
            racers, started = [entries[i] for i in racing], time.monotonic()
            request = {"do": "compare", "rounds": rounds, "seed": seed, "shape": shape, "contenders": racers}
            try:
                measurements, disturbed = self._take(request, [keys[i] for i in racing])
            except Lost as lost:  # the others are compared again without the lost one
                out[racing[lost.who]] = _verdict(lost)
                continue
            if disturbed and retaken + 1 < self._tries(time.monotonic() - started):
                retaken += 1
                continue
            for i, measured in zip(racing, measurements, strict=True):
                believed = self._believed(measured, shape) if contenders[i].kernel is not None else measured
                out[i] = conditions.noted(believed, retaken=retaken)
        return [out[i] for i in range(len(entries))]

    def load(self, baseline: str, alone: Callable[[], AbstractContextManager[object]] = nullcontext) -> Measurement:
        """Load a baseline and run it once, verified but not timed; `alone` is held while it uses the device."""
        key = f"baseline {baseline}"
        entries = [{"name": baseline}]
        measured = Measurement(Verdict.CORRECT, "")
        try:
            self._ask({"do": "import", "contenders": entries}, [key])
            for shape in range(len(self.task.timed)):
                with alone():
                    self._hand_over(self.task.seed, "normal", shape)
                    reply = self._ask({"do": "load", "shape": shape, "contenders": entries}, [key])
                measured = Measurement.from_json(reply["measurements"][0])
                if not measured.ok:
                    break
        except Lost as lost:
            return _verdict(lost)
        return measured

    def suspended(self) -> AbstractContextManager[None]:
        """Suspends the worker while others measure on its cores."""
        return self._slot.suspended()

    def count(self, kernel: Kernel, artifact: Artifact, events: Sequence[str], shape: int = 0) -> Counted:
        key = artifact.kernel_id
        if self._deaths[key] >= DEATHS:
            return Counted.of(self._verdicts[key], events)
        self._hand_over(self.task.seed, "normal", shape)
        request = {"do": "count", "events": list(events), "shape": shape, **entry(kernel, artifact)}
        if self._profiler is not None:
            with self._slot.using:
                return self._profiler.count(self._opened_with(), request)
        try:
            return Counted.of(self._take(request, [key])[0][0], events)
        except Lost as lost:
            return Counted.of(_verdict(lost), events)

    def _hand_over(self, seed: int, probe: str, shape: int) -> None:
        """Compute a user's inputs and references here, because the worker does not have the user's code."""
        operator = self.task.shapes[shape]
        if handed.needed(operator):
            self._handing.now(operator, seed, handed.drawn_as(probe))

    def _hand_over_ahead(self) -> None:
        """Compute them while the first kernels are built. If the host's cores are not timed, also those for finals."""
        operator, seed = self.task.operator, self.task.seed
        if handed.needed(operator):
            spare = self.task.target.runner == "gpu" and host.usable_cores() >= _SPARE_CORES
            finals = handed.sets(operator, seed, _OTHER_SEEDS) if spare else ()
            self._handing.ahead(operator, [(seed, "normal"), *finals])

    def _prepare(self) -> None:
        """Start the worker, with the inputs and answers for every kernel, while the first kernel is built. Errors are
        left to the first request, which meets them again."""
        with suppress(Exception):
            with self._slot.using:
                self._slot.ready()
            self._hand_over(self.task.seed, "normal", 0)
            with self._slot.using:
                try:
                    self._slot.cpu = self._slot.ready().ask({"do": "prepare"}, limits.own_seconds(self.task))["cpu"]
                except Lost:
                    self._slot.drop()

    def switch_to(self, task: Task) -> None:
        """Switch to another operator or policy with the same target and number of threads.

        The worker keeps its imports: a baseline's framework takes longer to import than to race.
        """
        if (task.target, task.policy.threads) != (self.task.target, self.task.policy.threads):
            raise DeepgenError("a runner keeps its target and thread count: open another one")
        if task == self.task:
            return
        with self._slot.using:
            # The correct kernel and the lower bounds belong to the previous operator.
            opening = self._opened_with()
            self.task, self._floor, self._good, self._slot.task = task, Floor(task), None, task
            self._opening = {**opening, "task": task.to_json()}
            before = opening["helpers"]
            helpers = {name: row for name, row in before.items() if not name.startswith(REFERENCE)}  # references
            if task.target.runner == "gpu" or len(helpers) < len(before) or references(task):
                built = {name: helper.to_json() for name, helper in self._build(task).items()}
                self._opening = {**self._opening, "helpers": {**helpers, **built}}
            self._slot.reopen()

    def close(self) -> None:
        self._slot.closed = True
        if self._profiler is not None:
            self._profiler.close()
        # A measurement in another thread ends when its worker does.
        while not self._slot.using.acquire(timeout=0.05):
            self._slot.end()
        try:
            self._slot.drop()
            self._scratch.close()
        finally:
            self._slot.using.release()

    def _settled(self, request: Mapping[str, Any], key: str) -> Measurement:
        """Measure until nothing disturbs the measurement, or return the last of some attempts."""
        policy, beat = self.task.policy, request["beat"]
        for retaken in range(self._tries()):
            started = time.monotonic()
            [measured], disturbed = self._take(request, [key])
            measured = conditions.noted(measured, retaken=retaken)
            samples = measured.samples
            if not measured.ok or (disturbed is None and not unsettled(samples)):
                return measured
            if beat is not None and is_beaten(samples, policy, beat):
                return measured  # it is rejected whether disturbed or not
            if self._tries(time.monotonic() - started) < self._tries():
                return measured  # left to the finals
        # If builds or other processes explain the scatter, the kernel is not to blame: finals run undisturbed. Short
        # measurements do not show what other processes do.
        if disturbed is None and not measured.conditions["builds"] and conditions.disturbance(_LOOK_SECONDS) is None:
            detail = f"its time did not settle: runs took from {min(samples):.3g} to {max(samples):.3g} seconds"
            return replace(measured, verdict=Verdict.UNSTABLE, detail=detail)
        return measured

    def _tries(self, seconds: float = 0.0) -> int:
        """Attempts for a measurement of this length. On a machine that is never quiet, repeating everything would only
        take longer."""
        return 1 if self._busy >= ALWAYS_BUSY or seconds > _RETAKEN * self._spare() else self._retakes + 1

    def _suspicious(self, measured: Measurement, beat: float | None, shape: int) -> bool:
        seconds = measured.seconds or 0.0
        return (beat is not None and seconds < TOO_FAST * beat) or self._floor.above(seconds, shape)

    def _confirmed(self, measured: Measurement, request: Mapping[str, Any], key: str) -> Measurement:
        """Measure a suspiciously fast kernel again in a fresh worker, and return the slower result."""
        with self._slot.using:
            self._slot.drop()
        again = self._settled(request, key)
        if not again.ok:
            return again
        slower = max(measured, again, key=lambda m: m.seconds or 0.0)
        believed = self._believed(slower, request["shape"])
        return conditions.noted(believed, confirmed=True) if believed.ok else believed

    def _believed(self, measured: Measurement, shape: int) -> Measurement:
        """Reject a measurement if the machine's peak makes its time impossible."""
        seconds = measured.seconds or 0.0
        if not measured.ok or not self._floor.above(seconds, shape):
            return measured
        self._floor.renew()
        if not self._floor.above(seconds, shape):
            return measured
        least = self._floor.at(shape)
        detail = f"{seconds:.3g} seconds per run is less than the {least:.3g} that the machine's peak allows"
        return conditions.noted(replace(measured, verdict=Verdict.UNSTABLE, detail=detail), **{IMPOSSIBLE: True})

    def _take(self, request: Mapping[str, Any], keys: Sequence[str]) -> tuple[list[Measurement], str | None]:
        """One request: its measurements with their conditions, and what disturbed them if anything. Raises Lost."""
        hold = self._apart() if request["do"] in ("measure", "count") else None
        window = None if hold is None else TimingWindow(hold, self._look)
        before = self._look()
        reply = self._ask(request if window is None else {**request, "announced": True}, keys, window)
        before, after = window.looks if window is not None and len(window.looks) == 2 else (before, self._look())
        # The CPU time of a worker that was started meanwhile begins at zero.
        disturbed = conditions.contaminated(before, after) if after.ours >= before.ours else None
        self._busy = self._busy + 1 if disturbed else max(0, self._busy - 1)
        around = conditions.describe(before, after)
        if disturbed:
            around["contaminated"] = disturbed
        if self._printed:
            around["printed_bytes"] = self._printed
        measurements = [Measurement.from_json(m) for m in reply["measurements"]]
        return [replace(m, conditions={**m.conditions, **around}) for m in measurements], disturbed

    def _ask(self, request: Mapping[str, Any], keys: Sequence[str], window: TimingWindow | None = None) -> Any:
        with self._slot.using:
            return self._ask_worker(request, keys, window)

    def _ask_worker(self, request: Mapping[str, Any], keys: Sequence[str], window: TimingWindow | None) -> Any:
        for attempt in range(ATTEMPTS):
            worker = self._slot.ready()
            try:
                reply = worker.ask(request, limits.own_seconds(self.task), window)
            except Lost as lost:
                self._slot.drop()
                if self._slot.closed:
                    raise DeepgenError("the runner was closed while it measured") from lost
                if lost.killed and attempt == 0:
                    continue  # from outside, at the first attempt: most likely not the kernel's fault
                if not lost.stage.after_load:
                    # No kernel of this request had run: an earlier one may have damaged the worker.
                    if attempt == ATTEMPTS - 1:
                        raise DeepgenError(f"the measuring worker fails before any kernel runs: {lost}") from lost
                    continue
                self._count_death(lost, keys[lost.who])
                raise
            self._printed = worker.printed
            break
        if "error" in reply:
            raise DeepgenError(reply["error"])
        self._streak.clear()
        self._slot.hear(reply, len(keys))
        return reply

    def _count_death(self, lost: Lost, key: str) -> None:
        """Record which kernel killed the worker, and test whether the device itself fails."""
        self._deaths[key] += 1
        self._verdicts[key] = replace(_verdict(lost), detail=f"{lost.detail} (excluded after {DEATHS} such crashes)")
        if lost.verdict is Verdict.WRONG or (lost.verdict is Verdict.TIMED_OUT and self._good is None):
            return  # we ended the worker ourselves, so it says nothing about the device
        if lost.stage in (WorkerStage.OFF, WorkerStage.APART):
            return  # nor does a kernel that needs more alignment than promised
        self._streak.append(key)
        if len(set(self._streak)) < DEATHS:
            return
        self._streak.clear()
        if self._good is None or not self._survives(self._good):
            others = "a kernel that was correct fails too" if self._good else "none was correct on it yet"
            raise DeviceSetAside(
                f"{self.task.target.name} is disabled: its worker died on {DEATHS} different kernels in a row, "
                f"and {others}; the last one {lost.detail}"
            )

    def _survives(self, request: Mapping[str, Any]) -> bool:
        try:
            reply = self._slot.ready().ask(request, limits.own_seconds(self.task))
        except Lost:
            self._slot.drop()
            return False
        return all(m["verdict"] == Verdict.CORRECT.value for m in reply["measurements"])

    def _look(self, cpu: float | None = None) -> conditions.MachineReading:
        self._slot.cpu = self._slot.cpu if cpu is None else cpu
        return conditions.read(time.process_time() + self._slot.cpu, self._builds_running())

    def _opened_with(self) -> dict[str, Any]:
        """The message that opens a worker. The first call waits for our helper code to be built."""
        if not self._opening:
            ready = self._helpers() if callable(self._helpers) else self._helpers
            helpers = ready if ready and "harness" in ready else self._build(self.task)
            self._opening = {
                "task": self.task.to_json(),
                "threads": self.task.policy.threads or host.usable_cores(),
                "folder": str(self._scratch.path),
                "scratch": str(self._arrays),
                "helpers": {name: helper.to_json() for name, helper in helpers.items()},
            }
        return self._opening


def _verdict(lost: Lost) -> Measurement:
    return Measurement(lost.verdict, lost.detail)
