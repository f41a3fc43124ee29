"""The actor that measures: one for each device, with the same supervised runners as the local engine.

All studies on the cluster share it, each identified by its session. It answers one call after another in the order in
which they arrive, so studies alternate. Replies are JSON. Control calls have a separate thread, so that they are
answered while a kernel runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.extend import (
    Artifact,
    Cache,
    Contender,
    DeepgenError,
    DeviceSetAside,
    Helper,
    JsonObject,
    Kernel,
    Measurement,
    Runner,
    RunnerOptions,
    Scratch,
    Task,
    bandwidth,
    baselines,
    default_cache_folder,
    handed,
    least_seconds,
    open_runner,
    peak_gflops,
    sweep,
)
from deepgen_cluster.ray import devices, lease
from deepgen_cluster.ray.lease import Lease, end_with_node, kept, refusal

MOST_OPEN = 8  # studies with open runners: the one idle for longest is closed first
IDLE_SECONDS = 600.0  # after which a runner is closed when another study arrives: its driver may be gone


@dataclass
class _Bench:
    """A study's runner, and its data."""

    task: Task
    runner: Runner
    peak: float | None
    bandwidth: float | None
    scratch: Scratch
    used: float
    good: Path | None = None  # the last correct kernel's binary, which the supervisor may need again


class Tester:
    """Measures on one device. A bad kernel ends at most the runner's child, never this process."""

    def __init__(self, slot: int) -> None:
        import ray

        end_with_node()
        self._lease = Lease()
        self._slot = slot
        self._card = devices.pin(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))
        self._benches: dict[str, _Bench] = {}
        sweep()  # left by an earlier process that was killed

    def renew(self) -> tuple[int, str]:
        """Called by a live driver. Returns this process's pid and node, so that the driver can kill it if it hangs."""
        import ray

        self._lease.renew()
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def describe(self) -> str:
        return json.dumps({**devices.probe(self._slot, self._card).to_json(), "pid": os.getpid()})

    def open(self, session: str, task: str, setting: str, helpers: str, *content: bytes) -> str:
        """Open a runner for a study, unless it is already open; returns the device's peak and bandwidth.

        The content is the helpers' binaries, then the arrays of the task's timed shapes, if any.
        """
        described = json.loads(helpers)
        rows = zip(described.items(), content[: len(described)], strict=True)
        built = [(name, Kernel.from_json(kernel), binary) for (name, kernel), binary in rows]
        arrays = content[len(described) :]
        try:
            bench = self._benches.get(session) or self._opened(session, task, json.loads(setting), arrays, built)
        except DeepgenError as error:
            return json.dumps({"error": str(error)})
        except OSError as error:
            return json.dumps({"error": refusal(error)})
        return json.dumps({"peak": bench.peak, "bandwidth": bench.bandwidth})

    def measure(self, session: str, kernel: str, artifact: str, beat: float | None, binary: bytes) -> str:
        def work(bench: _Bench) -> list[Measurement]:
            built, path = _placed(bench, artifact, binary)
            with self._alone(bench.task):
                measured = bench.runner.measure(_kernel(kernel), built, beat=beat)
            good = path if measured.ok else bench.good
            for outdated in (bench.good, path):
                if outdated is not None and outdated != good:
                    outdated.unlink(missing_ok=True)
            bench.good = good
            return [measured]

        return self._answer(session, work)

    def verify(
        self,
        session: str,
        kernel: str,
        artifact: str,
        seed: int,
        probe: str,
        shape: int,
        binary: bytes,
        arrays: bytes | None,
    ) -> str:
        def work(bench: _Bench) -> list[Measurement]:
            if arrays is not None:
                kept(bench.scratch.path / handed.name(bench.task.shapes[shape], seed, handed.drawn_as(probe)), arrays)
            built = _placed(bench, artifact, binary)[0]
            with self._alone(bench.task, finals=True):
                return [bench.runner.verify(_kernel(kernel), built, seed, probe, shape)]

        return self._answer(session, work)

    def compare(self, session: str, entries: str, rounds: int, seed: int, *binaries: bytes) -> str:
        """`entries` without a kernel are baselines; the binaries are those of the others, in order."""

        def work(bench: _Bench) -> list[Measurement]:
            contenders = list(_contenders(bench, json.loads(entries), binaries))
            with self._alone(bench.task, finals=True):
                return bench.runner.compare(contenders, rounds, seed)

        return self._answer(session, work)

    def baselines(self, session: str) -> str:
        bench = self._benches.get(session)
        if bench is None:
            return json.dumps({"unopened": True})
        return json.dumps({"baselines": baselines.find(bench.task.operator, bench.task.target)})

    def close(self, session: str) -> None:
        """The study has ended: if its kernel is still running, end that too."""
        bench = self._benches.pop(session, None)
        if bench is not None:
            with suppress(DeepgenError):
                bench.runner.close()
            bench.scratch.close()

    def _opened(
        self,
        session: str,
        described: str,
        setting: dict[str, Any],
        arrays: Sequence[bytes],
        helpers: Sequence[tuple[str, Kernel, bytes]],
    ) -> _Bench:
        self._make_room()
        task = Task.from_json(json.loads(described))
        cache = Cache(setting["cache"] or default_cache_folder())
        toolchains: dict[str, str] = setting["toolchains"]
        scratch = Scratch("tester")
        with self._alone(task):
            peak = _peak(task, cache, toolchains)
            moved = task.target.bandwidth
            if moved is None and peak is not None:
                moved = bandwidth(task.operator, task.target, cache=cache, toolchains=toolchains)
        if arrays:
            for operator, packed in zip(task.timed, arrays, strict=True):
                kept(scratch.path / handed.name(operator, task.seed, "normal"), packed)
        options = RunnerOptions(
            cache=cache,
            toolchains=toolchains,
            least_seconds=least_seconds(task, peak),
            least_again=lambda: least_seconds(task, _peak(task, cache, toolchains, again=True)),
            helpers={name: Helper(kernel, kept(scratch.path / name, binary)) for name, kernel, binary in helpers},
            arrays=scratch.path,
        )
        runner = open_runner(task, options)
        self._benches[session] = _Bench(task, runner, peak, moved, scratch, time.monotonic())
        return self._benches[session]

    def _make_room(self) -> None:
        oldest = sorted(self._benches, key=lambda name: self._benches[name].used)
        idle = [name for name in oldest if time.monotonic() - self._benches[name].used > IDLE_SECONDS]
        for name in {*idle, *oldest[: max(0, len(oldest) + 1 - MOST_OPEN)]}:
            self.close(name)

    def _answer(self, session: str, work: Callable[[_Bench], list[Measurement]]) -> str:
        bench = self._benches.get(session)
        if bench is None:  # this process is new, or has closed that runner
            return json.dumps({"unopened": True})
        bench.used = time.monotonic()
        try:
            return json.dumps({"measurements": [m.to_json() for m in work(bench)]})
        except DeviceSetAside as error:
            return json.dumps({"set_aside": str(error)})
        except DeepgenError as error:
            return json.dumps({"error": str(error)})
        except OSError as error:
            return json.dumps({"error": refusal(error)})

    @contextmanager
    def _alone(self, task: Task, *, finals: bool = False) -> Iterator[None]:
        """CPU kernels run on the cores that compilers use, so builds are paused. For a GPU only in finals."""
        target = task.target
        alone = target.shares_cores_with_builds or (finals and target.computes)
        with lease.timing() if alone else nullcontext():
            yield


def _peak(task: Task, cache: Cache, toolchains: dict[str, str], *, again: bool = False) -> float | None:
    try:
        return peak_gflops(task.operator, task.target, again=again, cache=cache, toolchains=toolchains)
    except DeepgenError:  # measuring it requires a compiler, which a host that only measures may lack
        return None


def _kernel(text: str) -> Kernel:
    return Kernel.from_json(json.loads(text))


def _placed(bench: _Bench, artifact: str, binary: bytes) -> tuple[Artifact, Path]:
    """The artifact with its binary on this host."""
    described: JsonObject = json.loads(artifact)
    path = kept(bench.scratch.path / f"{described['kernel_id']}.{described['format']}", binary)
    return Artifact.from_json({**described, "binary": str(path)}), path


def _contenders(bench: _Bench, entries: list[dict[str, Any]], binaries: Sequence[bytes]) -> Iterator[Contender]:
    rest = iter(binaries)
    for entry in entries:
        if entry["kernel"] is None:
            yield Contender(entry["name"], timed=entry["timed"], behind=entry["behind"])
        else:
            artifact = _placed(bench, entry["artifact"], next(rest))[0]
            kernel = _kernel(entry["kernel"])
            yield Contender(entry["name"], kernel, artifact, entry["timed"], behind=entry["behind"])
