"""Events of Linux's perf by the names that `perf list` gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

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
# What the system does on behalf of a program. Without the system's own mode these would always be 0.
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
    """Why a name stands for nothing that can be counted here."""


@dataclass(frozen=True)
class Event:
    """One event as the system takes it."""

    name: str
    type: int
    config: int = 0
    config1: int = 0
    config2: int = 0

    @property
    def of_hardware(self) -> bool:
        """Whether it takes one of the few counters that a core has."""
        return self.type != SOFTWARE

    @property
    def in_the_system(self) -> bool:
        return self.type == SOFTWARE and self.config in _IN_THE_SYSTEM


def find(name: str, devices: Path = DEVICES) -> Event:
    """The event of a name. Raises NoEvent."""
    plain = name[:-2] if name.endswith(":u") else name  # only what a program does itself is counted anyway
    if plain in _BY_NAME:
        return Event(name, *_BY_NAME[plain])
    if raw := _RAW.fullmatch(plain):
        return Event(name, RAW, int(raw[1], 16))
    if told := _OF_DEVICE.fullmatch(plain):
        return replace(_of_device(devices / told[1], told[2]), name=name)
    for device in sorted(devices.glob("*")):
        if (device / "events" / plain).is_file():
            return replace(_of_device(device, plain), name=name)
    raise NoEvent("no such event here: names are those of `perf list`")


def _of_device(device: Path, words: str) -> Event:
    """An event that a device lists by name, or one spelled out as event=0x17,umask=0x1."""
    kind = _text(device / "type")
    if kind is None or not kind.isdigit():
        raise NoEvent(f"no counting device {device.name} here")
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
    """A field's value where the device wants it, such as config:0-7,32-35."""
    form = "config:0-63" if field == "config" else _text(device / "format" / field) or ""
    found = _FIELD.fullmatch(form)
    try:
        number = int(value, 0)
    except ValueError:
        raise NoEvent(f"{device.name} wants a number for {field}") from None
    if found is None:
        raise NoEvent(f"{device.name} has no field {field}")
    placed = 0
    for bits in found[2].split(","):
        low, _, high = bits.partition("-")
        width = int(high or low) - int(low) + 1
        placed |= (number & ((1 << width) - 1)) << int(low)
        number >>= width
    if number:
        raise NoEvent(f"{value} is too large for {field} of {device.name}")
    return found[1], placed


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
