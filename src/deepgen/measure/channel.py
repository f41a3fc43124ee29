"""Messages between supervisor and worker: a length, then JSON, over a socket of their own.

Standard output is left to the kernels, which may print whatever they like.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEAD = struct.Struct("<II")
_MAGIC = 0x64_67_6E_31
_LONGEST = 1 << 28


class Closed(Exception):
    """The other side is gone."""


class Garbled(Exception):
    """What came is no message of ours."""


class Channel:
    """One end of the conversation."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        text = json.dumps(message).encode()
        try:
            self._socket.sendall(_HEAD.pack(_MAGIC, len(text)) + text)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self) -> Any:
        magic, length = _HEAD.unpack(self._exactly(_HEAD.size))
        if magic != _MAGIC or length > _LONGEST:
            raise Garbled("a message without its mark")
        try:
            return json.loads(self._exactly(length))
        except ValueError as error:
            raise Garbled(str(error)) from error

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except OSError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed("end of stream")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
