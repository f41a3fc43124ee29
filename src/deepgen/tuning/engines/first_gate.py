"""Scheduling of the device, and priority for the first trial.

The first trial of a study has priority: few builds run beside its own, and it gets the device first. The others
continue however it ends.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Submitted = TypeVar("Submitted")
Built = TypeVar("Built")


class FairLock:
    """Whoever asks first has it first. A plain lock goes back to the thread that has just released it: the search,
    which asks again at once, kept baselines from the device for seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()  # whoever has it, then those who asked, in order

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
    """Says whose build may begin and what the device may have; safe from any thread. Nothing that it holds back is
    lost: each call gives what may continue by it, and the caller passes that on without holding a lock."""

    def __init__(self, jobs: int) -> None:
        # Half of the cores may only be threads of the others, and this process and its worker start meanwhile.
        self._most_beside = (jobs - 2) // 2
        self._lock = threading.Lock()
        self._leading: int | None = None  # the trial that the device waits for
        self._building = False  # whether its build has not ended
        self._beside = 0  # other builds that were begun since it was submitted
        self._behind: list[Submitted] = []  # whose builds wait for its build
        self._early: list[Built] = []  # built, and waiting for the device until it was measured
        self._closed = False

    def submit(self, trial_id: int, submitted: Submitted, *, first: bool = False) -> list[Submitted]:
        """Those whose builds may begin: this one or none."""
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
        """A build has ended, without a result where it failed or was given up. What the device may have now, and those
        whose builds may begin."""
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
        """The device is done with a trial, in whatever way. What it may have now."""
        with self._lock:
            return self._opened() if trial_id == self._leading and not self._closed else []

    def close(self) -> None:
        """Nothing begins any more."""
        with self._lock:
            self._closed = True

    def _opened(self) -> list[Built]:
        self._leading, early, self._early = None, self._early, []
        return early
