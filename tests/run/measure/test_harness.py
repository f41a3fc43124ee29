"""The measuring worker's small C harness: flushed data are read from memory again."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deepgen import targets
from deepgen.run.measure.harness import StepKind, Steps, in_python, source
from deepgen.run.measure.process_state import Threads
from deepgen.toolchains import build_once

LINES = 4096  # of 64 bytes: they fit the L2 cache of every CPU of the last ten years


def test_lines_that_were_flushed_are_cold() -> None:
    flush = ctypes.CDLL(build_once(source(), targets.resolve("cpu")).binary).dg_flush
    flush.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    data, got = np.arange(8.0 * LINES), np.empty(LINES)
    order = 8 * np.random.default_rng(0).permutation(LINES)  # no prefetcher can predict the next line

    def fastest(bytes_flushed: int) -> float:
        taken = []
        for _ in range(50):
            np.take(data, order, out=got, mode="clip")
            assert flush(data.ctypes.data, bytes_flushed) == 1, "this processor has an instruction for it"
            started = time.perf_counter()
            np.take(data, order, out=got, mode="clip")
            taken.append(time.perf_counter() - started)
        return min(taken)

    assert fastest(data.nbytes) > 1.5 * fastest(0)
    assert (got == order).all()


def test_steps_are_the_same_in_c_and_in_python() -> None:
    library = ctypes.CDLL(build_once(source(), targets.resolve("cpu")).binary)
    library.dg_steps.restype = ctypes.c_int64
    results = []
    for do in (lambda steps: library.dg_steps(*steps.arguments), in_python):
        memory, numbers = np.zeros(100, np.uint8), np.arange(40, dtype=np.uint8)
        at = memory.ctypes.data
        written = [
            (StepKind.COPY, at, numbers.ctypes.data, 40),
            (StepKind.FILL, at + 50, 7, 30),
            (StepKind.FILL, 0, 7, 0),  # nothing
            (StepKind.FLUSH, at, 0, 100),
        ]
        assert do(Steps(written, numbers)) == -1 and do(Steps([])) == -1
        intact = [
            (StepKind.INTACT, at + 40, 0, 10),
            (StepKind.INTACT, at + 50, 7, 30),
            (StepKind.INTACT, at + 99, 0, 1),
        ]
        assert do(Steps(intact)) == -1
        for place, failed in ((49, 0), (50, 1), (79, 1), (99, 2)):
            before, memory[place] = memory[place], 99
            assert do(Steps(intact)) == failed
            memory[place] = before
        assert do(Steps([(StepKind.PROTECT, at + 1, 3, 1)])) == 0, "not at the start of a page"
        results.append(memory.tobytes())
    assert results[0] == results[1] == bytes([*range(40), *[0] * 10, *[7] * 30, *[0] * 20])


def test_threads_that_compute_are_seen() -> None:
    library = ctypes.CDLL(build_once(source(), targets.resolve("cpu")).binary)

    def scan(files: Sequence[int]) -> bool:
        return library.dg_running((ctypes.c_int * len(files))(*files), ctypes.c_size_t(len(files))) > 0

    ended = threading.Event()
    sleeping = threading.Thread(target=ended.wait)
    sleeping.start()
    threads = Threads(scan)
    threads.look()
    threads.settle()
    assert not threads.running() and threads.restless == 0
    ended.set()
    sleeping.join()
    with Path("/proc/self/stat").open() as own:  # the calling thread computes
        assert scan([own.fileno()])
