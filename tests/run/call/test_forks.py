"""A process forks while another of its threads is in a kernel: the child can call kernels too."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from plain_operators import CPU, Ones
from test_lent_threads import pieces

from deepgen.run.call.loaded import load
from deepgen.run.call.native import renewed_lock, torchs_threads

FORKS, SECONDS = 72, 20


def children(work: Callable[[], bool]) -> list[int]:
    """The exit status of each child that was forked while this process was working: 0 if its own work was correct."""
    pids = []
    for _ in range(FORKS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about existing threads
            pid = os.fork()
        if not pid:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            right = False
            try:
                right = work()
            finally:
                os._exit(0 if right else 1)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def beside(busy: Callable[[], object], work: Callable[[], bool]) -> list[int]:
    ended = threading.Event()

    def loop() -> None:
        while not ended.is_set():
            busy()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        return children(work)
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_children_of_a_busy_process_call_kernels_on_threads_of_their_own() -> None:
    call = load(pieces("forks"), Ones(), CPU)
    large = np.zeros(200_000, np.float32)
    call(out=large)

    def work() -> bool:
        y = call(out=np.zeros(1000, np.float32))
        return bool((y[:-1] == 1).all()) and len([*Path("/proc/self/task").iterdir()]) > 1

    assert beside(lambda: call(out=large), work) == [0] * FORKS


def test_a_lock_that_another_thread_held_is_free_in_the_child() -> None:
    lock = renewed_lock()

    def busy() -> None:
        with lock:
            ctypes.CDLL(None).usleep(1000)

    def work() -> bool:
        with lock:
            return True

    assert beside(busy, work) == [0] * FORKS


def test_a_child_works_without_the_threads_that_torch_lent() -> None:
    """Those of OpenMP are not in the child, and its runtime would wait for them."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        lent = torchs_threads()
        call = load(pieces("lent, then forked"), Ones(), CPU)
        if lent is None or not call.run_on(lent):
            pytest.skip("this torch lends no threads")
        call(out=np.zeros(1000, np.float32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about existing threads
            pid = os.fork()
        if not pid:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            y = call(out=np.zeros(1000, np.float32))
            os._exit(0 if (y[:-1] == 1).all() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)
