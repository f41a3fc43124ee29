"""Measuring kernels, with results that can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from deepgen.vocabulary.lazy import lazy
from deepgen.vocabulary.registry import Registry

if TYPE_CHECKING:
    from deepgen.operators import Operator
    from deepgen.run.measure.base import Apart, Contender, Helpers, Least, Policy, Runner, RunnerOptions, Task
    from deepgen.targets import Target
    from deepgen.toolchains import Cache

# All is imported where it is used: a worker, and what starts one before anything else, come through here too.
__getattr__, __dir__ = lazy(__name__, {"deepgen.run.measure.base": "Contender Policy Runner RunnerOptions Task"})


def open_runner(
    task: Task,
    *,
    cache: Cache | Path | None = None,
    toolchains: Mapping[str, str] | None = None,
    builds_running: Callable[[], int] = lambda: 0,
    least_seconds: Least = None,
    least_again: Callable[[], float | None] | None = None,
    helpers: Helpers | None = None,
    arrays: Path | None = None,
    ahead: bool = False,
    spare: Callable[[], float] = lambda: inf,
    apart: Apart = lambda: None,
) -> Runner:
    """The runner for the task's target; RunnerOptions says what the options mean."""
    from deepgen.run.measure.base import RunnerOptions

    passed = cache, toolchains, builds_running, least_seconds, least_again, helpers, arrays, ahead, spare, apart
    options = RunnerOptions(*passed)
    return whole(RUNNERS.get(task.target.runner)(task, options), task, toolchains)


def on_device(task: Task, options: RunnerOptions) -> Runner:
    """On a device of this machine, in worker processes."""
    from deepgen.run.measure.supervisor import Supervisor
    from deepgen.targets import device_for

    device_for(task.target)  # raises where there is none
    return Supervisor(task, **vars(options))


def on_riscv(task: Task, options: RunnerOptions) -> Runner:
    from deepgen.run.riscv.runner import RiscvRunner

    return RiscvRunner(task, cache=options.cache, toolchains=options.toolchains, arrays=options.arrays)


def simulated(task: Task, options: RunnerOptions) -> Runner:
    from deepgen.run.measure.sim import SimRunner

    return SimRunner(task)


# By the `runner` of a target.
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
    """The runner over all timed shapes, and with counters where the task asks for some."""
    from deepgen.run.measure.wrappers import Counting, OverShapes

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
    """The device's peak for this operator's arithmetic, measured once or `again`; None where it is not passed how.

    `quiet` is held while it is measured; None: not now, and one that is not kept raises NotMeasured.
    """
    if target.runner != "cpu":
        from deepgen.run.measure.base import arithmetic

        return target.peak(arithmetic(operator))  # the datasheet's
    from deepgen.run.measure.peak import peak_gflops as measured

    return measured(operator, target, again=again, cache=cache, toolchains=toolchains, quiet=quiet)


def bandwidth(
    operator: Operator, target: Target, *, cache: Cache | None = None, toolchains: Mapping[str, str] | None = None
) -> float | None:
    """GB/s of the device's memory, measured together with its peak; None where it is not passed how."""
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
