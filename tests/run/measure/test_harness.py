"""The measuring worker's few lines of C: data that were flushed are read from memory again."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from deepgen import targets
from deepgen.run.measure.harness import source
from deepgen.toolchains import build_once

LINES = 4096  # of 64 bytes: all stay in the second cache of every processor of the last ten years


def test_lines_that_were_flushed_are_cold() -> None:
    flush = ctypes.CDLL(build_once(source(), targets.resolve("cpu")).binary).dg_flush
    flush.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    data, got = np.arange(8.0 * LINES), np.empty(LINES)
    order = 8 * np.random.default_rng(0).permutation(LINES)  # no prefetcher knows which line is next

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
