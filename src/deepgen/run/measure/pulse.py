"""The page of memory that supervisor and worker share: what the worker is doing, until when, and how it died.

It costs the worker a few stores a call and the supervisor nothing while a kernel is timed; a message would wake it.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

_SIZE = 1 << 16
_TABLE = 256  # where the table of buffers begins

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


class Stage(IntEnum):
    """What the worker is busy with. Kernel code runs in LOAD, PREPARE, VERIFY and TIME only."""

    IDLE = 0
    OWN = 1  # before the first call of this kernel
    LOAD = 2
    PREPARE = 3
    VERIFY = 4
    TIME = 5
    CHECK = 6  # our own work again, after the kernel has run
    JUDGE = 7  # the kernel runs whose results others are compared with

    @property
    def in_kernel(self) -> bool:
        return self in (Stage.LOAD, Stage.PREPARE, Stage.VERIFY, Stage.TIME, Stage.JUDGE)

    @property
    def after_load(self) -> bool:
        """Whether code of the kernel in question may have run by now."""
        return self.in_kernel or self is Stage.CHECK


class Fields(ctypes.Structure):
    """Mirrors `struct pulse` in harness.c."""

    _fields_ = (
        ("started", ctypes.c_double),
        ("limit", ctypes.c_double),
        ("stage", ctypes.c_int32),
        ("who", ctypes.c_int32),
        ("calls", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("write", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("exited", ctypes.c_int32),
        ("status", ctypes.c_int32),
        ("spare", ctypes.c_int32),  # the addresses are aligned
        ("address", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Place:
    """Where a buffer lies, so that an address can be described by the tensor's name."""

    name: str
    start: int
    bytes: int
    read_only: bool


class Pulse:
    """One side's view of the page."""

    def __init__(self, fd: int) -> None:
        # Not Python's own mmap: that keeps a descriptor open, and a kernel may write to any that it finds.
        address = _libc.mmap(None, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "the page shared with the worker cannot be mapped")
        weakref.finalize(self, _libc.munmap, address, _SIZE).atexit = False  # handlers may still write to it
        self._table = address + _TABLE
        self.fields = Fields.from_address(address)

    @staticmethod
    def create() -> tuple[Pulse, int]:
        """A fresh page and the file descriptor that a child opens it by."""
        fd = os.memfd_create("deepgen-pulse")  # no file: writing to a page of one on a full disk ends a process
        os.ftruncate(fd, _SIZE)
        return Pulse(fd), fd

    def enter(self, stage: Stage, limit: float, who: int = 0) -> None:
        """Begin a stage that must end within `limit` seconds."""
        fields = self.fields
        fields.started = time.monotonic()
        fields.limit = limit
        fields.who = who
        fields.stage = stage
        if stage in (Stage.VERIFY, Stage.TIME):
            fields.calls += 1

    @property
    def stage(self) -> Stage:
        try:
            return Stage(self.fields.stage)
        except ValueError:  # overwritten by a kernel
            return Stage.CHECK

    def left(self) -> float:
        """Seconds until the present stage is overdue."""
        left = float(self.fields.started + self.fields.limit - time.monotonic())
        return left if math.isfinite(left) else 0.0  # overwritten by a kernel

    def clear(self) -> None:
        """Before a new request."""
        ctypes.memset(ctypes.addressof(self.fields), 0, ctypes.sizeof(Fields))

    def tell(self, places: Sequence[Place]) -> None:
        """Write the table of buffers down before a kernel runs."""
        text = json.dumps([[p.name, p.start, p.bytes, p.read_only] for p in places]).encode()
        if len(text) <= _SIZE - _TABLE - 4:
            ctypes.memmove(self._table, len(text).to_bytes(4, "little") + text, 4 + len(text))

    def places(self) -> list[Place]:
        table = ctypes.string_at(self._table, _SIZE - _TABLE)
        length = int.from_bytes(table[:4], "little")
        try:
            rows = json.loads(table[4 : 4 + length] or b"[]")
            return [Place(str(n), int(s), int(b), bool(r)) for n, s, b, r in rows]
        except (ValueError, TypeError):  # overwritten by a kernel
            return []
