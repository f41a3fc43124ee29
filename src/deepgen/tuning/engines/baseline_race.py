"""The worker for races against baselines, which are loaded into it while the search is running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

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
        self._supervisor = Supervisor(self._task, **vars(self._options))
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
