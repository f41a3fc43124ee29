"""Linux perf events around the calls of a kernel, without the program perf."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Protocol, TypeAlias

from deepgen.run.counters.counted import Counted
from deepgen.run.counters.perf_names import Event, NoEvent, find

RUNS = 3  # of which the median counts
SECONDS = 2.0  # after which a group of events has been run often enough
AT_ONCE = 4  # events: cores have about so many counters beside those for cycles and instructions

Call: TypeAlias = "Callable[[], object]"
Between: TypeAlias = "Callable[[Call, Call], None]"

_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
_ENABLE, _DISABLE = 32, 31  # of prctl: all events that this thread opened, at once
_ATTRIBUTE_BYTES = 128
_TIMES = 1 | 2  # beside the value, how long it was wanted and how long it was counted
_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1, 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class System(Protocol):
    """What is asked of the operating system."""

    def threads(self) -> list[int]: ...

    def open(self, attribute: bytes, thread: int) -> int:
        """A file that counts for one thread and those that it starts. Raises OSError."""
        ...

    def enable(self) -> object: ...

    def disable(self) -> object: ...

    def read(self, file: int) -> bytes: ...

    def close(self, file: int) -> None: ...


class Linux:
    """The real one."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._syscall, prctl = libc.syscall, libc.prctl
        self._number = _SYSCALL.get(platform.machine())
        self.enable: Call = lambda: prctl(_ENABLE, 0, 0, 0, 0)
        self.disable: Call = lambda: prctl(_DISABLE, 0, 0, 0, 0)

    def threads(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc/self/task")]  # noqa: PTH208 (names, not paths)

    def open(self, attribute: bytes, thread: int) -> int:
        if self._number is None:
            raise OSError(errno.ENOSYS, "unknown machine")
        file = self._syscall(self._number, ctypes.c_char_p(attribute), thread, -1, -1, _CLOSE_ON_EXEC)
        if file < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")
        return int(file)

    def read(self, file: int) -> bytes:
        return os.read(file, 24)

    def close(self, file: int) -> None:
        os.close(file)


def count(names: Sequence[str], run: Between, system: System) -> Counted:
    """Count these events in runs of a kernel. `run` does one, calling its arguments right before and right after.

    More events than a core has counters take turns, each for a part of the time. So few are asked for at once, fewer
    where they still take turns, and only an event that does so all by itself is scaled.
    """
    events, missing = [], {}
    for name in names:
        try:
            events.append(find(name))
        except NoEvent as error:
            missing[name] = str(error)
    # Software events take no counter, but each takes a file for every thread.
    kinds = [[event for event in events if event.of_hardware is hardware] for hardware in (True, False)]
    groups = [kind[i : i + AT_ONCE] for kind in kinds for i in range(0, len(kind), AT_ONCE)]
    found = Counted(missing=missing)
    while groups:
        group = groups.pop(0)
        counted = _counted(group, run, system)
        if counted.scaled and len(group) > 1:
            groups[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
        else:
            found |= counted
    values = {name: found.values[name] for name in names if name in found.values}
    return Counted(values, found.missing, tuple(name for name in found.scaled if name in values))


def _counted(group: Sequence[Event], run: Between, system: System) -> Counted:
    files: dict[str, list[int]] = {}
    missing: dict[str, str] = {}
    taken: dict[str, list[tuple[float, bool]]] = {}
    try:
        for event in group:
            try:
                files[event.name] = _opened(event, system)
            except OSError as error:
                missing[event.name] = _why(error, event)
        began = time.monotonic()
        for number in range(RUNS if files else 0):
            if number and time.monotonic() - began > SECONDS:
                break
            before = {name: _total(opened, system) for name, opened in files.items()}
            run(system.enable, system.disable)
            for name, opened in files.items():
                value, wanted, counted = (b - a for a, b in zip(before[name], _total(opened, system), strict=True))
                if counted > 0:
                    taken.setdefault(name, []).append((value * (wanted / counted), counted < wanted))
    finally:
        for file in (file for opened in files.values() for file in opened):
            system.close(file)
    missing.update(dict.fromkeys((n for n in files if n not in taken), "it never got one of the core's counters"))
    values = {name: median(value for value, _ in runs) for name, runs in taken.items()}
    # One that got no counter at all shared them with the others as well: alone it may have one.
    shared = [name for name in files if name not in taken or any(part for _, part in taken[name])]
    return Counted(values, missing, tuple(shared))


def _opened(event: Event, system: System) -> list[int]:
    """A file for each thread that there is. Those that start later are counted with the thread that starts them."""
    files: list[int] = []
    attribute = _attribute(event)
    try:
        for thread in system.threads():
            try:
                files.append(system.open(attribute, thread))
            except ProcessLookupError:  # it has ended meanwhile
                continue
    except OSError:
        for file in files:
            system.close(file)
        raise
    return files


def _attribute(event: Event) -> bytes:
    """Linux's struct perf_event_attr: stopped at first, with children, and of the program's own doing only."""
    flags = _DISABLED | _INHERIT | _NO_HYPERVISOR | (0 if event.in_the_system else _NO_KERNEL)
    head = struct.pack("=IIQQQQQ", event.type, _ATTRIBUTE_BYTES, event.config, 0, 0, _TIMES, flags)
    return (head + struct.pack("=IIQQ", 0, 0, event.config1, event.config2)).ljust(_ATTRIBUTE_BYTES, b"\0")


def _total(files: Sequence[int], system: System) -> tuple[int, int, int]:
    """The value over all threads, and for how long it was wanted and counted."""
    rows = [struct.unpack("=QQQ", system.read(file)) for file in files]
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)


def _why(error: OSError, event: Event) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        level = "unknown"
        with suppress(OSError):
            level = _PARANOID.read_text().strip()
        most = 1 if event.in_the_system else 2
        return f"not permitted: {_PARANOID} is {level} and must be {most} or less; a container may forbid it, too"
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENXIO):
        return "the system has no hardware counter for it; virtual machines often have none"
    if error.errno == errno.ENOSYS:
        return "the system has no perf events"
    if error.errno == errno.EINVAL:
        return "the system cannot count it for a single program"
    return f"the system refuses it: {os.strerror(error.errno or 0)}"
