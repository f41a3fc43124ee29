"""The worker of a supervisor: started on demand or ahead of time, and replaced when worn out or lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from deepgen.run.measure import limits
from deepgen.run.measure.base import Task
from deepgen.run.measure.process import Lost, WorkerProcess
from deepgen.targets import host
from deepgen.vocabulary import DeepgenError

RECYCLE_KERNELS = 1000  # loaded libraries are never unloaded, so a fresh worker takes over from time to time
RECYCLE_BYTES = 1 << 30  # leaked by kernels
RECYCLE_THREADS = 128


class DeviceSetAside(DeepgenError):
    """The device can no longer be trusted."""


class WorkerSlot:
    """One worker at a time; callers hold `using` while talking to it. `close` may come from another thread."""

    def __init__(self, task: Task, opening: Callable[[], Mapping[str, Any]]) -> None:
        """`opening` returns the message that opens a worker, which may take long to prepare."""
        self.task = task
        self.using = threading.Lock()
        self.starts = 0  # workers started so far
        self.cpu = 0.0  # CPU seconds of the current worker at its last reply
        self.closed = False
        self._opening = opening
        self._worker: WorkerProcess | None = None
        self._kernels = 0  # kernels that the current worker has loaded
        self._resident = 0  # memory of a fresh worker in bytes

    @property
    def pid(self) -> int | None:
        return self._worker.pid if self._worker is not None else None

    def ready(self) -> WorkerProcess:
        """The worker, which is started if there is none."""
        if self._worker is not None and not self._worker.alive:
            self.drop()
        return self._worker or self._opened()

    def reopen(self) -> None:
        """Give the worker another task, if there is one."""
        if self._worker is None or not self._worker.alive:
            return
        try:
            state = self._worker.ask({"do": "open", **self._opening()}, limits.START_SECONDS)
        except Lost:
            self.drop()
            return
        self._resident, self.cpu = state["resident"], state["cpu"]

    def hear(self, reply: Mapping[str, Any], kernels: int) -> None:
        """Process the state in a worker's reply after it has run this many kernels. A worn-out worker is dropped."""
        self.cpu = reply["cpu"]
        self._kernels += kernels
        if self._spent(reply):
            self.drop()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspends the worker while another process measures on its cores."""
        worker = self._worker
        if worker is None:
            yield
            return
        with worker.suspended():
            yield

    def drop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def end(self) -> None:
        """End the worker while another thread waits for it."""
        if (worker := self._worker) is not None:
            worker.end()

    def _opened(self) -> WorkerProcess:
        target = self.task.target
        for last in (False, False, True):
            if self.closed:
                break
            threads = self.task.policy.threads or host.usable_cores()
            worker = self._worker = WorkerProcess(threads, target.languages[0] if target.runner == "gpu" else None)
            try:
                state = worker.open(self._opening())
            except Lost as lost:
                self.drop()
                if last:
                    what = f"its measuring worker cannot be started: {lost}"
                    raise DeviceSetAside(f"{target.name} is disabled: {what}") from lost
                continue
            except BaseException:
                self.drop()
                raise
            self.starts += 1
            self._kernels = 0
            self._resident, self.cpu = state["resident"], state["cpu"]
            break
        if self.closed:
            raise DeepgenError("the runner is closed")
        return worker

    def _spent(self, reply: Mapping[str, Any]) -> bool:
        """Whether a fresh worker should take over."""
        if self.task.target.runner == "gpu":  # GPU kernels do not affect this process's memory and threads
            return self._kernels >= RECYCLE_KERNELS
        return (
            self._kernels >= RECYCLE_KERNELS
            or reply["resident"] - self._resident > RECYCLE_BYTES + limits.bench_bytes(self.task)
            or reply["threads"] > RECYCLE_THREADS
            or reply["stray"]
        )
