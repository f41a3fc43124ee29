"""Facts about a shared library, from its ELF file."""

from __future__ import annotations

import struct

_EXECUTABLE = 0x4  # the section's flag
_DYNAMIC_SYMBOLS = 11  # the section's type


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


def symbols(image: bytes) -> list[str]:
    """The names that a shared library defines for others. Raises ValueError where it is none."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    try:
        (table,) = struct.unpack_from("<Q", image, 0x28)
        size, count = struct.unpack_from("<HH", image, 0x3A)
        headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * size) for i in range(count)]
        found = []
        for _, kind, _, _, at, length, link, _, _, entry in headers:
            if kind != _DYNAMIC_SYMBOLS or not entry:
                continue
            texts = headers[link][4]
            for place in range(at, at + length, entry):
                name, _, _, section = struct.unpack_from("<IBBH", image, place)
                if name and section:
                    found.append(image[texts + name : image.index(b"\0", texts + name)].decode())
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"a library whose symbols cannot be read ({error})") from error
    return found
