"""The local engine: a build pool and one supervised device on this machine, which work in parallel."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from deepgen import baselines
from deepgen.run.measure import bandwidth, conditions, open_runner, peak_gflops
from deepgen.run.measure.base import Contender, Task, least_seconds
from deepgen.targets import host
from deepgen.toolchains import (
    BuildError,
    BuildLimits,
    BuildPool,
    Cache,
    Group,
    default_cache_folder,
    make,
    toolchains_for,
)
from deepgen.tuning.engines.base import NOT_WORTH_IT, Look, Outcome
from deepgen.vocabulary import Artifact, Kernel, Measurement


@dataclass(frozen=True)
class LocalEngine:
    """Builds and measures here."""

    jobs: int | None = None  # builds at a time; None: one for each core
    cache: Path | None = None
    toolchains: Mapping[str, str] = field(default_factory=dict)  # tool -> executable
    limits: BuildLimits = field(default_factory=BuildLimits)

    def open(self, task: Task, look: Look | None = None) -> LocalSession:
        return LocalSession(self, task, look)


class LocalSession:
    """The engine at work on one task."""

    def __init__(self, engine: LocalEngine, task: Task, look: Look | None = None) -> None:
        self.task = task
        self._look = look
        self.jobs = engine.jobs or host.usable_cores()
        self._engine = engine
        self._toolchains = toolchains_for(task.target, engine.toolchains)
        self._toolchains(task.target.languages[0])  # raises at once if there is none
        self._cache = Cache(engine.cache or default_cache_folder())
        # Before the first build, so that nothing of ours disturbs it; measured once per machine, then cached.
        self._peak = self._measured_peak()
        self._bandwidth = task.target.bandwidth
        if self._bandwidth is None and self._peak is not None:
            self._bandwidth = bandwidth(task.operator, task.target, cache=self._cache, toolchains=engine.toolchains)
        self._pool = BuildPool(self._toolchains, task.target, self._cache, self.jobs, engine.limits)
        self._runner = open_runner(
            task,
            cache=self._cache,
            toolchains=engine.toolchains,
            builds_running=lambda: self._pool.running,
            least_seconds=least_seconds(task, self._peak),
            least_again=self._least_again,
        )
        self._device = threading.Lock()  # one measurement at a time, from any thread
        self._built: SimpleQueue[tuple[int, Kernel, Artifact | None] | None] = SimpleQueue()
        self._ended: SimpleQueue[Outcome | Exception] = SimpleQueue()
        self._beat: float | None = None
        self._closing = self._dropped = False
        self._leading: int | None = None  # the trial that the device waits for
        self._beside = 0  # other builds that were begun before that of the leading trial has ended
        self._behind: list[tuple[int, Kernel]] | None = None  # trials whose builds wait for it; None: none does
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._measure_all, name="deepgen-measure", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        # Enough that every build slot and the device always have the next trial waiting.
        return 2 * self.jobs + 2

    @property
    def builds_running(self) -> int:
        return self._pool.running

    def submit(self, trial_id: int, kernel: Kernel, *, first: bool = False) -> None:
        with self._lock:
            if first:
                self._leading, self._behind, self._beside = trial_id, [], 0
            elif self._behind is not None:
                # Half of the cores may only be threads of the others, and this process and its worker start meanwhile.
                if self._beside >= (self.jobs - 2) // 2:
                    self._behind.append((trial_id, kernel))
                    return
                self._beside += 1
        self._begin(trial_id, kernel)

    def _begin(self, trial_id: int, kernel: Kernel) -> None:
        self._pool.submit(kernel).add_done_callback(partial(self._on_built, trial_id, kernel))

    def results(self, timeout: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            first = self._ended.get(timeout=timeout)
            while True:
                if isinstance(first, Exception):
                    raise first
                outcomes.append(first)
                first = self._ended.get_nowait()
        except Empty:
            return outcomes

    def beat(self, seconds: float) -> None:
        self._beat = seconds

    @contextmanager
    def quiet(self) -> Iterator[None]:
        with self._pool.quiet():
            yield

    def disturbed(self) -> str | None:
        return conditions.disturbance() if self.task.target.runner == "cpu" else None

    def drop(self) -> bool:
        self._dropped = True
        self._pool.pause()  # until the session closes
        return True

    def build(self, kernel: Kernel) -> Artifact:
        # Not through the pool: finals run in a quiet window, in which the pool starts nothing, and what they need
        # is already in the cache.
        with Group() as group:
            toolchain, limits = self._toolchains(kernel.language), self._engine.limits
            return make(kernel, toolchain, self.task.target, self._cache, limits, group)

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        artifact = self.build(kernel)
        with self._device:
            return self._runner.verify(kernel, artifact, seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        built = [replace(c, artifact=self.build(c.kernel)) if c.kernel else c for c in contenders]
        with self._device:
            return self._runner.compare(built, rounds, seed)

    def baselines(self) -> list[str]:
        return baselines.find(self.task.operator, self.task.target, self.task.own_baselines)

    def peak(self, *, again: bool = False) -> float | None:
        if again:
            with self._device, self._pool.quiet():
                self._least_again()
        return self._peak

    def bandwidth(self) -> float | None:
        return self._bandwidth

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._pool.close(cancel=True)
        self._built.put(None)
        self._runner.close()
        self._thread.join(timeout=10.0)

    def __enter__(self) -> LocalSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _measured_peak(self, *, again: bool = False) -> float | None:
        operator, target, tools = self.task.operator, self.task.target, self._engine.toolchains
        return peak_gflops(operator, target, again=again, cache=self._cache, toolchains=tools)

    def _least_again(self) -> float | None:
        again = self._measured_peak(again=True)
        if self._peak is None or (
            again is not None and again > self._peak
        ):  # with an unwritable cache the better value is lost
            self._peak = again
        return least_seconds(self.task, self._peak)

    def _undisturbed(self) -> AbstractContextManager[None]:
        """Compilers are paused while a kernel runs on the cores they use.

        Without this a search on two cores preferred kernels that suffer least from neighbours: at 1024^3 its winner
        was 21% slower than torch on a quiet machine. A GPU is another device, so builds for it continue.
        """
        return self._pool.quiet() if self.task.target.shares_cores_with_builds else nullcontext()

    def _on_built(self, trial_id: int, kernel: Kernel, future: Future[Artifact]) -> None:
        artifact = None
        try:
            artifact = future.result()
        except BuildError as error:
            self._ended.put(Outcome(trial_id, None, Measurement(error.verdict, error.detail)))
        except CancelledError:
            return
        except Exception as error:  # an internal error must reach the tuner, not vanish in a pool thread
            self._ended.put(error)
        self._built.put((trial_id, kernel, artifact))
        with self._lock:
            behind, self._behind = (self._behind, None) if trial_id == self._leading else (None, self._behind)
        for one in behind or ():
            self._begin(*one)

    def _measure_all(self) -> None:
        early: deque[tuple[int, Kernel, Artifact | None]] = deque()  # built before the leading trial was measured
        while not self._closing:
            item = early.popleft() if early and self._leading is None else self._built.get()
            if item is None:
                return
            trial_id, kernel, artifact = item
            if self._leading not in (None, trial_id):
                early.append(item)
                continue
            self._leading = None if artifact is None else self._leading
            if self._dropped or artifact is None:
                continue
            try:
                outcome: Outcome | Exception = self._outcome(trial_id, kernel, artifact)
            except Exception as error:  # passed to the tuner, which stops with it
                outcome = error
            self._leading = None
            if not self._closing:
                self._ended.put(outcome)

    def _outcome(self, trial_id: int, kernel: Kernel, artifact: Artifact) -> Outcome:
        if self._look is not None and not self._look(trial_id, artifact):
            return Outcome(trial_id, artifact, NOT_WORTH_IT)
        with self._device, self._undisturbed():
            started = time.monotonic()
            measured = self._runner.measure(kernel, artifact, beat=self._beat)
            return Outcome(trial_id, artifact, measured, time.monotonic() - started)
