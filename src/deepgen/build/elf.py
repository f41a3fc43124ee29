"""Facts about a shared library, from its ELF file."""

from __future__ import annotations

import struct

_EXECUTABLE = 0x4  # the section's flag


def code_bytes(image: bytes) -> int:
    """Bytes of machine code in a 64-bit little-endian ELF file. Raises ValueError when it is not one, or torn."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    try:
        (table,) = struct.unpack_from("<Q", image, 0x28)
        size, count = struct.unpack_from("<HH", image, 0x3A)
        total = 0
        for i in range(count):
            flags, _, _, length = struct.unpack_from("<QQQQ", image, table + i * size + 8)
            total += length if flags & _EXECUTABLE else 0
    except struct.error as error:
        raise ValueError("a torn ELF file") from error
    return total
