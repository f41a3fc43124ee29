"""When enough samples have been taken, and waiting until the machine is ready for the next one."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import median

from deepgen.run.measure.base import Policy

FEWEST_BEATEN = 3  # samples, all slower than the time to beat by the policy's factor, that settle that it is beaten
HOPELESS = 10.0  # times slower than the time to beat: one sample will do
FAST = 0.7  # a sample below this share of the median is suspect
SPREAD = 3.0  # times: quartiles further apart than this settle nothing
SETTLE_SECONDS = 0.2  # longer than the usual thread pools spin for, even on a busy machine
PATIENCE = 3
BURNT_SECONDS = 0.5  # of a thread's own time after the last call: no thread pool spins for so long unless it is told to
BURNING_SECONDS = 5.0  # until then it may have to wait for a core
_SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # by these a user tells it to


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A 95% confidence interval of the median from order statistics: no assumption on the noise."""
    ordered = sorted(samples)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low = max(0, math.floor((n - 1) / 2 - reach))
    high = min(n - 1, math.ceil((n - 1) / 2 + reach))
    return ordered[low], ordered[high]


def enough(samples: Sequence[float], policy: Policy, beat: float | None = None) -> bool:
    """Whether another sample would change nothing that matters."""
    n = len(samples)
    if n >= policy.max_samples or (beat is not None and is_beaten(samples, policy, beat)):
        return True
    total = sum(samples)
    if n < policy.min_samples:
        # Few long runs tell as much as many: they average over whatever disturbs them.
        return n >= FEWEST_BEATEN and total >= 4.0 * policy.max_seconds
    if total >= policy.max_seconds:
        return True
    # A suspiciously fast sample is confirmed by as many more as would have been enough without it.
    middle = median(samples)
    recent = samples[-policy.min_samples :]
    if min(recent) < FAST * middle:
        return False
    low, high = median_interval(samples)
    return high - low <= policy.precision * middle


def is_beaten(samples: Sequence[float], policy: Policy, beat: float) -> bool:
    """Whether these samples are surely slower than `beat` by the policy's factor."""
    if not samples:
        return False
    best = min(samples)
    return best > HOPELESS * beat or (len(samples) >= FEWEST_BEATEN and best > policy.give_up * beat)


def unsettled(samples: Sequence[float]) -> bool:
    """Whether the samples scatter so widely that their median means little."""
    ordered = sorted(samples)
    n = len(ordered)
    if n < 5:
        return False
    return ordered[(3 * n) // 4] > SPREAD * ordered[n // 4]


class Threads:
    """Watches this process's other threads: a pool that spins after its run would slow whatever is timed next."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self.restless = 0  # waits that ended before they slept, since the last look

    def look(self) -> None:
        """Find the threads that exist now."""
        self.restless = 0
        self._find()

    def settle(self) -> None:
        """Wait until all of them sleep. Those that never do are not waited for again and again."""
        if self.restless >= PATIENCE:
            return
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.running():
            if time.monotonic() >= deadline:
                self.restless += 1
                return
            time.sleep(50e-6)

    def running(self) -> bool:
        return any(stat[0] == b"R" for _, stat in self._stats())

    def keeps_computing(self) -> bool:
        """Whether a thread keeps computing between calls."""
        if any(name in os.environ for name in _SPINNING):
            return False
        self._find()
        before = {thread: _ticks(stat) for thread, stat in self._stats()}
        most = BURNT_SECONDS * os.sysconf("SC_CLK_TCK")
        deadline = time.monotonic() + BURNING_SECONDS
        while self.running() and time.monotonic() < deadline:
            if any(_ticks(stat) - before[thread] >= most for thread, stat in self._stats()):
                return True
            time.sleep(1e-3)
        return False

    def _find(self) -> None:
        own = str(_thread_id())
        try:
            present = set(os.listdir("/proc/self/task")) - {own}  # noqa: PTH208 (names, not paths; called often)
        except OSError:
            return
        for gone in set(self._files) - present:
            os.close(self._files.pop(gone))
        for fresh in present - set(self._files):
            try:
                self._files[fresh] = os.open(f"/proc/self/task/{fresh}/stat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue

    def _stats(self) -> Iterator[tuple[str, list[bytes]]]:
        """The system's figures for each, beginning with its state."""
        for thread, file in self._files.items():
            with suppress(OSError):
                text = os.pread(file, 512, 0)
                # The state follows the command's name, which is in parentheses and may hold anything.
                yield thread, text[text.rfind(b")") + 2 :].split()


def _ticks(stat: list[bytes]) -> int:
    """Of the system's clock that a thread has computed."""
    return int(stat[11]) + int(stat[12])


def _thread_id() -> int:
    import threading

    return threading.get_native_id()
