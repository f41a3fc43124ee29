"""Measuring kernels so that the numbers can be believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deepgen.measure.base import Contender, Policy, Runner, Task
from deepgen.operators import Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput


def open_runner(
    task: Task,
    *,
    cache: Path | None = None,
    toolchains: Mapping[str, str] | None = None,
    builds_running: Callable[[], int] = lambda: 0,
    least_seconds: float | None = None,
) -> Runner:
    """The runner for the task's target. `cache`: where built helpers are kept; `builds_running`: builds at work now."""
    if task.target.kind == "sim":
        from deepgen.measure.sim import SimRunner

        return SimRunner(task)
    if task.target.kind == "x86":
        from deepgen.measure.supervisor import Supervisor

        return Supervisor(
            task,
            cache=cache,
            toolchains=toolchains,
            builds_running=builds_running,
            least_seconds=least_seconds,
        )
    raise BadInput(f"kernels for {task.target.name} cannot be measured", allowed="x86 and sim targets")


def peak_gflops(operator: Operator, target: Target, **options: Any) -> float | None:
    """The device's measured peak for this operator's arithmetic."""
    if find_spec("deepgen.measure.peak") is None:
        return None
    peak: float | None = import_module("deepgen.measure.peak").peak_gflops(operator, target, **options)
    return peak


__all__ = ["Contender", "Policy", "Runner", "Task", "open_runner", "peak_gflops"]
