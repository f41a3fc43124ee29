"""Process state that a kernel may leave changed, which would affect the next kernel and the user.

It is read before a kernel is loaded and after it has run, in about a third of a millisecond. A timed run waits for
threads that are still running.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.run.measure.harness import FloatingMode

_LIMITS = sorted(n for n in dir(resource) if n.startswith("RLIMIT_"))
_SIGNALS = range(1, 65)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGACTION_BYTES = 256  # more than the struct takes on any system
_HANDLER_BYTES = 16  # the address and the blocked signals; C libraries leave the rest undefined
_NAMED = 3  # files and variables listed in a sentence
# Files that runtimes open once and keep: OpenMP's shared memory, GPU devices, and paths that are not on disk.
_RUNTIME_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/shm/", "/memfd:", "/proc/", "/sys/", "anon_inode:")
_RUNTIME_VARIABLES = (b"KMP_", b"__KMP_")  # OpenMP runtimes of Intel and LLVM register themselves in the environment
# If the user asks for it, an OpenMP runtime pins the thread that loads it.
_PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_libc = ctypes.CDLL(None)
_action = ctypes.create_string_buffer(_SIGACTION_BYTES)
_handler_of = memoryview(_action)[:_HANDLER_BYTES]
_libc.setlocale.restype = ctypes.c_char_p
_libc.setlocale.argtypes = (ctypes.c_int, ctypes.c_char_p)
_libc.uselocale.restype = ctypes.c_void_p
_libc.uselocale.argtypes = (ctypes.c_void_p,)
_LC_ALL, _PR_GET_NAME = 6, 16


@dataclass(frozen=True)
class ProcessState:
    """The state of this process and its main thread."""

    cores: frozenset[int]
    priority: tuple[int, int, int]  # nice, scheduling class, real-time priority
    blocked: frozenset[int]  # signal numbers
    handlers: Mapping[int, bytes]
    timers: tuple[bool, ...]
    folder: str
    umask: int
    limits: Mapping[str, tuple[int, int]]
    variables: Mapping[bytes, bytes]
    files: Mapping[int, str]
    children: bool
    orphans: frozenset[int]  # left by its children and adopted by the keeper
    locale: bytes
    name: bytes
    locked: int  # KiB of memory


class Watch:
    """Compares the state of this process with the last accepted one."""

    def __init__(self, arithmetic: Callable[[], FloatingMode]) -> None:
        self._arithmetic = arithmetic
        self.renew()

    def renew(self) -> None:
        """Accept the current state."""
        self._arithmetic()
        self._before = read()

    def accept(self) -> None:
        """Accept what a baseline opened and set, and undo what would affect the next contender."""
        before, after = self._before, read()
        if _noticed(after) == _noticed(before):
            self._arithmetic()
            self._before = after
            return
        if after.cores != before.cores:
            os.sched_setaffinity(0, before.cores)
        if after.blocked != before.blocked:
            signal.pthread_sigmask(signal.SIG_SETMASK, before.blocked)
        if after.folder != before.folder:
            os.chdir(before.folder)
        os.umask(before.umask)
        self.renew()

    def changed(self) -> str | None:
        """What has changed since, in words."""
        return difference(self._before, read(), self._arithmetic())


def _noticed(state: ProcessState) -> tuple[object, ...]:
    """The part of the state that affects contenders."""
    return state.cores, state.blocked, state.folder, state.umask


def read() -> ProcessState:
    return ProcessState(
        cores=frozenset(os.sched_getaffinity(0)),
        priority=(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        blocked=frozenset(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        handlers={number: _handler(number) for number in _SIGNALS},
        timers=(*(signal.getitimer(which)[0] > 0.0 for which in _TIMERS), _text("/proc/self/timers") != b""),
        folder=os.readlink("/proc/self/cwd"),  # noqa: PTH115 (it may be gone)
        umask=_umask(),
        limits={name: _limit(name) for name in _LIMITS},
        variables=dict(_variables()),
        files=_files(),
        children=_has_children(),
        orphans=_orphans(),
        # The process's, and this thread's own.
        locale=b"%s %x" % (_libc.setlocale(_LC_ALL, None) or b"", _libc.uselocale(None) or 0),
        name=_name(),
        locked=_locked(),
    )


def difference(before: ProcessState, after: ProcessState, arithmetic: FloatingMode) -> str | None:
    """What a kernel changed in its process, in words."""
    sentences = []
    if changed := [*_arithmetic_changes(arithmetic), *_changes(before, after)]:
        *first, last = changed
        listed = f"{', '.join(first)} and {last}" if first else last
        sentences.append(f"changed {listed} of its process and did not restore {'them' if first else 'it'}")
    sentences += _file_changes(before.files, after.files)
    # An orphan that has ended since does not count: it was a compiler used for a call from Python.
    if after.orphans - before.orphans or (after.children and not before.children):
        sentences.append("left behind a process that it had started")
    return "; ".join(sentences) or None


def _arithmetic_changes(changed: FloatingMode) -> list[str]:
    words = {
        FloatingMode.ROUNDING: "the rounding mode",
        FloatingMode.DENORMALS: "the handling of denormals",
        FloatingMode.OTHERWISE: "the floating-point control",
    }
    return [word for flag, word in words.items() if flag & changed]


_PLAIN = {
    "priority": "the scheduling priority", "timers": "the timers", "folder": "the working folder", "umask": "the umask",
    "locale": "the locale", "name": "the name", "locked": "the locked memory",
}  # fmt: skip


def _changes(before: ProcessState, after: ProcessState) -> Iterator[str]:
    if before.cores != after.cores and not any(name in os.environ for name in _PINNING):
        yield "the CPU affinity"
    if before.blocked != after.blocked:
        yield f"the signal mask ({_signals(before.blocked ^ after.blocked)})"
    if before.handlers != after.handlers:
        yield f"the signal handlers ({_signals(_unlike(before.handlers, after.handlers))})"
    yield from (words for name, words in _PLAIN.items() if getattr(before, name) != getattr(after, name))
    if limits := _unlike(before.limits, after.limits):
        yield f"the resource limits ({_listed(limits)})"
    variables = [name for name in _unlike(before.variables, after.variables) if not name.startswith(_RUNTIME_VARIABLES)]
    if variables:
        yield f"the environment ({_listed([name.decode('utf-8', 'replace') for name in variables])})"


def _file_changes(before: Mapping[int, str], after: Mapping[int, str]) -> Iterator[str]:
    other = [fd for fd in _unlike(before, after) if not _of_a_runtime(after.get(fd) or before[fd])]
    if opened := [after[fd] for fd in other if fd in after]:
        yield f"left files open ({_listed(opened)})"
    if closed := [before[fd] for fd in other if fd not in after]:
        yield f"closed files of its process ({_listed(closed)})"


def _of_a_runtime(file: str) -> bool:
    return file.startswith(_RUNTIME_FILES)


def _unlike(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[Any]:
    return [] if before == after else [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _signals(numbers: Iterable[int]) -> str:
    names = {int(number): number.name for number in signal.Signals}
    return _listed([names.get(number, f"signal {number}") for number in sorted(numbers)])


def _handler(number: int) -> bytes:
    if _libc.sigaction(number, None, _action) != 0:
        return b""  # reserved by the C library
    return _handler_of.tobytes()


def _umask() -> int:
    mask = os.umask(0o077)  # reading it requires setting it
    os.umask(mask)
    return mask


def _limit(name: str) -> tuple[int, int]:
    soft, hard = resource.getrlimit(getattr(resource, name))
    # While kernels run, the worker itself lowers the soft limit of the address space.
    return (0, hard) if name == "RLIMIT_AS" else (soft, hard)


def _variables() -> Iterator[tuple[bytes, bytes]]:
    """The environment of the C library, which Python's own copy does not follow."""
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    place = 0
    while pointer and (entry := pointer[place]) is not None:
        name, _, value = entry.partition(b"=")
        yield name, value
        place += 1


def _files() -> dict[int, str]:
    files = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names, not paths)
        with suppress(OSError):  # the descriptor of the listing itself
            files[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 (not always a path)
    return files


def _name() -> bytes:
    name = ctypes.create_string_buffer(16)
    _libc.prctl(_PR_GET_NAME, name, 0, 0, 0)
    return name.value


def _locked() -> int:
    """Locked memory, one fresh page counted: it is locked if a kernel has asked that all later pages be."""
    with mmap.mmap(-1, mmap.PAGESIZE):
        text = _text("/proc/self/status")
    place = text.find(b"\nVmLck:")
    return int(text[place:].split(None, 2)[1]) if place >= 0 else 0


def _text(path: str) -> bytes:
    """The text of a short system file, in a third of a Path's time: it is read around every run. Empty if this kernel
    does not have it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _orphans() -> frozenset[int]:
    keeper = os.getppid()
    try:
        listed = _text(f"/proc/{keeper}/task/{keeper}/children").split()
    except OSError:
        return frozenset()
    return frozenset(map(int, listed)) - {os.getpid()}


SETTLE_SECONDS = 0.2  # longer than thread pools usually spin, even on a busy machine
PATIENCE = 3
BURNT_SECONDS = 0.5  # seconds of CPU time after the last call; no thread pool spins that long by default
BURNING_SECONDS = 5.0  # until then a thread may have to wait for a core
_SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # variables with which a user lets threads spin


@dataclass(frozen=True)
class Waits:
    """Seconds that threads have run, and that they have waited for a core while ready to run."""

    ran: float
    waited: float

    def __add__(self, other: Waits) -> Waits:
        return Waits(self.ran + other.ran, self.waited + other.waited)

    def __sub__(self, other: Waits) -> Waits:
        return Waits(max(0.0, self.ran - other.ran), max(0.0, self.waited - other.waited))

    @property
    def share(self) -> float | None:
        """Share of the ready time spent waiting for a core; None if the system does not report it."""
        return self.waited / (self.ran + self.waited) if self.ran > 0.0 else None


class Threads:
    """Watches this process's other threads: a thread pool that spins after its run would slow the next timed run."""

    def __init__(self, scan: Callable[[Sequence[int]], bool | None] = lambda files: None) -> None:
        """`scan` returns quickly whether a thread with one of these files is running; None if it cannot know."""
        self._files: dict[str, int] = {}
        self._scan = scan
        self.restless = 0  # waits that timed out since the last look

    def look(self) -> None:
        """Find the current threads."""
        self.restless = 0
        self._find()

    def settle(self) -> None:
        """Wait until all of them sleep. After PATIENCE timeouts there is no more waiting."""
        if self.restless >= PATIENCE:
            return
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.running():
            if time.monotonic() >= deadline:
                self.restless += 1
                return
            time.sleep(50e-6)

    def running(self) -> bool:
        if not self._files:
            return False
        scanned = self._scan([*self._files.values()])
        return any(stat[0] == b"R" for _, stat in self._stats()) if scanned is None else scanned

    def waits(self) -> Waits:
        """The total over all threads of this process, each since its start."""
        ran = waited = 0
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 (names, not paths)
            with suppress(OSError, ValueError):
                first, second, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
                ran, waited = ran + int(first), waited + int(second)
        return Waits(ran * 1e-9, waited * 1e-9)

    def keeps_computing(self) -> bool:
        """Whether a thread continues to use CPU time between calls."""
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
        own = str(threading.get_native_id())
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
        """The system's statistics of each thread, beginning with its state."""
        for thread, file in self._files.items():
            with suppress(OSError):
                text = os.pread(file, 512, 0)
                # The state follows the command name, which is in parentheses and may contain anything.
                yield thread, text[text.rfind(b")") + 2 :].split()


def _ticks(stat: list[bytes]) -> int:
    """Clock ticks of CPU time that a thread has used."""
    return int(stat[11]) + int(stat[12])
