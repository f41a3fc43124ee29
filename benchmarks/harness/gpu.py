"""Calls timed in the state that deepgen's finals guarantee: cold caches, an idle queue; on GPUs by events, on one
thread by its processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from deepgen.targets import Target
from deepgen.vocabulary import Missing

FLUSH_BYTES = 256 << 20  # more than caches hold
PAUSE_CYCLES = 400_000  # 0.2 ms: everything is enqueued before the device starts
Call = Callable[[], Any]


def gpu_torch() -> Any:
    """torch, if it has a GPU."""
    missing = Missing("torch with an NVIDIA GPU", blocks="nothing can be timed", remedy="Run it where there is one.")
    try:
        import torch
    except ModuleNotFoundError:
        raise missing from None
    if not torch.cuda.is_available():
        raise missing
    return torch


class Clock:
    """Times calls on torch's default stream."""

    def __init__(self) -> None:
        self.torch = gpu_torch()
        self._ballast = self.torch.zeros(FLUSH_BYTES // 4, device="cuda")
        self._least = self.torch.zeros((), device="cuda")
        self._events = tuple(self.torch.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(self, call: Call) -> float:
        """The seconds of one call, after flushing the cache by reading and after a pause."""
        torch, (start, end) = self.torch, self._events
        torch.cuda.synchronize()
        torch.amin(self._ballast, dim=0, out=self._least)
        torch.cuda._sleep(PAUSE_CYCLES)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def graph(self, call: Call) -> Call:
        """The call, captured in a graph; it is called once before on the same stream, for its allocations."""
        torch = self.torch
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
        torch.cuda.synchronize()
        replay: Call = graph.replay
        return replay


def timer(torch: Any, target: Target, threads: int | None = None) -> Callable[[Callable[[], Any]], float]:
    """A function that returns the seconds of one call with cold caches. Of a single thread only the time that it had a
    processor counts: on a busy machine it waits for one."""
    if target.runner == "gpu":
        return Clock().seconds
    ballast = torch.zeros(FLUSH_BYTES // 4)
    clock = time.thread_time if threads == 1 else time.perf_counter

    def seconds(call: Callable[[], Any]) -> float:
        ballast.add_(1)
        started = clock()
        call()
        return clock() - started

    return seconds
