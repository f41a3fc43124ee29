"""Messages between supervisor and worker: a length, the number of the request, then JSON, over a socket of their own.

Standard output is left to the kernels, which may print whatever they like. A request's number is random, and its answer
repeats it: what a kernel writes to files that it finds open is not taken for an answer. The socket has a random high
number among the worker's files, where a kernel that closes or writes to the first few does not meet it.
"""

from __future__ import annotations

import fcntl
import json
import resource
import secrets
import socket
import struct
from typing import Any

_HEAD = struct.Struct("<II16s")
_MAGIC = 0x64_67_6E_32
_LONGEST = 1 << 28
_HIGHEST = 4096  # file numbers: the system keeps a table up to the highest one in use


class Closed(Exception):
    """The other side is gone."""


class Garbled(Exception):
    """What arrived is not one of our messages."""


class Channel:
    """One end of the conversation."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._request = b""  # the number of the present one
        self._buffer = b""  # what has come of its answer

    @staticmethod
    def hidden(fd: int) -> Channel:
        """The worker's end, moved away from the numbers that files usually have."""
        end = socket.socket(fileno=fd)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _HIGHEST if soft < 0 else min(soft, _HIGHEST)
        number = most // 2 + secrets.randbelow(max(1, most // 2 - 16))
        with end:
            return Channel(socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, number)))

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, message: Any) -> None:
        """Send a request."""
        self._request = secrets.token_bytes(16)
        self._send(message)

    def take_answer(self) -> Any:
        """The answer once all of it is there, None before. Does not wait: a kernel may have written a part of one."""
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
        """Answer the last request that was received."""
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
    """The number of the request and the length of what follows."""
    magic, length, request = _HEAD.unpack_from(head)
    if magic != _MAGIC or length > _LONGEST:
        raise Garbled("a message without its mark")
    return request, length


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Garbled(str(error)) from error
