"""Time and memory limits, scaled to the operator: how long a stage may take, and the least time a run can take."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators import Operator
from deepgen.operators.compare import scale_format
from deepgen.run.measure.base import Task

if TYPE_CHECKING:
    from deepgen.run.measure.base import Least

# No kernel slower than this is worth waiting for: about the speed of plain scalar code.
_FLOPS_A_SECOND = 1e9
_BYTES_A_SECOND = 1e8
_GPU = 100.0  # times as fast on a GPU
_REFERENCE_FLOPS_A_SECOND = 1e8  # integers have no BLAS
LOAD_SECONDS = 20.0
PROFILED_SECONDS = 300.0  # a profiler may repeat a run for each group of counters
START_SECONDS = 120.0  # a first import from a slow disk, or of a large framework


def run_seconds(task: Task, beat: float | None = None) -> float:
    """The longest time that one run may take; with a time to beat, a hanging kernel is ended sooner."""
    if task.policy.timeout_seconds is not None:
        return task.policy.timeout_seconds
    operator = task.operator
    scale = _GPU if task.target.runner == "gpu" else 1.0
    limit = 2.0 + (operator.flops() / _FLOPS_A_SECOND + operator.least_bytes() / _BYTES_A_SECOND) / scale
    return limit if beat is None else min(limit, 1.0 + 200.0 * beat)


def own_seconds(task: Task) -> float:
    """The longest time for our own work between runs: inputs, the reference, comparing."""
    return 60.0 + max(operator.flops() for operator in task.shapes) / _REFERENCE_FLOPS_A_SECOND


def memory_bytes(task: Task, cores: int) -> int:
    """Memory that a kernel may allocate beyond its tensors and workspaces; each thread reserves a stack and an arena.

    This includes our copies of its results, and in a race of all contenders' results.
    """
    tensors = max(sum(t.bytes for t in operator.tensors()) for operator in task.shapes)
    return (1 << 30) + cores * (256 << 20) + 8 * tensors


def device_bytes(operator: Operator) -> int:
    """The least GPU memory that measuring takes: the tensors, and for each of two input sets a copy of them, of the
    answers and of the reference."""
    total = 0
    for tensor in operator.tensors():
        count = prod(tensor.shape)  # Python integers do not overflow
        total += 3 * count * tensor.dtype.bytes
        each = 8 + (
            0 if tensor.dtype.integer else scale_format(tensor.dtype).bytes
        )  # numbers in f64 or i64, and scales
        total += 0 if tensor.role == "input" else 2 * each * count
    return total


def bench_bytes(task: Task) -> int:
    """The size of our own arrays for the timed shapes: the tensors, the inputs once more, two sets of inputs and two of
    answers."""
    tensors = [t for operator in task.timed for t in operator.tensors()]
    answers = sum(24 * int(np.prod(t.shape)) for t in tensors if t.role != "input")
    return answers + sum((4 if t.role == "input" else 3) * t.bytes for t in tensors)


SHARE = 0.8  # of the time at the machine's peak: a shorter time is rejected
PEAK_HOLDS = 60.0  # seconds between measurements of the peak: they take time, but a calmer phase should be noticed soon


class Floor:
    """The least plausible time: `seconds` is that of the task's first shape at the peak; `again` remeasures it."""

    def __init__(self, task: Task, seconds: Least = None, again: Callable[[], float | None] | None = None) -> None:
        self._task, self._seconds, self._again = task, seconds, again
        self._measured: float | None = None  # when `again` was last called

    def at(self, shape: int) -> float | None:
        seconds = self._seconds() if callable(self._seconds) else self._seconds
        if seconds is None:
            return None
        return seconds * self._task.shapes[shape].flops() / max(1, self._task.operator.flops())

    def above(self, seconds: float, shape: int) -> bool:
        """Whether this time is too short to be possible."""
        least = self.at(shape)
        return least is not None and seconds < SHARE * least

    def renew(self) -> None:
        """Measure the peak again, as it may be too low: other processes may have used most of the machine before."""
        held = self._measured is not None and time.monotonic() - self._measured < PEAK_HOLDS
        if self._again is not None and not held:
            self._seconds = self._again()
            self._measured = time.monotonic()
