"""Measuring kernels, with results that can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deepgen.operators import Operator
from deepgen.run.measure.base import Contender, Helper, Policy, Runner, Task, arithmetic
from deepgen.targets import Target, device_for

if TYPE_CHECKING:
    from deepgen.toolchains import Cache

# The rest is imported where it is used: the worker, which is started often, comes through here too.


def open_runner(
    task: Task,
    *,
    cache: Cache | Path | None = None,
    toolchains: Mapping[str, str] | None = None,
    builds_running: Callable[[], int] = lambda: 0,
    least_seconds: float | None = None,
    least_again: Callable[[], float | None] | None = None,
    helpers: Mapping[str, Helper] | None = None,
    arrays: Path | None = None,
) -> Runner:
    """The runner for the task's target. `cache`: where built helpers are kept, a folder or the caller's own;
    `builds_running`: builds at work now;
    `least_seconds`: what one run takes at the machine's peak, and `least_again` the same with the peak measured again;
    `helpers`: the built helpers themselves, where they came from elsewhere;
    `arrays`: the folder with inputs and answers of an operator whose code is elsewhere.
    """
    if task.target.runner == "sim":
        from deepgen.run.measure.sim import SimRunner

        return _whole(SimRunner(task), task, toolchains)
    if task.target.runner == "vta":
        from deepgen_vta.runner import VtaRunner

        return _whole(VtaRunner(task), task, toolchains)
    if task.target.runner == "riscv":
        from deepgen.run.riscv.runner import RiscvRunner

        return _whole(RiscvRunner(task, cache=cache, toolchains=toolchains, arrays=arrays), task, toolchains)
    from deepgen.run.measure.supervisor import Supervisor

    device_for(task.target)  # raises where there is none
    runner = Supervisor(
        task,
        cache=cache,
        toolchains=toolchains,
        builds_running=builds_running,
        least_seconds=least_seconds,
        least_again=least_again,
        helpers=helpers,
        arrays=arrays,
    )
    return _whole(runner, task, toolchains)


def _whole(runner: Runner, task: Task, toolchains: Mapping[str, str] | None) -> Runner:
    """The runner over all timed shapes, and with counters where the task asks for some."""
    from deepgen.run.counters.counting import Counting
    from deepgen.run.measure.shapes import OverShapes

    if task.also:
        runner = OverShapes(runner, len(task.timed))
    return Counting(runner, task, toolchains) if task.counters else runner


def peak_gflops(
    operator: Operator,
    target: Target,
    *,
    again: bool = False,
    cache: Cache | None = None,
    toolchains: Mapping[str, str] | None = None,
) -> float | None:
    """The device's peak for this operator's arithmetic, measured once or `again`; None where it is not known how."""
    if target.runner != "cpu":
        return target.peak(arithmetic(operator))  # the datasheet's
    from deepgen.run.measure.peak import peak_gflops as measured

    return measured(operator, target, again=again, cache=cache, toolchains=toolchains)


def bandwidth(
    operator: Operator, target: Target, *, cache: Cache | None = None, toolchains: Mapping[str, str] | None = None
) -> float | None:
    """GB/s of the device's memory, measured together with its peak; None where it is not known how."""
    from deepgen.run.measure.peak import bandwidth as measured

    return measured(operator, target, cache=cache, toolchains=toolchains)


__all__ = ["Contender", "Policy", "Runner", "Task", "bandwidth", "open_runner", "peak_gflops"]
