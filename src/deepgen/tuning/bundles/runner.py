"""The runner in a bundle: measures its kernels on the machine where it is unpacked, and runs the finals there.

It needs Python and numpy, but neither a network nor deepgen. Kernels run in a worker process under the same supervisor
as elsewhere. Each result is on disk before the next kernel starts, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepgen import baselines
from deepgen.run.measure import conditions, open_runner
from deepgen.run.measure.base import Contender, Helper, Runner, RunnerOptions, Task, arithmetic, least_seconds
from deepgen.targets import Elsewhere, Target, device_for
from deepgen.tuning.bundles import archive as bundle_archive
from deepgen.tuning.bundles import results as bundle_results
from deepgen.tuning.bundles.results import TrialResult
from deepgen.tuning.finals import run_finals
from deepgen.vocabulary import Artifact, BadInput, DeepgenError, Kernel, Measurement, Missing, Trial, Verdict, foreign

INTERRUPTED = 130
ARRAYS = "arrays"  # folder with inputs and reference results of an operator whose code is not in the bundle
UNMEASURED = Measurement(Verdict.UNSTABLE, "not measured yet")


@dataclass(frozen=True)
class PackedTrial:
    """A trial of the bundle. One with an earlier measurement takes part in the finals only."""

    trial: Trial
    kernel: Kernel
    artifact: Artifact


@dataclass(frozen=True)
class Job:
    """An unpacked bundle."""

    id: str
    manifest: Mapping[str, Any]
    task: Task
    trials: tuple[PackedTrial, ...]
    earlier: tuple[PackedTrial, ...]
    helpers: Mapping[str, Helper]
    arrays: Path


class _Here:
    """The arena of the finals. All kernels are already built, so there are no builds to pause."""

    def __init__(self, job: Job, runner: Runner, peak: float | None) -> None:
        self._task, self._runner, self._peak = job.task, runner, peak
        self._artifacts = {packed.kernel.id: packed.artifact for packed in (*job.trials, *job.earlier)}

    @contextmanager
    def quiet(self) -> Iterator[None]:
        yield

    def disturbed(self) -> str | None:
        return conditions.disturbance() if self._task.target.runner == "cpu" else None

    def build(self, kernel: Kernel) -> Artifact:
        return self._artifacts[kernel.id]

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        return self._runner.verify(kernel, self.build(kernel), seed, probe, shape)

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        built = [replace(c, artifact=self.build(c.kernel)) if c.kernel else c for c in contenders]
        return self._runner.compare(built, rounds, seed)

    def baselines(self) -> list[str]:
        return baselines.find(self._task.operator, self._task.target)

    def peak(self, *, again: bool = False) -> float | None:
        return self._peak


def main(folder: str, argv: Sequence[str]) -> int:
    """`python3 run.py [-o RESULTS]`."""
    parser = argparse.ArgumentParser(prog="run.py", description="Measure this bundle's kernels on this machine.")
    default = f"{Path(folder).name}.results.jsonl"
    parser.add_argument("-o", "--results", default=default, help=f"where results are written, line by line [{default}]")
    parsed = parser.parse_args(argv)
    try:
        return _run(read(Path(folder)), Path(parsed.results))
    except DeepgenError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say("stopped by Ctrl-C; run the same command again to resume")
        return INTERRUPTED


def read(folder: Path) -> Job:
    """An unpacked bundle, after comparing its files with what was packed."""
    manifest, identity = bundle_archive.read_manifest(folder)
    try:
        trials, earlier = (tuple(_packed(row, folder) for row in manifest[key]) for key in ("trials", "known"))
        # A bundle contains no Python code of a user, so the recorded paths to such code are ignored.
        task = replace(Task.from_json(manifest["task"]), own_baselines={})
        helpers = {name: Helper.from_json(row) for name, row in manifest["helpers"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput("its manifest cannot be read", where=str(folder)) from error
    placed = {name: replace(helper, binary=folder / helper.binary) for name, helper in helpers.items()}
    return Job(identity, manifest, task, trials, earlier, placed, folder / ARRAYS)


def _packed(row: Mapping[str, Any], folder: Path) -> PackedTrial:
    artifact = Artifact.from_json({**row["artifact"], "binary": str(folder / row["artifact"]["binary"])})
    measured = row.get("measurement")
    measurement = Measurement.from_json(measured) if measured else UNMEASURED
    trial = Trial(row["id"], row["rank"], row["config"], artifact.kernel_id, measurement, row["facts"])
    return PackedTrial(trial, Kernel.from_json(row["kernel"]), artifact)


def _run(job: Job, path: Path) -> int:
    device, peak = _device(job.task)
    head = {
        "format": bundle_archive.FORMAT,
        "bundle": job.id,
        "study": job.manifest["study"],
        "device": device,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }
    writer = bundle_results.Writer(path, dict(head))
    try:
        done = dict(writer.so_far.trials)
        _say(f"{job.task.operator.describe()} on {device}: {len(job.trials)} kernels, {len(done)} measured before")
        if len(done) < len(job.trials) or writer.so_far.finals is None:
            least = least_seconds(job.task, peak)
            options = RunnerOptions(least_seconds=least, helpers=_loadable(job), arrays=job.arrays)
            runner = open_runner(job.task, options)
            try:
                _measure_all(job, runner, writer, done, device)
                _hold_finals(job, runner, writer, done, peak)
            finally:
                runner.close()
    finally:
        writer.close()
    best = _best([r.measurement for r in done.values()])
    right = sum(result.measurement.ok for result in done.values())
    _say(f"{right} of {len(done)} kernels are correct" + (f", the fastest takes {best:.4g} s" if best else ""))
    _say(f"copy {path} back and merge it: deepgen bundle merge {job.manifest['name']} {path.name}")
    return 0


def _measure_all(
    job: Job, runner: Runner, writer: bundle_results.Writer, done: dict[int, TrialResult], device: str
) -> None:
    for number, packed in enumerate(job.trials, 1):
        trial = packed.trial
        if trial.id in done:
            continue
        beat = _best([*(r.measurement for r in done.values()), *(p.trial.measurement for p in job.earlier)])
        measured = runner.measure(packed.kernel, packed.artifact, beat=beat)
        measured = replace(measured, conditions={**measured.conditions, "device": device, "bundle": job.id[:12]})
        done[trial.id] = TrialResult(trial.id, trial.kernel_id, measured, trial.build_facts)
        writer.append(done[trial.id].to_json())
        took = f"{measured.seconds:.4g} s" if measured.seconds else measured.detail
        _say(f"[{number}/{len(job.trials)}] trial {trial.id}: {measured.verdict}, {took}")


def _hold_finals(
    job: Job, runner: Runner, writer: bundle_results.Writer, done: Mapping[int, TrialResult], peak: float | None
) -> None:
    rules = job.manifest["finals"]
    measured = [replace(p.trial, measurement=done[p.trial.id].measurement) for p in job.trials]
    candidates = [*measured, *(p.trial for p in job.earlier)]
    default = next((t for t in candidates if t.id == rules["default"] and t.measurement.right), None)
    if default is None and not any(trial.ok for trial in candidates):
        _say("no kernel was correct, so there are no finals")
        return
    kernels = {p.trial.id: p.kernel for p in (*job.trials, *job.earlier)}
    result = run_finals(
        _Here(job, runner, peak),
        job.task,
        candidates,
        lambda trial: kernels[trial.id],
        default=default,
        keep=rules["keep"],
        baselines=rules["baselines"],
        say=_say,
    )
    writer.append({"finals": replace(result, peak_gflops=peak).to_json()})


def _best(measurements: Sequence[Measurement]) -> float | None:
    return min((m.seconds for m in measurements if m.ok and m.seconds), default=None)


def _device(task: Task) -> tuple[str, float | None]:
    """A description of this machine's device, and its peak. Raises if the kernels cannot run here."""
    target = task.target
    try:
        device = device_for(target)
    except Elsewhere as error:
        raise _not_here(target, error.why) from error
    model, tuned_on = getattr(device, "model", target.name), getattr(target, "model", target.name)
    if target.runner == "cpu" and target.name == device.name and model != tuned_on:
        raise _not_here(target, f"they were built for {tuned_on}, and this is {model}")
    return f"{model} ({target.proxy})" if target.proxy else model, device.peak(arithmetic(task.operator))


def _not_here(target: Target, why: str) -> Missing:
    return Missing(
        f"a device that runs {getattr(target, 'arch', target.name)}",
        blocks=f"{why}, so these kernels cannot run here",
        remedy="Run the bundle on a machine with such a device.",
    )


def _loadable(job: Job) -> dict[str, Helper]:
    """The helpers, except libraries that this system cannot load: the worker runs without them."""
    if job.task.target.runner != "cpu":
        return dict(job.helpers)
    loaded = {}
    for name, helper in job.helpers.items():
        with suppress(OSError):
            ctypes.CDLL(str(helper.binary))
            loaded[name] = helper
    return loaded


def _say(text: str) -> None:
    print(f"bundle: {foreign.printable(text)}", file=sys.stderr, flush=True)
