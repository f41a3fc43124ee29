"""How long each stage may take and how much memory a kernel may ask for, scaled with the operator."""

from __future__ import annotations

from math import prod

import numpy as np

from deepgen.operators import Operator
from deepgen.run.measure.base import Task

# Slower than this no kernel is worth waiting for: about what plain scalar code reaches.
_FLOPS_A_SECOND = 1e9
_BYTES_A_SECOND = 1e8
_GPU = 100.0  # times that, on a GPU
_REFERENCE_FLOPS_A_SECOND = 1e8  # integers have no BLAS
LOAD_SECONDS = 20.0
PROFILED_SECONDS = 300.0  # a profiler may repeat a run once for each group of counters
START_SECONDS = 120.0  # a first import on a slow disk, or of a large framework


def run_seconds(task: Task, beat: float | None = None) -> float:
    """The longest that one run may take; with a time to beat, a hanging kernel is given up sooner."""
    if task.policy.timeout_seconds is not None:
        return task.policy.timeout_seconds
    operator = task.operator
    scale = _GPU if task.target.runner == "gpu" else 1.0
    limit = 2.0 + (operator.flops() / _FLOPS_A_SECOND + operator.least_bytes() / _BYTES_A_SECOND) / scale
    return limit if beat is None else min(limit, 1.0 + 200.0 * beat)


def own_seconds(task: Task) -> float:
    """The longest that our own work between runs may take: inputs, the reference, comparing."""
    return 60.0 + max(operator.flops() for operator in task.shapes) / _REFERENCE_FLOPS_A_SECOND


def memory_bytes(task: Task, cores: int) -> int:
    """What a kernel may allocate beyond its tensors and workspaces; each thread reserves a stack and an arena.

    Our copies of its results, and in a race of all contenders' results, are part of this.
    """
    tensors = max(sum(t.bytes for t in operator.tensors()) for operator in task.shapes)
    return (1 << 30) + cores * (256 << 20) + 8 * tensors


def device_bytes(operator: Operator) -> int:
    """What measuring takes of a GPU's memory at least: tensors in place, and for each of two sets of inputs a copy of
    them, of the answers and of the reference."""
    total = 0
    for tensor in operator.tensors():
        count = prod(tensor.shape)  # of Python's integers, which do not overflow
        total += 3 * count * tensor.dtype.bytes
        total += 0 if tensor.role == "input" else 2 * 8 * count
    return total


def bench_bytes(task: Task) -> int:
    """What our own arrays of the timed shapes take: tensors in place, two sets of inputs, two of answers."""
    tensors = [t for operator in task.timed for t in operator.tensors()]
    answers = sum(24 * int(np.prod(t.shape)) for t in tensors if t.role != "input")
    return answers + sum(3 * t.bytes for t in tensors)
