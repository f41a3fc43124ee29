"""Scheduling of the device, with priority for the first trial.

The first trial of a study has priority: only few builds run beside its own, and it gets the device first. The others
continue when it ends, whatever its outcome.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

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
