"""The local engine: a build pool and one supervised device on this machine, working in parallel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from deepgen import baselines
from deepgen.baselines import light, raced
from deepgen.run.measure import bandwidth, conditions, handed, limits, open_runner, peak_gflops
from deepgen.run.measure.afresh import called_afresh
from deepgen.run.measure.base import AFRESH, Contender, Helper, RunnerOptions, Task, least_seconds
from deepgen.run.measure.helpers import build_helpers, helpers_for
from deepgen.run.measure.peak import NotMeasured
from deepgen.settings import Settings
from deepgen.targets import host
from deepgen.toolchains import (
    BuildError,
    BuildLimits,
    BuildPool,
    Cache,
    Group,
    default_cache_folder,
    make,
    pool,
    toolchains_for,
)
from deepgen.toolchains.pool import BegunBuild
from deepgen.tuning.engines.base import NOT_WORTH_IT, Look, Outcome
from deepgen.tuning.engines.device import BaselineRace, FairLock, FirstGate
from deepgen.vocabulary import Artifact, Kernel, Measurement
from deepgen.vocabulary.folders import Scratch

_ON_DEVICE = ("cpu", "gpu")  # runners with a worker process
_MANY_CORES = 4  # with fewer cores, importing a framework would delay the first builds
_FOR_FRAMEWORKS = 12.0  # seconds; with less time, a few cores are too late for the race three times out of four
_LINGER = 0.5  # seconds that a closing session waits for its thread
_OF_MEMORY = 0.3  # share of memory that a task may need if there are two workers


@dataclass(frozen=True)
class LocalEngine:
    """Builds and measures on this machine."""

    jobs: int | None = None  # concurrent builds; None: one per core
    cache: Path | None = None
    toolchains: Mapping[str, str] = field(default_factory=dict)  # tool -> executable
    limits: BuildLimits = field(default_factory=BuildLimits)
    built: Mapping[str, Artifact] = field(default_factory=dict)  # kernels by id whose binaries are run unchanged

    def open(self, task: Task, look: Look | None = None) -> LocalSession:
        return LocalSession(self, task, look)


def local_engine(settings: Settings, jobs: int | None = None) -> LocalEngine:
    """The local engine with these settings."""
    return LocalEngine(
        jobs=jobs or settings.limits.jobs,
        cache=settings.cache,
        toolchains=settings.programs(),
        limits=settings.build_limits(),
    )


class LocalSession:
    """An open session of the engine for one task."""

    def __init__(self, engine: LocalEngine, task: Task, look: Look | None = None) -> None:
        self.task = task
        self._look = look
        self.jobs = engine.jobs or host.usable_cores()
        self._engine = engine
        self._toolchains = toolchains_for(task.target, engine.toolchains)
        self._toolchains(task.target.languages[0])  # raises at once if it is missing
        self._cache = Cache(engine.cache or default_cache_folder())
        self._peak: float | None = None
        self._bandwidth = task.target.bandwidth
        self._settling = threading.Lock()
        self._settled = False  # whether the peak was looked up or measured, even without success
        with suppress(NotMeasured):  # measuring it would delay the first trial
            self._settle(None)
        self._pool = BuildPool(self._toolchains, task.target, self._cache, self.jobs, engine.limits)
        self._device = FairLock()  # one measurement at a time, from any thread
        self._arrays = Scratch("arrays")
        self.until = inf  # the end of a run's budget, as `time.monotonic` time
        self._helping = Group()
        self._begun: list[BegunBuild] = []  # builds that began before the pool existed
        self._options = RunnerOptions(
            cache=self._cache,
            toolchains=engine.toolchains,
            builds_running=lambda: self._pool.running,
            helpers=self._build_helpers(),
            arrays=self._arrays.path,
            least_seconds=lambda: least_seconds(task, self._peak),
            least_again=self._least_again,
            spare=lambda: self.until - time.monotonic(),
            apart=self._apart,
        )
        self._runner = open_runner(task, replace(self._options, ahead=True))
        self._race: BaselineRace | None = None  # set once there are baselines to race
        self._gave_up = False  # loading them there; those that loaded in time race in the search's worker
        self._measured = threading.Event()  # set once a first trial was measured
        self._built: SimpleQueue[tuple[int, Kernel, Artifact] | None] = SimpleQueue()
        self._ended: SimpleQueue[Outcome | Exception] = SimpleQueue()
        self._beat: float | None = None
        self._closing = self._dropped = self._measuring = False
        self._gate: FirstGate[tuple[int, Kernel], tuple[int, Kernel, Artifact]] = FirstGate(self.jobs)
        self._thread = threading.Thread(target=self._measure_all, name="deepgen-measure", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        # Enough that every build slot and the device always have another trial waiting.
        return 2 * self.jobs + 2

    @property
    def builds_running(self) -> int:
        return self._pool.running

    @property
    def measuring(self) -> bool:
        return self._measuring

    def submit(self, trial_id: int, kernel: Kernel, *, first: bool = False) -> None:
        for one in self._gate.submit(trial_id, (trial_id, kernel), first=first):
            self._begin(*one)

    def _begin(self, trial_id: int, kernel: Kernel) -> None:
        if (ready := self._engine.built.get(kernel.id)) is not None:
            self._built.put((trial_id, kernel, ready))
            return
        begun = self._taken(kernel)
        future = self._pool.submit(kernel) if begun is None else begun.built
        future.add_done_callback(partial(self._on_built, trial_id, kernel))

    def _taken(self, kernel: Kernel) -> BegunBuild | None:
        begun = pool.take(kernel, self.task.target, self._cache.folder)
        if begun is not None:
            self._begun.append(begun)
        return begun

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
        if self._race is not None:
            self._race.wait()
        return conditions.disturbance() if self.task.target.runner == "cpu" else None

    def drop(self) -> bool:
        self._dropped = True
        self._pool.pause()  # until the session is closed
        return True

    def reference_seconds(self) -> tuple[float, bool]:
        return handed.handing(self._arrays.path, self._cache).first_seconds()

    def build(self, kernel: Kernel) -> Artifact:
        # Not through the pool: finals run in a quiet window, in which the pool starts no builds, and most of what they
        # need is in the cache.
        if kernel.id in self._engine.built:
            return self._engine.built[kernel.id]
        with Group() as group:
            return self._make(kernel, group)

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        artifact = self.build(kernel)
        if probe == AFRESH:  # in its own process, possibly while another check runs here
            return called_afresh(kernel, artifact, self.task.shapes[shape], self.task.target, seed)
        with self._device:
            return self._runner.verify(kernel, artifact, seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        built = [replace(c, artifact=self.build(c.kernel)) if c.kernel else c for c in contenders]
        if all(one.kernel for one in contenders) or self._gave_up or not self._races_apart:
            with self._device, self._suspended():
                return self._runner.compare(built, rounds, seed)
        race = self._race = self._race or self._open_race()
        race.wait()
        with self._device:
            return race.compare(built, rounds, seed)

    def baselines(self) -> list[str]:
        return baselines.find(self.task.operator, self.task.target, self.task.own_baselines)

    def load(self, baselines: Sequence[str], seconds: float) -> None:
        # Heavy ones take so long that the search would wait for them.
        wanted, many = raced(baselines, self.task.operator, packs=True), host.usable_cores() >= _MANY_CORES
        if not many and self.task.target.shares_cores_with_builds and seconds < _FOR_FRAMEWORKS:
            wanted = light(wanted, self.task.own_baselines) or wanted
        if self._race is None and wanted and self._races_apart:
            self._race = self._open_race()
            self._race.load(wanted, seconds, self._measured, at_once=many)

    def loaded(self, seconds: float) -> list[str] | None:
        if self._race is None:
            return None
        names = self._race.loaded(seconds)
        if names and self._race.loading:  # they cannot race in a process that is still loading another one
            self._race.close()
            self._race, self._gave_up = None, True
        return names

    def peak(self, *, again: bool = False) -> float | None:
        self._settle(self._quiet_device)
        if again:
            with self._quiet_device():
                self._least_again()
        return self._peak

    def bandwidth(self) -> float | None:
        self._settle(self._quiet_device)
        return self._bandwidth

    def rates(self) -> tuple[float | None, float | None]:
        return self._peak, self._bandwidth

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._gate.close()
        for group in (self._helping, *(begun.group for begun in self._begun)):
            group.close()
        self._pool.close(cancel=True)
        self._built.put(None)
        # Close both at once: a driver takes a while to release a process's memory.
        ending = [threading.Thread(target=one.close) for one in (self._runner, self._race) if one is not None]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()
        self._thread.join(timeout=_LINGER)  # it may be in user code, which cannot be interrupted
        self._arrays.close()

    def __enter__(self) -> LocalSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _races_apart(self) -> bool:
        """Whether baselines race in a second worker: not on boards, and not if tensors fill the memory."""
        target, most = self.task.target, None
        if target.runner == "gpu":
            most = host.gpu_memory_bytes(target)
            needed = sum(limits.device_bytes(operator) for operator in self.task.timed)
        elif target.runner == "cpu":
            most, needed = host.memory_bytes(), limits.bench_bytes(self.task)
        return most is not None and needed < _OF_MEMORY * most

    def _open_race(self) -> BaselineRace:
        # A GPU times kernels with its own clock: only work on the GPU itself must take turns.
        alone = nullcontext if self.task.target.shares_cores_with_builds else lambda: self._device
        return BaselineRace(self.task, self._options, alone)

    def _apart(self) -> Callable[[], AbstractContextManager[None]] | None:
        return self._undisturbed if self.task.target.shares_cores_with_builds else None

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Compilers and loading baselines are suspended while a kernel is timed on the cores they use.

        Without this a search on two cores preferred kernels that suffered least from other processes: at 1024^3 its
        winner was 21% slower than torch on a quiet machine. A GPU is another device, so builds for it continue.
        """
        race = self._race
        with self._pool.quiet(), nullcontext() if race is None else race.suspended():
            yield

    def _suspended(self) -> AbstractContextManager[None]:
        return (self._apart() or nullcontext)()

    def _build_helpers(self) -> Callable[[], Mapping[str, Helper]] | None:
        """Start building our own helper code for the device beside the first kernels. Quiet windows wait for it."""
        if self.task.target.runner not in _ON_DEVICE:
            return None
        started: dict[str, Future[Artifact]] = {}
        for name, kernel in helpers_for(self.task).items():
            begun = self._taken(kernel)
            future: Future[Artifact] = Future() if begun is None else begun.built
            started[kernel.id] = future
            if begun is not None:
                continue
            words = {"args": (kernel, future), "name": f"deepgen-{name}"}
            threading.Thread(target=self._build_helper, daemon=True, **words).start()  # type: ignore[arg-type]

        return lru_cache(partial(build_helpers, self.task, lambda kernel: started[kernel.id].result()))

    def _build_helper(self, kernel: Kernel, future: Future[Artifact]) -> None:
        try:
            future.set_result(self._make(kernel, self._helping))
        except BaseException as error:  # passed to whoever waits for it
            future.set_exception(error)

    def _make(self, kernel: Kernel, group: Group) -> Artifact:
        toolchain = self._toolchains(kernel.language)
        return make(kernel, toolchain, self.task.target, self._cache, self._engine.limits, group)

    def _settle(self, quiet: Callable[[], AbstractContextManager[None]] | None) -> None:
        """Determine the peak. It is measured unless an earlier run stored it; kernels measured before that are judged
        by it when they race."""
        with self._settling:
            if not self._settled:
                self._peak = self._measured_peak(again=False, quiet=quiet)
                if self._bandwidth is None and self._peak is not None:
                    task, tools = self.task, self._engine.toolchains
                    self._bandwidth = bandwidth(task.operator, task.target, cache=self._cache, toolchains=tools)
                self._settled = True

    def _measured_peak(self, **how: Any) -> float | None:
        task, tools = self.task, self._engine.toolchains
        return peak_gflops(task.operator, task.target, cache=self._cache, toolchains=tools, **how)

    @contextmanager
    def _quiet_device(self) -> Iterator[None]:
        with self._device, self._pool.quiet(), self._suspended():
            yield

    def _least_again(self) -> float | None:
        again = self._measured_peak(again=True)
        if self._peak is None or (
            again is not None and again > self._peak
        ):  # if the cache cannot be written, the better value would be lost
            self._peak = again
        return least_seconds(self.task, self._peak)

    def _on_built(self, trial_id: int, kernel: Kernel, future: Future[Artifact]) -> None:
        built = None
        try:
            built = trial_id, kernel, future.result()
        except BuildError as error:
            self._ended.put(Outcome(trial_id, None, Measurement(error.verdict, error.detail)))
        except CancelledError:
            pass
        except Exception as error:  # an internal error must reach the tuner, not vanish in a pool thread
            self._ended.put(error)
        ready, begin = self._gate.built(trial_id, built)
        for item in ready:
            self._built.put(item)
        for one in begin:
            with suppress(RuntimeError) if self._closing else nullcontext():  # the pool may be closed already
                self._begin(*one)

    def _measure_all(self) -> None:
        while (item := self._built.get()) is not None and not self._closing:
            if not self._dropped:
                self._measuring = True
                try:
                    outcome: Outcome | Exception = self._outcome(*item)
                except Exception as error:  # passed to the tuner, which then stops
                    outcome = error
                if not self._closing:
                    self._ended.put(outcome)
                self._measuring = False
            for early in self._gate.ended(item[0]):
                self._built.put(early)

    def _outcome(self, trial_id: int, kernel: Kernel, artifact: Artifact) -> Outcome:
        if self._look is not None and not self._look(trial_id, artifact):
            return Outcome(trial_id, artifact, NOT_WORTH_IT)
        # Nothing is built while the first trial is measured, so that its reference is undisturbed too.
        alone = nullcontext() if self._measured.is_set() else self._suspended()
        with self._device, alone:
            started = time.monotonic()
            measured = self._runner.measure(kernel, artifact, beat=self._beat)
            outcome = Outcome(trial_id, artifact, measured, time.monotonic() - started)
        self._measured.set()
        return outcome
