"""External interference with the measuring processes is not blamed on the kernel that is running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import gemm
from deepgen.run.measure.base import Policy, Task
from deepgen.run.measure.channel import Pulse, WorkerStage
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Measurement, Verdict

pytestmark = pytest.mark.quiet  # limits are short, so that kernels that exceed them are detected quickly

OPERATOR = gemm(37, 29, 23)
POLICY = Policy(min_samples=5, max_samples=5, timeout_seconds=0.8)
SLOW = "usleep(100000); multiply(A, B, C, M, N, K);"  # long enough that a signal hits it during a run


def measured_while(harm: Callable[[int], None]) -> Measurement:
    """The slow kernel, with `harm` done to its worker in the middle."""
    good, slow = kernel(), kernel(SLOW)
    runner = Supervisor(Task(OPERATOR, TARGET, policy=POLICY))
    assert runner.measure(good, build(good)).ok
    assert runner.worker_pid is not None
    timer = threading.Timer(0.5, harm, [runner.worker_pid])
    timer.start()
    try:
        return runner.measure(slow, build(slow))
    finally:
        timer.join()
        runner.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_worker_that_is_ended_from_outside_is_replaced(number: signal.Signals) -> None:
    """As when a service or a session is stopped: all of its processes get a signal to end."""
    measured = measured_while(lambda pid: os.kill(pid, number))
    assert measured.ok, measured.detail


def test_a_worker_that_was_suspended_gets_another_try() -> None:
    def suspend(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)

    measured = measured_while(suspend)
    assert measured.ok, measured.detail


@pytest.mark.parametrize(
    ("number", "verdict"), [("SIGSTOP", Verdict.TIMED_OUT), ("SIGTERM", Verdict.CRASHED)], ids=["suspends", "ends"]
)
def test_a_kernel_that_does_it_to_itself_is_told_by_the_second_time(number: str, verdict: Verdict) -> None:
    bad = kernel(f"multiply(A, B, C, M, N, K); kill(getpid(), {number});")
    runner = Supervisor(Task(OPERATOR, TARGET, policy=POLICY))
    measured = runner.measure(bad, build(bad))
    starts = runner.starts
    runner.close()
    assert (measured.verdict, starts) == (verdict, 2), measured.detail


def test_the_page_shared_with_a_worker_lies_on_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, the first byte written to it would end the tuner with a bus error."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    pulse, fd = Pulse.create()
    os.close(fd)
    pulse.clear()
    pulse.enter(WorkerStage.LOAD, 60.0)
    assert pulse.left() > 0.0


@pytest.mark.parametrize("all_of_it", [False, True], ids=["the tuner", "the tuner and its worker"])
def test_a_run_that_is_suspended_goes_on_as_if_it_had_not_been(all_of_it: bool) -> None:
    """Ctrl-Z and fg; a container that is paused."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from faulty_kernels import TARGET, build, kernel
from test_measure_outside import OPERATOR, POLICY, SLOW
from deepgen.run.measure.base import Task
from deepgen.run.measure.supervisor import Supervisor
good, slow = kernel(), kernel(SLOW)
artifact = build(slow)
runner = Supervisor(Task(OPERATOR, TARGET, policy=POLICY))
runner.measure(good, build(good))
print(runner.worker_pid, flush=True)
measured = runner.measure(slow, artifact)
print(measured.verdict.value, measured.detail)
runner.close()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    time.sleep(0.5)
    both = (process.pid, worker) if all_of_it else (process.pid,)
    for pid in both:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    for pid in both:
        os.kill(pid, signal.SIGCONT)
    assert process.communicate(timeout=60)[0].split()[0] == "correct"
