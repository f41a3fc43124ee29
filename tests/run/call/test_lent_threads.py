"""A kernel on threads lent by its host: all work is done exactly once, and none of its own threads is started."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plain_operators import CPU, GEMM, Ones, plain, sizes, tensors

from deepgen.operators import gemm
from deepgen.run.call import native
from deepgen.run.call.loaded import Loaded, load
from deepgen.vocabulary import Kernel, ScalarArg, Source

# Each piece counts itself; the last element is the highest thread number.
_PIECES = """
#include "cpu_pool.h"
typedef struct { float *y; long n; _Atomic long next; _Atomic int highest; } job;
static void draw(void *given, int thread) {
    job *j = given;
    for (long i; (i = atomic_fetch_add(&j->next, 1)) < j->n - 1;) j->y[i] += 1;
    for (int seen = j->highest; seen < thread && !atomic_compare_exchange_weak(&j->highest, &seen, thread);) {}
}
void ones(float *y, long n, int threads) {
    job j = {y, n, 0, 0};
    pool_run(threads, draw, &j);
    y[n - 1] = j.highest;
}
"""
_THREADS = 3
_LENDER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def pieces(remark: str) -> Kernel:
    """Each has a separate binary, because state set in a loaded binary persists."""
    made = plain("ones", _PIECES + f"// {remark}\n", *tensors("y"), *sizes("n"), ScalarArg("i32", _THREADS))
    pool = resources.files("deepgen.kernels.shared")
    headers = [Source(name, pool.joinpath(name).read_text()) for name in ("cpu_pool.h", "x86_pool.h")]
    return Kernel(made.name, made.language, (*made.sources, *headers), ("-O1", "-std=gnu11", "-pthread"), made.plan)


def threads_now() -> int:
    return len([*Path("/proc/self/task").iterdir()])


@pytest.mark.parametrize("lent", [1, 2, 8])
def test_all_work_is_done_once_whatever_number_of_threads_is_lent(lent: int) -> None:
    call: Loaded = load(pieces(f"{lent} threads"), Ones(), CPU)
    asked: list[tuple[int, int]] = []
    with ThreadPoolExecutor(8) as pool:
        all_started = Barrier(8)
        [*pool.map(lambda _: all_started.wait(), range(8))]

        def parallel(work: int, job: int, threads: int, flags: int) -> None:
            asked.append((threads, flags))
            [*pool.map(lambda _: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work)(job), range(lent))]

        lender = _LENDER(parallel)
        address: Any = ctypes.cast(lender, ctypes.c_void_p).value
        assert call.run_on(address)
        before = threads_now()
        for n in (1, 2, 100):
            y = call(out=np.zeros(n, np.float32))
            assert (y[:-1] == 1).all() and y[-1] < min(lent, _THREADS)
        assert threads_now() <= before
    assert asked == [(0, 0)] * 3


def test_kernels_without_such_threads_stay_as_they_are() -> None:
    assert not load(GEMM, gemm(8, 8, 8), CPU).run_on(1)


def test_a_binary_that_is_opened_again_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_borrowers", {})
    for handle in (1, 2, 1, 1):
        native.lend(SimpleNamespace(_handle=handle, deepgen_set_parallel=lambda address: None), 0)  # type: ignore[arg-type]
    assert [*native._borrowers] == [1, 2]
