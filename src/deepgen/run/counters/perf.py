"""Linux perf events around the calls of a kernel, without the perf program; event names are those of `perf list`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Protocol, TypeAlias

from deepgen.run.counters import Counted

RUNS = 3  # the median counts
SECONDS = 2.0  # after which a group of events is not run again
AT_ONCE = 4  # events: cores have about this many counters besides those for cycles and instructions
Call: TypeAlias = "Callable[[], object]"
Between: TypeAlias = "Callable[[Call, Call], None]"
_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
_ENABLE, _DISABLE = 32, 31  # of prctl: for all events that this thread opened
_ATTRIBUTE_BYTES = 128
_TIMES = 1 | 2  # with the value, the times for which it was enabled and counted
_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1, 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class System(Protocol):
    """The calls to the operating system."""

    def threads(self) -> list[int]: ...

    def open(self, attribute: bytes, thread: int) -> int:
        """A file that counts for one thread and the threads it starts. Raises OSError."""
        ...

    def enable(self) -> object: ...

    def disable(self) -> object: ...

    def read(self, file: int) -> bytes: ...

    def close(self, file: int) -> None: ...


class Linux:
    """The real operating system."""

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

    If more events are requested than a core has counters, each is counted for only a part of the time. So few are
    counted at once, and fewer still if they have to share; only an event that is multiplexed even alone is scaled.
    """
    events, missing = [], {}
    for name in names:
        try:
            events.append(find(name))
        except NoEvent as error:
            missing[name] = str(error)
    # Software events use no counter, but each needs a file per thread.
    kinds = [[event for event in events if event.of_hardware is hardware] for hardware in (True, False)]
    groups = [kind[i : i + AT_ONCE] for kind in kinds for i in range(0, len(kind), AT_ONCE)]
    total = Counted(missing=missing)
    while groups:
        group = groups.pop(0)
        counted = _counted(group, run, system)
        if counted.scaled and len(group) > 1:
            groups[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
        else:
            total |= counted
    values = {name: total.values[name] for name in names if name in total.values}
    return Counted(values, total.missing, tuple(name for name in total.scaled if name in values))


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
    missing.update(dict.fromkeys((n for n in files if n not in taken), "no hardware counter was free for it"))
    values = {name: median(value for value, _ in runs) for name, runs in taken.items()}
    # An event that got no counter also counts as shared: alone it may get one.
    shared = [name for name in files if name not in taken or any(part for _, part in taken[name])]
    return Counted(values, missing, tuple(shared))


def _opened(event: Event, system: System) -> list[int]:
    """A file for each existing thread. Threads that start later are counted with the thread that starts them."""
    files: list[int] = []
    attribute = _attribute(event)
    try:
        for thread in system.threads():
            try:
                files.append(system.open(attribute, thread))
            except ProcessLookupError:  # it has ended in the meantime
                continue
    except OSError:
        for file in files:
            system.close(file)
        raise
    return files


def _attribute(event: Event) -> bytes:
    """Linux's struct perf_event_attr: initially disabled, inherited by children, and for user code only."""
    flags = _DISABLED | _INHERIT | _NO_HYPERVISOR | (0 if event.in_the_system else _NO_KERNEL)
    head = struct.pack("=IIQQQQQ", event.type, _ATTRIBUTE_BYTES, event.config, 0, 0, _TIMES, flags)
    return (head + struct.pack("=IIQQ", 0, 0, event.config1, event.config2)).ljust(_ATTRIBUTE_BYTES, b"\0")


def _total(files: Sequence[int], system: System) -> tuple[int, int, int]:
    """The value over all threads, and the times for which it was enabled and counted."""
    rows = [struct.unpack("=QQQ", system.read(file)) for file in files]
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)


def _why(error: OSError, event: Event) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        level = "unknown"
        with suppress(OSError):
            level = _PARANOID.read_text().strip()
        most = 1 if event.in_the_system else 2
        return f"not permitted: {_PARANOID} is {level} and must be {most} or less; a container may also forbid it"
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENXIO):
        return "there is no hardware counter for it; virtual machines often have none"
    if error.errno == errno.ENOSYS:
        return "the system has no perf events"
    if error.errno == errno.EINVAL:
        return "it cannot be counted for a single process"
    return f"the system refuses it: {os.strerror(error.errno or 0)}"


DEVICES = Path("/sys/bus/event_source/devices")
HARDWARE, SOFTWARE, CACHE, RAW = 0, 1, 3, 4
_HARDWARE = {
    "cycles": 0, "cpu-cycles": 0, "instructions": 1, "cache-references": 2, "cache-misses": 3,
    "branches": 4, "branch-instructions": 4, "branch-misses": 5, "bus-cycles": 6,
    "stalled-cycles-frontend": 7, "idle-cycles-frontend": 7,
    "stalled-cycles-backend": 8, "idle-cycles-backend": 8, "ref-cycles": 9,
}  # fmt: skip
_SOFTWARE = {
    "cpu-clock": 0, "task-clock": 1, "page-faults": 2, "faults": 2, "context-switches": 3, "cs": 3,
    "cpu-migrations": 4, "migrations": 4, "minor-faults": 5, "major-faults": 6,
    "alignment-faults": 7, "emulation-faults": 8,
}  # fmt: skip
# What the system does on behalf of a program: without counting in kernel mode these would always be 0.
_IN_THE_SYSTEM = {3, 4}
_CACHES = {"L1-dcache": 0, "L1-icache": 1, "LLC": 2, "dTLB": 3, "iTLB": 4, "branch": 5, "node": 6}
_ACCESSES = {
    "loads": 0, "load-misses": 1 << 8, "stores": 1, "store-misses": 1 | 1 << 8,
    "prefetches": 2, "prefetch-misses": 2 | 1 << 8,
}  # fmt: skip
_BY_NAME = {
    **{name: (HARDWARE, config) for name, config in _HARDWARE.items()},
    **{name: (SOFTWARE, config) for name, config in _SOFTWARE.items()},
    **{
        f"{cache}-{access}": (CACHE, place | kind << 8)
        for cache, place in _CACHES.items()
        for access, kind in _ACCESSES.items()
    },
}
_RAW = re.compile(r"r([0-9a-fA-F]{1,16})")
_OF_DEVICE = re.compile(r"([^/]+)/([^/]+)/")
_FIELD = re.compile(r"(config[12]?):([\d,-]+)")


class NoEvent(Exception):
    """Why a name is not an event that can be counted here."""


@dataclass(frozen=True)
class Event:
    """One event in the form that the system takes."""

    name: str
    type: int
    config: int = 0
    config1: int = 0
    config2: int = 0

    @property
    def of_hardware(self) -> bool:
        """Whether it uses one of a core's few hardware counters."""
        return self.type != SOFTWARE

    @property
    def in_the_system(self) -> bool:
        return self.type == SOFTWARE and self.config in _IN_THE_SYSTEM


def find(name: str, devices: Path = DEVICES) -> Event:
    """The event with this name. Raises NoEvent."""
    plain = name[:-2] if name.endswith(":u") else name  # events are counted in user mode anyway
    if plain in _BY_NAME:
        return Event(name, *_BY_NAME[plain])
    if raw := _RAW.fullmatch(plain):
        return Event(name, RAW, int(raw[1], 16))
    if match := _OF_DEVICE.fullmatch(plain):
        return replace(_of_device(devices / match[1], match[2]), name=name)
    for device in sorted(devices.glob("*")):
        if (device / "events" / plain).is_file():
            return replace(_of_device(device, plain), name=name)
    raise NoEvent("no such event; `perf list` shows the names")


def _of_device(device: Path, words: str) -> Event:
    """An event that a device lists by name, or one spelled out, such as event=0x17,umask=0x1."""
    kind = _text(device / "type")
    if kind is None or not kind.isdigit():
        raise NoEvent(f"there is no PMU {device.name}")
    if "=" not in words:
        listed = _text(device / "events" / words)
        if listed is None:
            raise NoEvent(f"{device.name} lists no event {words}")
        words = listed
    configs = {"config": 0, "config1": 0, "config2": 0}
    for word in words.split(","):
        field, _, value = word.partition("=")
        where, placed = _placed(device, field, value or "1")
        configs[where] |= placed
    return Event("", int(kind), **configs)


def _placed(device: Path, field: str, value: str) -> tuple[str, int]:
    """Place a field's value in the bits that the device specifies, such as config:0-7,32-35."""
    form = "config:0-63" if field == "config" else _text(device / "format" / field) or ""
    match = _FIELD.fullmatch(form)
    try:
        number = int(value, 0)
    except ValueError:
        raise NoEvent(f"{device.name} needs a number for {field}") from None
    if match is None:
        raise NoEvent(f"{device.name} has no field {field}")
    placed = 0
    for bits in match[2].split(","):
        low, _, high = bits.partition("-")
        width = int(high or low) - int(low) + 1
        placed |= (number & ((1 << width) - 1)) << int(low)
        number >>= width
    if number:
        raise NoEvent(f"{value} is too large for {field} of {device.name}")
    return match[1], placed


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
