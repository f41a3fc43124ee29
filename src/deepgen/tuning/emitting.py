"""Emits kernels for proposed configs and submits them to an engine; slow emission runs in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from deepgen.tuning.engines import Session
from deepgen.tuning.study.rows import Proposal
from deepgen.vocabulary import Kernel

_LONG = 0.004  # emission time in seconds that the tuner should not wait for


class Emitter:
    """Emits one kernel at a time, as generators are not thread-safe, and submits them in the tuner's own thread."""

    def __init__(self, emit: Callable[[Mapping[str, Any]], Kernel], first: int | None) -> None:
        self._emit, self._first = emit, first
        self._lock = Lock()
        self._seconds = 0.0  # duration of the last emission
        self._wanted: SimpleQueue[Proposal | None] = SimpleQueue()
        self._emitted: SimpleQueue[tuple[Proposal, Kernel | BaseException]] = SimpleQueue()
        self._thread: Thread | None = None
        self._submitted: dict[int, Kernel] = {}
        self.waiting = 0  # proposals without a kernel yet

    def kernel(self, config: Mapping[str, Any]) -> Kernel:
        """Emit the kernel of a config now."""
        with self._lock:
            started = time.perf_counter()
            kernel = self._emit(config)
            self._seconds = time.perf_counter() - started
        return kernel

    def submit(self, session: Session, proposal: Proposal) -> None:
        """Submit a proposal now, or in a later `pump`. The config that the search begins with never waits."""
        if proposal.rank == self._first or (self._seconds < _LONG and not self.waiting):
            self._send(session, proposal, self.kernel(proposal.config))
            return
        if self._thread is None:
            self._thread = Thread(target=self._emit_all, name="deepgen-emit", daemon=True)
            self._thread.start()
        self.waiting += 1
        self._wanted.put(proposal)

    def pump(self, session: Session) -> None:
        """Submit the kernels emitted so far. Raises an error from emitting."""
        try:
            while self.waiting:
                proposal, kernel = self._emitted.get_nowait()
                self.waiting -= 1
                if isinstance(kernel, BaseException):
                    raise kernel
                self._send(session, proposal, kernel)
        except Empty:
            return

    def taken(self, trial_id: int) -> Kernel:
        """The kernel of a trial that has ended."""
        return self._submitted.pop(trial_id)

    def close(self) -> None:
        """Emit no more kernels, except one that was begun."""
        while True:
            try:
                self._wanted.get_nowait()
            except Empty:
                break
        self._wanted.put(None)

    def _send(self, session: Session, proposal: Proposal, kernel: Kernel) -> None:
        self._submitted[proposal.id] = kernel
        if proposal.rank == self._first:
            session.submit(proposal.id, kernel, first=True)
        else:
            session.submit(proposal.id, kernel)

    def _emit_all(self) -> None:
        while (proposal := self._wanted.get()) is not None:
            try:
                self._emitted.put((proposal, self.kernel(proposal.config)))
            except BaseException as error:  # passed to the tuner
                self._emitted.put((proposal, error))
