"""The measuring process: it may crash or hang, and then only it is lost. Started by the supervisor, never by hand.

Kernels run in its main thread. A second thread does nothing but wait for the supervisor's end of a pipe to close, so
that no worker outlives its supervisor, not even one that is stuck in a kernel.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepgen import baselines
from deepgen.measure import limits
from deepgen.measure.base import Task
from deepgen.measure.bench import Bench, Rejected
from deepgen.measure.channel import Channel, Closed
from deepgen.measure.harness import Harness
from deepgen.measure.pulse import Pulse, Stage
from deepgen.measure.racer import Racer, Surroundings
from deepgen.measure.timing import Threads, enough
from deepgen.vocabulary import DeepgenError, Json, JsonObject, Kernel, Measurement, Verdict

LOST_CHANNEL = 70  # exit code: the channel to the supervisor is gone although the supervisor is not
_STACK = 8 << 20  # what a user's process usually has
_BENCH_BYTES = 512 << 20  # of inputs for other seeds and probes, kept for the next finalist
_MOST_STREAMED = 1 << 30


class Worker:
    """One device, one operator, many kernels."""

    def __init__(self, opening: Mapping[str, Any], pulse: Pulse) -> None:
        self.task = Task.from_json(opening["task"])
        self.threads: int = opening["threads"]
        self._scratch = Path(opening["scratch"])
        library = Path(opening["harness"]) if opening["harness"] else None
        target = self.task.target
        caches = getattr(target, "l3_bytes", 32 << 20) + getattr(target, "cores", 1) * getattr(target, "l2_bytes", 0)
        harness = Harness(library, pulse, min(_MOST_STREAMED, 2 * caches))
        self.around = Surroundings(self.task, harness, pulse, Threads())
        self._benches: dict[tuple[int, str, bool], Bench] = {}
        self._call_seconds = _call_seconds(harness)

    def measure(self, request: Mapping[str, Any]) -> list[Measurement]:
        """Verify, time, verify again."""
        policy, beat = self.task.policy, request["beat"]
        racer = self._racer(self._bench(self.task.seed, "normal"), 0, beat)
        samples: list[float] = []
        try:
            self._load(racer, request)
            with self._limited():
                racer.first()
                self.around.threads.look()
                latest = time.monotonic() + 10.0 + 4.0 * policy.max_seconds
                while not enough(samples, policy, beat) and time.monotonic() < latest:
                    samples.append(racer.timed())
                racer.last()
        except Rejected as rejected:
            return [self._rejected(racer, rejected)]
        finally:
            racer.close()
        return [self._measured(racer, samples)]

    def verify(self, request: Mapping[str, Any]) -> list[Measurement]:
        """The verdict on other inputs, aligned no better than a user's may be."""
        racer = self._racer(self._bench(request["seed"], request["probe"], tight=True), 0, None)
        try:
            self._load(racer, request)
            with self._limited():
                racer.first()
                racer.last()
        except Rejected as rejected:
            return [self._rejected(racer, rejected)]
        finally:
            racer.close()
        return [self._measured(racer, [])]

    def compare(self, request: Mapping[str, Any]) -> list[Measurement]:
        """All contenders in an order drawn anew for each round. One that fails leaves the race; the others go on."""
        bench = self._bench(self.task.seed, "normal")
        entries = request["contenders"]
        racers: dict[int, Racer] = {}
        out: dict[int, Measurement] = {}
        samples: dict[int, list[float]] = {who: [] for who in range(len(entries))}

        def attempt(who: int, work: Callable[[Racer], None]) -> None:
            try:
                work(racers[who])
            except Rejected as rejected:
                lost = racers.pop(who)
                lost.close()
                out[who] = self._rejected(lost, rejected)

        def sample(who: int) -> Callable[[Racer], None]:
            return lambda racer: samples[who].append(racer.timed())

        for who in range(len(entries)):
            racers[who] = self._racer(bench, who, None)
            attempt(who, partial(self._load, entry=entries[who]))
        with self._limited():
            for who in list(racers):
                attempt(who, Racer.first)
            self.around.threads.look()
            for number in range(request["rounds"]):
                for place in np.random.default_rng([request["seed"], number]).permutation(len(entries)):
                    if int(place) in racers:
                        attempt(int(place), sample(int(place)))
            for who in list(racers):
                attempt(who, Racer.last)
        for who, racer in racers.items():
            out[who] = self._measured(racer, samples[who])
            racer.close()
        return [out[who] for who in range(len(entries))]

    def _bench(self, seed: int, probe: str, *, tight: bool = False) -> Bench:
        key = (seed, probe, tight)
        if key in self._benches:
            return self._benches[key]
        kept = [k for k in self._benches if k[2]]
        while kept and sum(self._benches[k].bytes for k in kept) > _BENCH_BYTES:
            self._benches.pop(kept.pop(0)).close()
        self._benches[key] = Bench(self.task.operator, seed, probe, self._scratch, tight=tight)
        return self._benches[key]

    def _racer(self, bench: Bench, who: int, beat: float | None) -> Racer:
        return Racer(self.around, bench, who, limits.run_seconds(self.task, beat))

    def _load(self, racer: Racer, entry: Mapping[str, Any]) -> None:
        if entry.get("kernel"):
            racer.load(Kernel.from_json(entry["kernel"]), entry["binary"])
            return
        self.around.pulse.enter(Stage.LOAD, limits.START_SECONDS, racer.who)
        try:
            baseline = baselines.by_name(entry["name"])
            racer.run = baseline.prepare(self.task.operator, racer.bench.arrays, self.threads)
        except DeepgenError as error:
            raise Rejected(Verdict.REFUSED, str(error)) from error

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """While kernels run, they may not take the machine's whole memory."""
        present = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = present + limits.memory_bytes(self.task, os.cpu_count() or 1)
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard < 0 else min(soft, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))

    def _rejected(self, racer: Racer, why: Rejected) -> Measurement:
        return Measurement(why.verdict, why.detail, error=why.error, conditions=self._conditions(racer))

    def _measured(self, racer: Racer, samples: list[float]) -> Measurement:
        return Measurement(
            Verdict.CORRECT, samples=tuple(samples), error=racer.error, conditions=self._conditions(racer)
        )

    def _conditions(self, racer: Racer) -> JsonObject:
        cold = self.task.policy.cold
        flush: Json = ("lines" if self.around.harness.by_lines else "stream") if cold else None
        return {
            "cold": cold,
            "flush": flush,
            "runs_checked": racer.calls,
            "reproducible": racer.reproducible,
            "stray_threads": racer.stray,
            "call_seconds": self._call_seconds,
        }


def serve(channel: Channel, pulse: Pulse) -> None:
    """Answer requests until the supervisor hangs up."""
    worker = Worker(channel.receive(), pulse)
    handlers = {"measure": worker.measure, "verify": worker.verify, "compare": worker.compare}
    gc.collect()
    gc.freeze()
    channel.send(_state())
    while True:
        request = channel.receive()
        gc.disable()
        try:
            answer: JsonObject = {"measurements": [m.to_json() for m in handlers[request["do"]](request)]}
        except (DeepgenError, MemoryError) as error:
            answer = {"error": f"{worker.task.operator.describe()} cannot be measured here: {error}"}
        gc.enable()
        channel.send({**answer, **_state()})


def main() -> None:
    """The arguments are file descriptors: the channel, the life line, the pulse."""
    channel_fd, life_fd, pulse_fd = (int(word) for word in sys.argv[1:4])
    threading.Thread(target=_die_with_supervisor, args=(life_fd,), daemon=True).start()
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard < 0 else min(_STACK, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        serve(Channel(socket.socket(fileno=channel_fd)), Pulse(pulse_fd))
    except Closed:
        # Skip all destructors: they belong to kernels that may have left anything behind.
        os._exit(LOST_CHANNEL)


def _die_with_supervisor(life_fd: int) -> None:
    while os.read(life_fd, 1):
        pass
    os.killpg(0, 9) if os.getpgrp() == os.getpid() else os._exit(LOST_CHANNEL)


def _state() -> JsonObject:
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "cpu": used.ru_utime + used.ru_stime,
        "resident": pages * resource.getpagesize(),
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
    }


def _call_seconds(harness: Harness) -> float:
    """What calling an empty C function costs here: it is part of every sample, as it is of a baseline's."""
    call = harness.empty_call()
    taken = []
    for _ in range(200):
        started = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - started)
    return sorted(taken)[100] * 1e-9


if __name__ == "__main__":
    main()
