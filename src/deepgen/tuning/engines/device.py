"""Sharing the device: the first trial has priority, and baselines are loaded and raced in a worker of their own.

Until a study's first trial ends, whatever its outcome, few builds run beside its own, and it gets the device first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from deepgen.run.measure import whole
from deepgen.run.measure.base import Contender, RunnerOptions, Task
from deepgen.run.measure.limits import START_SECONDS
from deepgen.run.measure.supervisor import Supervisor
from deepgen.run.measure.worker_slot import DeviceSetAside
from deepgen.vocabulary import DeepgenError, Measurement, Verdict


class BaselineRace:
    """A second worker that loads baselines: a framework takes seconds to import, and may crash or hang."""

    def __init__(self, task: Task, options: RunnerOptions, alone: Callable[[], AbstractContextManager[object]]) -> None:
        """`alone`: a context to hold while using the device, which others use too."""
        self._task, self._options, self._alone = task, options, alone
        self._open()
        self._lost: dict[str, Measurement] = {}  # baselines that could not be loaded
        self._names: list[str] = []
        self._ended: list[str] = []  # those that were loaded or failed to load
        self._at: str | None = None  # the one being loaded
        self._begin = threading.Event()
        self._thread: threading.Thread | None = None
        self._until = time.monotonic()
        self._stopped = False

    def load(self, names: Sequence[str], seconds: float, begin: threading.Event, at_once: bool) -> None:
        """Load them in the background, within that many seconds. The device is used once `begin` is set; importing
        begins immediately with `at_once`, else then too."""
        self._names, self._begin = list(names), begin
        self._until = time.monotonic() + min(seconds, START_SECONDS)
        self._thread = threading.Thread(target=self._load, args=(at_once,), name="deepgen-baselines", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until they are loaded or time is up; one that is still being loaded then does not race."""
        self._begin.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        started = time.monotonic()
        thread.join(max(0.0, self._until - started))
        if not thread.is_alive():
            return
        self._stopped = True
        self._supervisor.close()
        thread.join()
        self._open()
        if self._at is not None:
            self._lost[self._at] = Measurement(Verdict.TIMED_OUT, "it took too long to load")

    def loaded(self, seconds: float) -> list[str]:
        """Those that were loaded or failed to load within that many seconds."""
        self._begin.set()
        if self._thread is not None:
            self._thread.join(seconds)
        return [*self._ended]

    @property
    def loading(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        """Compare like a runner. The caller must hold the device."""
        racing = [one for one in contenders if one.name not in self._lost]
        results = iter(self._runner.compare(racing, rounds, seed) if racing else ())
        return [self._lost[one.name] if one.name in self._lost else next(results) for one in contenders]

    def suspended(self) -> AbstractContextManager[None]:
        """Suspends loading while a kernel is timed on the same cores."""
        return self._supervisor.suspended() if self.loading else nullcontext()

    def close(self) -> None:
        self._stopped = True
        self._begin.set()
        self._supervisor.close()

    def _open(self) -> None:
        self._supervisor = Supervisor(self._task, self._options)
        self._runner = whole(self._supervisor, self._task, self._options.toolchains)

    def _when_begun(self) -> AbstractContextManager[object]:
        self._begin.wait()
        return self._alone()

    def _load(self, at_once: bool) -> None:
        if not at_once:
            self._begin.wait()
        for name in self._names:
            self._at = name
            try:
                loaded = self._supervisor.load(name, self._when_begun)
            except DeviceSetAside as error:  # after too many crashes, each caused by a baseline
                self._lost[name] = Measurement(Verdict.CRASHED, str(error))
            except DeepgenError:  # not a baseline's fault: the race will report it if it persists
                if self._stopped:
                    return
            else:
                if not loaded.ok:
                    self._lost[name] = loaded
            self._ended.append(name)
        self._at = None


Submitted = TypeVar("Submitted")
Built = TypeVar("Built")


class FairLock:
    """A lock that is granted in the order of requests. With a plain lock the thread that has just released it often
    gets it again: the search then kept baselines from the device for seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()  # the holder, then the waiting threads in order

    def __enter__(self) -> None:
        own = threading.Lock()
        with self._lock:
            if self._waiting:
                own.acquire()
            self._waiting.append(own)
        own.acquire()

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._waiting.popleft()
            if self._waiting:
                self._waiting[0].release()


class FirstGate(Generic[Submitted, Built]):
    """Decides which builds may begin and which built trials may use the device; thread-safe. Nothing is lost: each call
    returns what may proceed, and the caller passes it on without holding a lock."""

    def __init__(self, jobs: int) -> None:
        # Half of the cores may be hyperthreads, and this process and its worker are starting too.
        self._most_beside = (jobs - 2) // 2
        self._lock = threading.Lock()
        self._leading: int | None = None  # the trial that gets the device first
        self._building = False  # whether its build is still running
        self._beside = 0  # other builds started since it was submitted
        self._behind: list[Submitted] = []  # waiting for its build to end
        self._early: list[Built] = []  # built, and waiting until it was measured
        self._closed = False

    def submit(self, trial_id: int, submitted: Submitted, *, first: bool = False) -> list[Submitted]:
        """The builds that may begin: this one or none."""
        with self._lock:
            if self._closed:
                return []
            if first:
                self._leading, self._building, self._beside = trial_id, True, 0
            elif self._building and self._beside >= self._most_beside:
                self._behind.append(submitted)
                return []
            else:
                self._beside += 1
            return [submitted]

    def built(self, trial_id: int, built: Built | None) -> tuple[list[Built], list[Submitted]]:
        """Call when a build has ended; `built` is None if it failed or was abandoned. Returns the trials that may use
        the device now, and the builds that may begin."""
        with self._lock:
            if self._closed:
                return [], []
            if self._leading not in (None, trial_id):
                self._early += [] if built is None else [built]
                return [], []
            ready = [] if built is None else [built]
            if trial_id != self._leading:
                return ready, []
            self._building, behind, self._behind = False, self._behind, []
            return (ready if built is not None else self._opened()), behind

    def ended(self, trial_id: int) -> list[Built]:
        """Call when the device is done with a trial, whatever the outcome. Returns the trials that may use it now."""
        with self._lock:
            return self._opened() if trial_id == self._leading and not self._closed else []

    def close(self) -> None:
        """Let nothing begin from now on."""
        with self._lock:
            self._closed = True

    def _opened(self) -> list[Built]:
        self._leading, early, self._early = None, self._early, []
        return early
