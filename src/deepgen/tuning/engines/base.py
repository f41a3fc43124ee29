"""The interface of engines, which execute builds and measurements, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from deepgen.run.measure.base import Contender, Task
from deepgen.vocabulary import Artifact, Kernel, Measurement, Verdict

Look = Callable[[int, Artifact], bool]
"""Whether this built trial is worth running. A session asks once a trial, between build and measurement.

It is called in the process that opened the session, from any thread of it.
"""

NOT_WORTH_IT = Measurement(Verdict.NOT_RUN, "its build statistics show that it is clearly slower than the best")
"""The measurement of a trial that was built but is not worth running."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a submitted trial. Without an artifact the build failed, as the measurement describes."""

    trial_id: int
    artifact: Artifact | None
    measurement: Measurement
    seconds: float = 0.0  # duration of the measurement, if known


class Arena(Protocol):
    """Where kernels are verified and compared: all that finals need, in a session or a bundle on another machine."""

    def quiet(self) -> AbstractContextManager[None]:
        """While this context is open, no build runs during a measurement."""
        ...

    def disturbed(self) -> str | None:
        """Other activity on the machine that would disturb a measurement, in words. Sampling it takes a moment."""
        ...

    def build(self, kernel: Kernel) -> Artifact:
        """Build the kernel and wait for it. Raises BuildError."""
        ...

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        """Verify a kernel on other inputs, without timing it; `shape` is an index into the task's shapes."""
        ...

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        """Interleaved samples of all contenders, in the given order; kernels that are not built yet are built first.

        If the task has several timed shapes, a sample is the geometric mean over them, and the conditions have the
        median of each as `shapes`.
        """
        ...

    def baselines(self) -> list[str]:
        """The baselines that can be compared with this task's kernels."""
        ...

    def peak(self, *, again: bool = False) -> float | None:
        """The device's peak for this operator's arithmetic, in GFLOP/s; `again` repeats the measurement, if it is
        measured.

        The larger value counts: disturbances can only make the peak look lower.
        """
        ...


class Session(Arena, Protocol):
    """An open session of an engine for one task."""

    until: float  # end of the run's budget, as `time.monotonic` time: near it, long steps are not repeated

    @property
    def slots(self) -> int:
        """The useful number of trials in flight."""
        ...

    @property
    def builds_running(self) -> int: ...

    @property
    def measuring(self) -> bool:
        """Whether a trial is on the device, so that finals would have to wait."""
        ...

    def bandwidth(self) -> float | None:
        """The device's memory bandwidth in GB/s, if known."""
        ...

    def rates(self) -> tuple[float | None, float | None]:
        """The peak and bandwidth as far as known, without measuring."""
        ...

    def submit(self, trial_id: int, kernel: Kernel, *, first: bool = False) -> None:
        """Queue this kernel to be built and measured.

        `first`: it has priority over all kernels submitted after it: it gets the device first, and their builds do not
        delay it.
        """
        ...

    def results(self, timeout: float) -> list[Outcome]:
        """The trials that ended since the last call; waits up to `timeout` seconds for the first."""
        ...

    def load(self, baselines: Sequence[str], seconds: float) -> None:
        """Start loading these baselines, within that many seconds, if they can be loaded while trials run."""
        ...

    def loaded(self, seconds: float) -> list[str] | None:
        """The baselines loaded within that many seconds. If there are any, the others are abandoned, so that they cause
        no disturbance; if there are none, loading continues. None if nothing is loaded ahead.
        """
        ...

    def drop(self) -> bool:
        """Cancel submitted trials that have not begun. Returns False if they cannot be, so that they run to the end."""
        ...

    def beat(self, seconds: float) -> None:
        """Set the best time so far: clearly slower kernels need not be timed to the end."""
        ...

    def reference_seconds(self) -> tuple[float, bool]:
        """Seconds that a user's reference took for the first inputs, or has taken so far; and whether it has ended."""
        ...

    def close(self) -> None:
        """Stop everything that was started. Unfinished trials are not reported."""
        ...

    def __enter__(self) -> Session: ...

    def __exit__(self, *exc: object) -> None: ...


class Engine(Protocol):
    """Builds and measures kernels."""

    def open(self, task: Task, look: Look | None = None) -> Session:
        """Start a session for this task. A trial that `look` rejects ends as NOT_WORTH_IT, with its artifact.

        `look` is not asked about builds for finals (`build`, `verify`, `compare`).
        """
        ...
