"""The channel between supervisor and worker: messages over a private socket, and a shared page of memory.

A message is a length, the number of the request, then JSON. Standard output is left to the kernels, which may print
anything. A request's number is random, and its answer repeats it, so that data that a kernel writes to open files is
not mistaken for an answer. The socket has a random high file descriptor, so that a kernel that closes or writes to low
ones does not hit it.

The page records what the worker is doing, its deadline, and how it died. It costs the worker a few stores per call, and
the supervisor nothing while a kernel is timed; a message would wake the supervisor.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import math
import mmap
import os
import resource
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_HEAD = struct.Struct("<II16s")
_MAGIC = 0x64_67_6E_32
_LONGEST = 1 << 28
LOST_CHANNEL = 70  # a worker's exit code if its channel is closed but the supervisor is alive
GUARD = 2 << 20  # bytes around a buffer: they cost only address space, and catch strides that jump over a page
_HIGHEST = 4096  # file descriptors: the system keeps a table up to the highest one in use


class Closed(Exception):
    """The other side is closed."""


class Garbled(Exception):
    """The received data is not one of our messages."""


class Channel:
    """One end of the channel."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._request = b""  # the number of the current request
        self._buffer = b""  # the received part of its answer

    @staticmethod
    def hidden(fd: int) -> Channel:
        """The worker's end, moved away from the usual numbers of file descriptors."""
        end = socket.socket(fileno=fd)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _HIGHEST if soft < 0 else min(soft, _HIGHEST)
        number = most // 2 + int.from_bytes(os.urandom(8), "little") % max(1, most // 2 - 16)
        with end:
            return Channel(socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, number)))

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, message: Any) -> None:
        """Send a request."""
        self._request = os.urandom(16)
        self._send(message)

    def take_answer(self) -> Any:
        """The answer once it is complete, None before. Does not wait: a kernel may have written part of one."""
        self._buffer += self._received(_LONGEST, socket.MSG_DONTWAIT)
        if len(self._buffer) < _HEAD.size:
            return None
        request, length = _opened(self._buffer)
        if request != self._request:
            raise Garbled("an answer to another request")
        if len(self._buffer) < _HEAD.size + length:
            return None
        text, self._buffer = self._buffer[_HEAD.size :], b""
        if len(text) > length:
            raise Garbled("more than one answer")
        return _parsed(text)

    def receive_request(self) -> Any:
        self._request, length = _opened(self._exactly(_HEAD.size))
        return _parsed(self._exactly(length))

    def answer(self, message: Any) -> None:
        """Answer the last received request."""
        self._send(message)

    def close(self) -> None:
        self._socket.close()

    def _send(self, message: Any) -> None:
        text = json.dumps(message).encode()
        try:
            self._socket.sendall(_HEAD.pack(_MAGIC, len(text), self._request) + text)
        except OSError as error:
            raise Closed(str(error)) from error

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._received(count)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _received(self, most: int, flags: int = 0) -> bytes:
        try:
            part = self._socket.recv(min(most, 1 << 20), flags)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Closed(str(error)) from error
        if not part:
            raise Closed("end of stream")
        return part


def _opened(head: bytes) -> tuple[bytes, int]:
    """The request's number and the length of the text."""
    magic, length, request = _HEAD.unpack_from(head)
    if magic != _MAGIC or length > _LONGEST:
        raise Garbled("a message without its mark")
    return request, length


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Garbled(str(error)) from error


_SIZE = 1 << 16
_TABLE = 256  # offset of the table of buffers
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


class WorkerStage(IntEnum):
    """What the worker is doing. `in_kernel`: whether kernel code runs in a stage."""

    IDLE = 0
    OWN = 1  # before the first call of this kernel
    LOAD = 2
    PREPARE = 3
    VERIFY = 4
    TIME = 5
    CHECK = 6  # our own code again, after the kernel has run
    JUDGE = 7  # running the kernel whose results others are compared with
    OFF = 8  # a verifying run with arrays aligned only as promised
    THREADS = 9  # calls from several threads at once
    APART = 10  # a verifying run with arrays that are each aligned in another way

    @property
    def in_kernel(self) -> bool:
        return self not in (WorkerStage.IDLE, WorkerStage.OWN, WorkerStage.CHECK)

    @property
    def after_load(self) -> bool:
        """Whether code of the loaded kernel may have run by now."""
        return self.in_kernel or self is WorkerStage.CHECK


DOING = {
    WorkerStage.LOAD: "while loading",
    WorkerStage.PREPARE: "while preparing its data",
    WorkerStage.VERIFY: "in a verification run",
    WorkerStage.TIME: "in a timed run",
    WorkerStage.CHECK: "after it had run, so it corrupted the process",
    WorkerStage.OFF: "with arrays aligned only to their element size",
    WorkerStage.APART: "with arrays that are aligned differently from each other",
    WorkerStage.THREADS: "when called from several threads at once",
    WorkerStage.JUDGE: "in the reference kernel",
}


class Fields(ctypes.Structure):
    """Matches `struct pulse` in harness.c."""

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
        ("spare", ctypes.c_int32),  # aligns the addresses
        ("address", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class BufferPlace:
    """The location of a buffer, so that an address can be described by the tensor's name."""

    name: str
    start: int
    bytes: int
    read_only: bool


class Pulse:
    """One side's mapping of the page."""

    def __init__(self, fd: int) -> None:
        # Not Python's own mmap, which keeps a descriptor open that a kernel may write to.
        address = _libc.mmap(None, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "the page shared with the worker cannot be mapped")
        weakref.finalize(self, _libc.munmap, address, _SIZE).atexit = False  # signal handlers may still write to it
        self._table = address + _TABLE
        self.fields = Fields.from_address(address)

    @staticmethod
    def create() -> tuple[Pulse, int]:
        """A new page, and the file descriptor with which a child maps it."""
        fd = os.memfd_create("page")  # not a file: on a full disk, writing to its page kills the process
        os.ftruncate(fd, _SIZE)
        return Pulse(fd), fd

    def enter(self, stage: WorkerStage, limit: float, who: int = 0) -> None:
        """Begin a stage that must end within `limit` seconds."""
        fields = self.fields
        fields.started = time.monotonic()
        fields.limit = limit
        fields.who = who
        fields.stage = stage
        if stage in (WorkerStage.VERIFY, WorkerStage.TIME, WorkerStage.OFF, WorkerStage.APART):
            fields.calls += 1

    @property
    def stage(self) -> WorkerStage:
        try:
            return WorkerStage(self.fields.stage)
        except ValueError:  # overwritten by a kernel
            return WorkerStage.CHECK

    def left(self) -> float:
        """Seconds until the current stage exceeds its limit."""
        left = float(self.fields.started + self.fields.limit - time.monotonic())
        return left if math.isfinite(left) else 0.0  # overwritten by a kernel

    def clear(self) -> None:
        """Reset before a new request."""
        ctypes.memset(ctypes.addressof(self.fields), 0, ctypes.sizeof(Fields))

    def tell(self, places: Sequence[BufferPlace]) -> None:
        """Write the table of buffers before a kernel runs."""
        text = json.dumps([[p.name, p.start, p.bytes, p.read_only] for p in places]).encode()
        if len(text) <= _SIZE - _TABLE - 4:
            ctypes.memmove(self._table, len(text).to_bytes(4, "little") + text, 4 + len(text))

    def places(self) -> list[BufferPlace]:
        table = ctypes.string_at(self._table, _SIZE - _TABLE)
        length = int.from_bytes(table[:4], "little")
        try:
            rows = json.loads(table[4 : 4 + length] or b"[]")
            return [BufferPlace(str(n), int(s), int(b), bool(r)) for n, s, b, r in rows]
        except (ValueError, TypeError):  # overwritten by a kernel
            return []
