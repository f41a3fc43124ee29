"""The measuring process: if it crashes or hangs, only it is lost. Started by the keeper, never by hand.

Kernels run in its main thread.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgen import baselines, targets
from deepgen.run.counters import Counted, perf
from deepgen.run.measure import limits
from deepgen.run.measure.base import CALL, REFERENCE, Helper, Task
from deepgen.run.measure.bench import Bench, Rejected
from deepgen.run.measure.channel import LOST_CHANNEL, Channel, Closed, Pulse, WorkerStage
from deepgen.run.measure.cpu_entrant import CpuEntrant, CpuSurroundings
from deepgen.run.measure.guarded import Placement
from deepgen.run.measure.harness import Harness
from deepgen.run.measure.process_state import Threads, Watch
from deepgen.run.measure.referee import ContextLost, Inputs, Referee
from deepgen.vocabulary import DeepgenError, Json, JsonObject, Kernel, Measurement, Verdict

if TYPE_CHECKING:
    from deepgen.run.measure.host_reference import HostReferences

_STACK = 8 << 20  # the usual stack size of a user's process
_BENCH_BYTES = 512 << 20  # of inputs for other seeds and probes, cached for the next finalist
_MOST_STREAMED = 512 << 20


class CpuWorker(Referee[CpuEntrant]):
    """Runs kernels of one operator on this machine's CPU."""

    places_apart = True

    def __init__(self, opening: Mapping[str, Any], pulse: Pulse) -> None:
        self.task = Task.from_json(opening["task"])
        self._worn = set()
        self.threads: int = opening["threads"]
        self._scratch = Path(opening["scratch"])
        built = opening["helpers"].get("harness")
        binary = Helper.from_json(built).binary if built else None
        judge = opening["helpers"].get("judge")
        self.judge = Helper.from_json(judge) if judge else None
        references = [Helper.from_json(row) for name, row in opening["helpers"].items() if name.startswith(REFERENCE)]
        self._references = _loaded(references, self.threads) if references else None
        library = binary if binary and binary.is_file() else None  # a cache may have been cleaned in the meantime
        harness = Harness(library, pulse, min(_MOST_STREAMED, self.task.target.cache_bytes * 5 // 4))
        self.around = CpuSurroundings(self.task, pulse, harness, Threads(harness.running))
        harness.begin()
        self._watch = Watch(harness.arithmetic)
        self._benches: dict[tuple[Inputs, Placement], Bench] = {}
        self._call_seconds = _call_seconds(harness)

    def entrant(self, inputs: Inputs, who: int, beat: float | None, placed: Placement = Placement.LINES) -> CpuEntrant:
        limit = limits.run_seconds(self.task.at(inputs.shape), beat)
        return CpuEntrant(self.around, self._bench(inputs, placed), who, limit)

    def _bench(self, inputs: Inputs, placed: Placement) -> Bench:
        inputs = inputs.first
        key = (inputs, placed)
        if key in self._benches:
            return self._benches[key]
        same = next((bench for (drawn, _), bench in self._benches.items() if drawn == inputs), None)
        kept = [k for k in self._benches if k[1] is not Placement.LINES]
        kept.sort(key=lambda k: k[0] == inputs)  # those of other inputs go first
        while kept and sum(self._benches[k].bytes for k in kept) > _BENCH_BYTES:
            self._benches.pop(kept.pop(0)).close()
        operator = self.task.shapes[inputs.shape]
        words: dict[str, Any] = {"placed": placed, "compiled": self._references, "same": same}
        drawn = operator, inputs.seed, inputs.probe, self._scratch
        self._benches[key] = Bench(*drawn, **words, do=self.around.harness.do)
        if self._benches[key].unanswered:
            limit = limits.run_seconds(self.task.at(inputs.shape))
            self.give_answers(CpuEntrant(self.around, self._benches[key], 0, limit))
        return self._benches[key]

    def load(self, entrant: CpuEntrant, entry: Mapping[str, Any]) -> None:
        kernel = Kernel.from_json(entry["kernel"]) if entry.get("kernel") else None
        if kernel is not None:
            entrant.expect(kernel.plan)  # before the state is recorded, as this may map answers
        self._watch.renew()
        if kernel is not None:
            entrant.load(kernel, entry["binary"])
            if entry.get("timed") == CALL:
                entrant.baseline = True  # such calls compile and cache code, which is not the kernel's doing
                try:
                    entrant.call(kernel, entry["binary"])
                except (DeepgenError, ImportError) as error:  # in a bundle, or for a target that lacks such calls
                    raise Rejected(Verdict.REFUSED, str(error)) from error
            return
        self.around.pulse.enter(WorkerStage.LOAD, limits.START_SECONDS, entrant.who)
        entrant.baseline = True
        try:
            baseline = baselines.by_name(entry["name"], self.task.own_baselines)
            run = baseline.prepare(entrant.bench.operator, entrant.bench.arrays, self.threads)
            entrant.form = getattr(run, "form", "")
            if isinstance(run, baselines.PackedAhead):
                entrant.take_packed(run)
            else:
                entrant.take(*((run.call, run.keep) if isinstance(run, baselines.NewResult) else (run, None)))
        except DeepgenError as error:
            raise Rejected(Verdict.REFUSED, str(error)) from error

    @contextmanager
    def limited(self) -> Iterator[None]:
        """While kernels run, limit memory so that they cannot use all of the machine's."""
        present = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = present + limits.memory_bytes(self.task, os.cpu_count() or 1)
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard < 0 else min(soft, hard), hard))
        try:
            yield
        finally:
            with suppress(ValueError):  # a kernel has lowered the hard limit, which is detected later
                resource.setrlimit(resource.RLIMIT_AS, (hard, hard))

    def look(self) -> None:
        self.around.threads.look()

    def conditions(self, entrant: CpuEntrant) -> JsonObject:
        cold = self.task.policy.cold
        flush: Json = ("lines" if self.around.harness.by_lines else "stream") if cold else None
        share = entrant.waits.share
        return {
            **({} if share is None else {"waited_share": round(share, 4)}),
            **({"form": entrant.form} if entrant.form else {}),
            "cold": cold,
            "flush": flush,
            "runs_checked": entrant.calls,
            "reproducible": entrant.reproducible,
            "restless_threads": self.around.threads.restless > 0,
            "call_seconds": self._call_seconds,
            **({"reference": entrant.bench.reference} if entrant.bench.reference else {}),
        }

    def counted(self, entrant: CpuEntrant, events: Sequence[str]) -> Counted:
        return perf.count(events, entrant.between, perf.Linux())

    def inspect(self, entrant: CpuEntrant, *, finished: bool = False) -> None:
        if entrant.baseline:
            self._watch.accept()
            return
        changed = self._watch.changed()
        if changed is None and finished and self.around.threads.keeps_computing():
            changed = "left threads running that use CPU time after the call has returned"
        if changed is not None:
            raise ContextLost(changed, Verdict.WRONG)

    def stray(self) -> bool:
        restless = self.around.threads.restless > 0 and self.around.threads.running()
        return restless or self._watch.changed() is not None

    def close(self) -> None:
        for bench in self._benches.values():
            bench.close()


def _loaded(references: Sequence[Helper], threads: int) -> HostReferences:
    from deepgen.run.measure.host_reference import HostReferences  # imported late: most workers do not need it

    return HostReferences(references, threads)


def serve(channel: Channel, pulse: Pulse) -> None:
    """Answer requests until the supervisor closes the channel."""
    request = channel.receive_request()
    if request.get("do") == "meet":
        _meet(request["language"])
        request = channel.receive_request()
    os.chdir(request["folder"])  # our own folder, so that a user's files are not overwritten by accident
    worker = _opened(request, pulse, channel)
    while True:
        request = channel.receive_request()
        if request["do"] == "open":
            worker.close()
            worker = _opened(request, pulse, channel)
            continue
        handlers: dict[str, Callable[[Mapping[str, Any]], list[Measurement]]] = {
            "measure": worker.measure,
            "verify": worker.verify,
            "compare": worker.compare,
            "count": worker.count,
            "load": worker.try_baselines,
            "prepare": worker.prepare,
            "import": partial(_import, worker.task, pulse),
        }
        gc.disable()
        try:
            answer: JsonObject = {"measurements": [m.to_json() for m in handlers[request["do"]](request)]}
        except ContextLost as lost:
            channel.answer({"lost": lost.detail, "verdict": lost.verdict.value})
            return
        except (DeepgenError, MemoryError) as error:
            answer = {"error": f"{worker.task.operator.describe()} cannot be measured here: {error}"}
        gc.enable()
        channel.answer({**answer, **_state(), "stray": worker.stray()})


def _import(task: Task, pulse: Pulse, request: Mapping[str, Any]) -> list[Measurement]:
    """Import what baselines need: the longest part of loading them, without using a device."""
    for who, entry in enumerate(request["contenders"]):
        pulse.enter(WorkerStage.LOAD, limits.START_SECONDS, who)
        wanted = getattr(baselines.by_name(entry["name"], task.own_baselines), "imports", ())
        for module in wanted(task.operator) if callable(wanted) else wanted:
            with suppress(Exception):  # errors appear when it is used
                import_module(module)
    return []


def _meet(language: str) -> None:
    """Start the device's driver while our own code for it is still being built."""
    from deepgen.run.measure import gpu_worker

    with suppress(DeepgenError, OSError):  # errors appear when the device is opened
        gpu_worker.meet(language)


def _opened(opening: Mapping[str, Any], pulse: Pulse, channel: Channel) -> Referee[Any]:
    worker = _worker(opening, pulse)
    worker.announce = partial(_announce, channel)
    gc.collect()
    gc.freeze()
    channel.answer(_state())
    return worker


def _announce(channel: Channel) -> None:
    channel.answer({"timing": time.process_time()})
    channel.receive_request()


def _worker(opening: Mapping[str, Any], pulse: Pulse) -> Referee[Any]:
    if targets.from_json(opening["task"]["target"]).runner == "gpu":
        from deepgen.run.measure.gpu_worker import GpuWorker

        return GpuWorker(opening, pulse)
    return CpuWorker(opening, pulse)


def main(channel_fd: int, pulse_fd: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard < 0 else min(_STACK, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # when memory runs out, the system kills this process first
    pulse = Pulse(pulse_fd)
    os.close(pulse_fd)
    try:
        serve(Channel.hidden(channel_fd), pulse)
    except Closed:
        # Skip all destructors: kernels may have left anything in them.
        os._exit(LOST_CHANNEL)


def _state() -> JsonObject:
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "pid": os.getpid(),
        "cpu": used.ru_utime + used.ru_stime,
        "resident": pages * resource.getpagesize(),
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
    }


def _call_seconds(harness: Harness) -> float:
    """The cost of calling an empty C function here, which is part of every sample, including a baseline's."""
    call = harness.empty_call()
    taken = []
    for _ in range(200):
        started = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - started)
    return sorted(taken)[100] * 1e-9
