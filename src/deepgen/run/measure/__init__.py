"""Measuring kernels, with results that can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from deepgen.vocabulary.registry import Registry, lazy

if TYPE_CHECKING:
    from deepgen.operators import Operator
    from deepgen.run.measure.base import Contender, Policy, Runner, RunnerOptions, Task
    from deepgen.targets import Target
    from deepgen.toolchains import Cache

# Imported where used, because workers, and what starts them before anything else, import this package too.
__getattr__, __dir__ = lazy(__name__, {"deepgen.run.measure.base": "Contender Policy Runner RunnerOptions Task"})


def open_runner(task: Task, options: RunnerOptions | None = None) -> Runner:
    """The runner for the task's target."""
    from deepgen.run.measure.base import RunnerOptions

    options = options or RunnerOptions()
    return whole(RUNNERS.get(task.target.runner)(task, options), task, options.toolchains)


def on_device(task: Task, options: RunnerOptions) -> Runner:
    """A runner for a device of this machine, with worker processes."""
    from deepgen.run.measure.supervisor import Supervisor
    from deepgen.targets import device_for

    device_for(task.target)  # raises if there is none
    return Supervisor(task, options)


def on_riscv(task: Task, options: RunnerOptions) -> Runner:
    from deepgen.run.riscv.runner import RiscvRunner

    return RiscvRunner(task, cache=options.cache, toolchains=options.toolchains, arrays=options.arrays)


def simulated(task: Task, options: RunnerOptions) -> Runner:
    from deepgen.run.measure.sim import SimRunner

    return SimRunner(task)


# By the targets' `runner`.
RUNNERS: Registry[Callable[[Task, RunnerOptions], Runner]] = Registry(
    "deepgen.runners",
    "runner",
    {
        "cpu": "deepgen.run.measure:on_device",
        "gpu": "deepgen.run.measure:on_device",
        "riscv": "deepgen.run.measure:on_riscv",
        "sim": "deepgen.run.measure:simulated",
    },
)


def whole(runner: Runner, task: Task, toolchains: Mapping[str, str] | None) -> Runner:
    """The runner, extended to all timed shapes, and with counters if the task requests some."""
    from deepgen.run.measure.runners import Counting, OverShapes

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
    quiet: Callable[[], AbstractContextManager[object]] | None = nullcontext,
) -> float | None:
    """The device's peak for this operator's arithmetic, measured once or `again`; None if it cannot be determined.

    `quiet` is held while measuring; with None, a peak that is not cached raises NotMeasured.
    """
    if target.runner != "cpu":
        from deepgen.run.measure.base import arithmetic

        return target.peak(arithmetic(operator))  # from the datasheet
    from deepgen.run.measure.peak import peak_gflops as measured

    return measured(operator, target, again=again, cache=cache, toolchains=toolchains, quiet=quiet)


def bandwidth(
    operator: Operator, target: Target, *, cache: Cache | None = None, toolchains: Mapping[str, str] | None = None
) -> float | None:
    """The device's memory bandwidth in GB/s, measured together with its peak; None if it cannot be determined."""
    from deepgen.run.measure.peak import bandwidth as measured

    return measured(operator, target, cache=cache, toolchains=toolchains)


__all__ = [
    "RUNNERS",
    "Contender",
    "Policy",
    "Runner",
    "RunnerOptions",
    "Task",
    "bandwidth",
    "open_runner",
    "peak_gflops",
]
