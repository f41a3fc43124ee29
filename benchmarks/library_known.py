"""A library of winners that earlier benchmarks recorded: configs are built and timed here, and not searched for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from deepgen import generators
from deepgen.libraries import Entry, Library, Timed
from deepgen.libraries.entry import Rival, Times
from deepgen.libraries.racing import Runners, measured, times_of
from deepgen.operators import Gemm
from deepgen.run.call import plans
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.targets import Target
from deepgen.toolchains import build_once
from deepgen.tuning.study.winner import sha256
from deepgen.vocabulary import Artifact, Kernel, completed
from gemm_results import read
from harness.race import Config, fitting, general

_ALL_FLOPS = 2e10  # up to which all kernels are timed at a shape; beyond, its own
_THREADS = 8  # that wait for compilers


@dataclass(frozen=True)
class Built:
    """A recorded winner in the form that serves other shapes, too."""

    operator: Gemm
    family: str
    config: Config
    kernel: Kernel
    artifact: Artifact

    def serves(self, operator: Gemm) -> bool:
        assert self.artifact.plan is not None
        return all(plans.holds(test, operator.scalars()) for test, _ in self.artifact.plan.requires)


def fill(
    library: Library,
    file: Path,
    suite: Sequence[Gemm],
    target: Target,
    runners: Runners,
    threads: int | None,
    go_on: Callable[[], None],
) -> None:
    """Add what won at the suite's shapes, timed here: all kernels at small shapes, its own at large ones."""
    won = {json.dumps(row["operator"]): row for row in read(file)}
    rows = [(op, won[key]) for op in suite if (key := json.dumps(op.to_json())) in won]
    with ThreadPoolExecutor(_THREADS) as pool:
        built = pool.map(lambda row: _built(row[0], row[1]["generator"], row[1]["config"], target), rows)
    results = [one for one in built if one is not None]
    for one in results:
        go_on()
        times = _timed(one, results if one.operator.flops() <= _ALL_FLOPS else [one], target, runners, threads)
        if one.kernel.id not in times.kernels:
            print(f"{one.operator.describe()}: its kernel failed", flush=True)
            continue
        with library.store.changing():
            library.store.write(_entry(one, times, target, file), one.kernel, one.artifact)
            library.store.write_times(times)
        print(f"known {one.operator.describe()}: {len(times.kernels)} kernels timed", flush=True)
    library.reload()


def _built(operator: Gemm, name: str, config: Config, target: Target) -> Built | None:
    family = generators.by_name(name)
    fitted = fitting(family.space(operator, target), general(config))
    if fitted is None:
        return None
    kernel = family.emit(operator, target, fitted)
    artifact = build_once(kernel, target)
    plan = completed(kernel, artifact.plan).plan
    requires = (*plan.requires, *kernel.implied)
    return Built(operator, name, fitted, kernel, replace(artifact, plan=replace(plan, requires=requires)))


def _timed(one: Built, raced: Sequence[Built], target: Target, runners: Runners, threads: int | None) -> Times:
    operator = one.operator
    kernels = {other.kernel.id: other for other in raced if other.serves(operator)}
    contenders = [Contender(k, other.kernel, other.artifact) for k, other in kernels.items()]
    task = Task(operator, target, policy=Policy(threads=threads))
    return times_of(task, measured(task, contenders, runners), {name: name for name in kernels})


def _entry(one: Built, times: Times, target: Target, file: Path) -> Entry:
    assert one.artifact.plan is not None
    seconds = times.kernels[one.kernel.id]
    rivals = {name: Rival(value) for name, value in times.baselines.items()}
    return Entry(
        target=target,
        cold=times.cold,
        threads=times.threads,
        general=True,
        family=one.family,
        config=dict(one.config),
        kernel_id=one.kernel.id,
        binary=sha256(Path(one.artifact.binary)),
        requires=one.artifact.plan.requires,
        timed=(Timed(one.operator, seconds, (seconds, seconds), rivals),),
        peak_gflops=target.peak(one.operator.a),
        bandwidth=target.bandwidth,
        provenance={"study": file.name},
    )
