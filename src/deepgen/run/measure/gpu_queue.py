"""The state in which a GPU is when the timing of a run begins, for kernels and baselines alike.

- Caches are cold and clean: a buffer larger than the last-level cache was read. Filling it instead would leave lines
  that are written back while the run is timed, which costs a short run up to 20%.
- The queue is full: all of a run is enqueued while the device is still held up by a kernel of ours, so the device never
  waits for the host, and what a launch sends along, such as large arguments, has arrived. This is what a run finds in a
  CUDA graph or behind other work. The start event tells whether the host was quick enough: if the device has come to
  it before the last launch was enqueued, the device is held up for longer and the sample taken again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from deepgen.run.measure.gpu_buffers import DeviceBuffer
from deepgen.run.measure.gpu_checks import Checks
from deepgen.targets.gpu_driver import Driver

SHORTEST, LONGEST = 1 << 15, 1 << 24  # cycles that the device is held up for: about 20 us, about 10 ms
LONGER = 4  # times, where the host was too slow
_LEAST_BALLAST = 256 << 20


@dataclass(frozen=True)
class Sample:
    """One timed run."""

    seconds: float
    full: bool  # whether all of it was enqueued before the device came to it


class Queue:
    """A device's default stream, its last-level cache, and the clock."""

    def __init__(self, driver: Driver, checks: Checks, l2_bytes: int) -> None:
        self._driver = driver
        self._ballast = DeviceBuffer(driver, "ballast", max(_LEAST_BALLAST, 4 * l2_bytes))
        driver.fill(self._ballast.start, 0, self._ballast.bytes)
        self._read = checks.read(self._ballast)
        self._cycles = ctypes.c_uint64(SHORTEST)
        self._hold = checks.hold(self._cycles)
        self._start, self._end = driver.event(), driver.event()

    def flush(self) -> None:
        """Push everything out of the last-level cache, and what must be written back to memory."""
        self._read.fire()

    def timed(self, run: Callable[[], None], cycles: int) -> Sample:
        """One run, enqueued while the device is held up for so many cycles."""
        driver = self._driver
        self._cycles.value = cycles
        self._hold.fire()
        driver.record(self._start)
        run()
        driver.record(self._end)
        full = not driver.happened(self._start)
        driver.synchronize()
        return Sample(driver.elapsed(self._start, self._end), full)

    def close(self) -> None:
        self._ballast.close()
