"""Our own code that runs beside kernels on a device: the harness, the reference, the kernel that judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deepgen.operators import is_built_in
from deepgen.run.measure import harness
from deepgen.run.measure.base import Helper, Task
from deepgen.toolchains import Cache, build_once, default_cache_folder
from deepgen.vocabulary import Artifact, DeepgenError, Kernel, completed


def helpers_for(task: Task) -> dict[str, Kernel]:
    """Our own code that runs beside kernels on the target, to be built like any of them."""
    target, operator = task.target, task.operator
    if not target.computes:
        return {}
    judge = operator.judge_kernel(target)
    beside = {} if judge is None else {"judge": judge}
    if target.runner != "gpu":
        return {"harness": harness.source(), **beside}
    from deepgen.run.measure.gpu_device import source

    # What a user's operator computes is handed over as arrays, with the answers.
    reference = operator.reference_kernel(target.languages[0]) if is_built_in(operator) else None
    return {"harness": source(target.languages[0]), **({"reference": reference} if reference else {}), **beside}


def build_helpers(task: Task, build: Callable[[Kernel], Artifact], needed: Sequence[str] = ()) -> dict[str, Helper]:
    """What of our own code can be built. Without the harness a processor's worker streams memory and tells less of a
    crash; without the reference the host computes it."""
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
        # The caller's own cache where there is one: it may already have reported that its folder cannot be written.
        used = cache if isinstance(cache, Cache) else Cache(cache or default_cache_folder())
    except DeepgenError:
        return {}
    return build_helpers(task, lambda kernel: build_once(kernel, task.target, paths=toolchains, cache=used))
