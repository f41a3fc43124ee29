"""The least time that a run can take by the machine's peak: a measurement far below it is not believed."""

from __future__ import annotations

import time
from collections.abc import Callable

from deepgen.run.measure.base import Task

SHARE = 0.8  # of the time that the machine's peak allows: below this no measurement is believed
PEAK_HOLDS = 60.0  # seconds: measuring a peak takes some, and a calmer phase of the machine is not missed for long


class Floor:
    """`seconds` is what a run of the task's first shape takes at the peak; `again` measures the peak once more."""

    def __init__(
        self, task: Task, seconds: float | None = None, again: Callable[[], float | None] | None = None
    ) -> None:
        self._task, self._seconds, self._again = task, seconds, again
        self._measured: float | None = None  # when `again` was called last

    def at(self, shape: int) -> float | None:
        if self._seconds is None:
            return None
        return self._seconds * self._task.shapes[shape].flops() / max(1, self._task.operator.flops())

    def above(self, seconds: float, shape: int) -> bool:
        """Whether a run cannot have taken so little time."""
        least = self.at(shape)
        return least is not None and seconds < SHARE * least

    def renew(self) -> None:
        """Perhaps the peak is what is wrong: a neighbour may have had most of the machine when it was measured."""
        held = self._measured is not None and time.monotonic() - self._measured < PEAK_HOLDS
        if self._again is not None and not held:
            self._seconds = self._again()
            self._measured = time.monotonic()
