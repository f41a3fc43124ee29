"""The interface of engines: execute builds and measurements, wherever they run."""

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
    """The outcome of a submitted trial. Without an artifact the build failed, and the measurement says how."""

    trial_id: int
    artifact: Artifact | None
    measurement: Measurement
    seconds: float = 0.0  # that the measurement took, where known


class Arena(Protocol):
    """Where kernels are verified and compared: all that finals need, in a session or in a bundle on another machine."""

    def quiet(self) -> AbstractContextManager[None]:
        """Inside this context, no build runs during a measurement."""
        ...

    def disturbed(self) -> str | None:
        """Other activity on the machine that would disturb a measurement, in words. Sampling it takes a moment."""
        ...

    def build(self, kernel: Kernel) -> Artifact:
        """Build now and wait. Raises BuildError."""
        ...

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        """Only the verdict, on other inputs; `shape` is an index into the task's shapes."""
        ...

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        """Interleaved samples of all contenders, in the order given; kernels that are not built yet are built first.

        Where the task has several timed shapes, a sample is the geometric mean over them, and the conditions have the
        median of each as `shapes`.
        """
        ...

    def baselines(self) -> list[str]:
        """The baselines that can be compared with this task's kernels."""
        ...

    def peak(self, *, again: bool = False) -> float | None:
        """The device's peak for this operator's arithmetic, in GFLOP/s; `again`: measured again where it is measured.

        The larger counts: whatever disturbs a machine only makes its peak look lower.
        """
        ...


class Session(Arena, Protocol):
    """An engine at work on one task."""

    until: float  # when a run's budget ends, on the clock of `time.monotonic`: near it nothing long is done twice

    @property
    def slots(self) -> int:
        """How many trials can usefully be in flight at once."""
        ...

    @property
    def builds_running(self) -> int: ...

    @property
    def measuring(self) -> bool:
        """Whether a trial occupies the device, so that finals would have to wait."""
        ...

    def bandwidth(self) -> float | None:
        """The device's memory bandwidth in GB/s, if known."""
        ...

    def rates(self) -> tuple[float | None, float | None]:
        """What is known of peak and bandwidth, without measuring anything."""
        ...

    def submit(self, trial_id: int, kernel: Kernel, *, first: bool = False) -> None:
        """Queue this kernel to be built and measured.

        `first`: before all that are submitted after it. It gets the device first, and their builds do not delay it.
        """
        ...

    def results(self, timeout: float) -> list[Outcome]:
        """What has ended since the last call; waits up to `timeout` seconds for the first."""
        ...

    def load(self, baselines: Sequence[str], seconds: float) -> None:
        """Start loading these baselines, within that many seconds, if that is possible while trials run."""
        ...

    def loaded(self, seconds: float) -> list[str] | None:
        """The baselines loaded within that many seconds. If there are some, the others are abandoned, so that they
        disturb nothing; if there are none, loading continues. None if nothing is loaded ahead.
        """
        ...

    def drop(self) -> bool:
        """Cancel submitted trials that have not begun; False if that is not possible and they will run to their end."""
        ...

    def beat(self, seconds: float) -> None:
        """The best time so far: clearly slower kernels need not be timed to the end."""
        ...

    def reference_seconds(self) -> tuple[float, bool]:
        """How long a user's reference took for the first inputs, or has taken so far; whether it has ended."""
        ...

    def close(self) -> None:
        """Stop everything that was started. Trials that have not ended are not reported."""
        ...

    def __enter__(self) -> Session: ...

    def __exit__(self, *exc: object) -> None: ...


class Engine(Protocol):
    """A place where kernels are built and measured."""

    def open(self, task: Task, look: Look | None = None) -> Session:
        """Start a session for this task. A trial that `look` rejects ends as NOT_WORTH_IT, with its artifact.

        `look` is not asked about builds for finals (`build`, `verify`, `compare`).
        """
        ...
