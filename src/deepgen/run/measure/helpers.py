"""deepgen's own code on a device: the harness, the references, and the kernel that results are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from deepgen.operators import Operator, is_built_in
from deepgen.run.measure import harness
from deepgen.run.measure.base import REFERENCE, Helper, Task
from deepgen.toolchains import Cache, build_once, default_cache_folder
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, LaunchPlan, completed

_NUMBERS, _OPERATIONS = 1 << 20, 1 << 26


def helpers_for(task: Task) -> dict[str, Kernel]:
    """Our own code that runs beside kernels on the target, built like kernels."""
    target, operator = task.target, task.operator
    if not target.computes:
        return {}
    judge = operator.judge_kernel(target)
    beside = {} if judge is None else {"judge": judge}
    if target.runner != "gpu":
        return {"harness": harness.source(), **(references(task) if target.runner == "cpu" else {}), **beside}
    from deepgen.run.measure.gpu_device import source

    return {"harness": source(target.languages[0]), **references(task), **beside}


def references(task: Task) -> dict[str, Kernel]:
    """The kernels that compute the operator's answers, one for all shapes that share it, if numpy takes long.

    For a user's operator, inputs and answers are passed as arrays.
    """
    kernels: dict[str, Kernel] = {}
    for operator in task.shapes:
        if is_built_in(operator) and _takes_long(operator):
            kernel = operator.reference_kernel(task.target.languages[0])
            if kernel is not None and kernel.name not in kernels:
                # A launch plan depends on the shape, so the worker makes it. Here it only names the entries to build.
                steps = tuple(replace(step, args=(), grid=(1, 1, 1)) for step in kernel.plan.steps)
                kernels[kernel.name] = replace(kernel, plan=LaunchPlan(steps))
    return {f"{REFERENCE}{place or ''}": kernel for place, kernel in enumerate(kernels.values())}


def _takes_long(operator: Operator) -> bool:
    """Whether numpy takes longer than a compiler, roughly."""
    numbers = sum(prod(tensor.shape) for tensor in operator.tensors())
    return numbers >= _NUMBERS or operator.flops() >= _OPERATIONS


def build_helpers(task: Task, build: Callable[[Kernel], Artifact], needed: Sequence[str] = ()) -> dict[str, Helper]:
    """Build our own code as far as possible. Without the harness, a CPU's worker streams through memory and reports
    less about crashes; without the reference, the host computes it."""
    built = {}
    for name, kernel in helpers_for(task).items():
        try:
            artifact = build(kernel)
            built[name] = Helper(completed(kernel, artifact.plan), Path(artifact.binary))
        except DeepgenError:
            if name in needed:
                raise
    return built


def built_here(task: Task, cache: Cache | Path | None, toolchains: Mapping[str, str] | None) -> dict[str, Helper]:
    try:
        # The caller's cache if there is one: it may already have reported that its folder cannot be written.
        used = cache if isinstance(cache, Cache) else Cache(cache or default_cache_folder())
    except DeepgenError:
        return {}
    return build_helpers(task, lambda kernel: build_once(kernel, task.target, paths=toolchains, cache=used))
