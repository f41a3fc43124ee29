"""Facts about shared libraries and AMDGPU code objects, from their ELF files.

Statistics of the kernels in a code object are in a note in MessagePack format, described in LLVM's user guide for the
AMDGPU backend. Only the types that such notes use are decoded.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

_EXECUTABLE = 0x4  # a section flag
_NOTE_SECTION, _DYNAMIC_SYMBOLS = 7, 11  # section types
_METADATA = 32  # a note type


def code_bytes(image: bytes) -> int:
    """Bytes of machine code in a 64-bit little-endian ELF file. Raises ValueError for other or truncated files."""
    return sum(section.length for section in _sections(image) if section.flags & _EXECUTABLE)


def symbols(image: bytes) -> list[str]:
    """The names that a shared library exports. Raises ValueError if it is not a library."""
    sections, names = _sections(image), []
    try:
        for table in sections:
            if table.kind != _DYNAMIC_SYMBOLS or not table.entry:
                continue
            texts = sections[table.link].place
            for place in range(table.place, table.place + table.length, table.entry):
                name, _, _, section = struct.unpack_from("<IBBH", image, place)
                if name and section:
                    names.append(image[texts + name : image.index(b"\0", texts + name)].decode())
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"a library whose symbols cannot be read ({error})") from error
    return names


class _Section(NamedTuple):
    """Elf64_Shdr."""

    name: int
    kind: int
    flags: int
    address: int
    place: int
    length: int
    link: int
    info: int
    align: int
    entry: int


def _sections(image: bytes) -> list[_Section]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    try:
        (table,) = struct.unpack_from("<Q", image, 0x28)
        size, count = struct.unpack_from("<HH", image, 0x3A)
        return [_Section(*struct.unpack_from("<IIQQQQIIQQ", image, table + i * size)) for i in range(count)]
    except struct.error as error:
        raise ValueError("a truncated ELF file") from error


def kernels(image: bytes) -> list[dict[str, Any]]:
    """One mapping per kernel, with keys such as `.name` and `.vgpr_count`. Raises ValueError if there is no note."""
    try:
        return [dict(kernel) for kernel in _MessagePack(_note(image)).value()["amdhsa.kernels"]]
    except (struct.error, KeyError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"a code object whose metadata cannot be read ({error})") from error


def _note(image: bytes) -> bytes:
    for section in _sections(image):
        at, end = section.place, section.place + section.length
        while section.kind == _NOTE_SECTION and at + 12 <= end:
            name, description, note = struct.unpack_from("<III", image, at)
            start = at + 12 + -(-name // 4) * 4
            if note == _METADATA:
                return image[start : start + description]
            at = start + -(-description // 4) * 4
    raise ValueError("a code object without metadata")


class _MessagePack:
    """Decodes MessagePack's maps, arrays, strings, integers, booleans and nil."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def value(self) -> Any:
        kind = self._number(">B")
        if kind <= 0x7F:
            return kind
        if kind <= 0x8F:
            return self._map(kind & 0x0F)
        if kind <= 0x9F:
            return self._array(kind & 0x0F)
        if kind <= 0xBF:
            return self._text(kind & 0x1F)
        if kind >= 0xE0:
            return kind - 256
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind in _SIZED:
            form, read = _SIZED[kind]
            return read(self, self._number(form))
        raise ValueError(f"a code object whose metadata has a value of unknown kind {kind:#x}")

    def _number(self, form: str) -> int:
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(number)

    def _map(self, size: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(size)}

    def _array(self, size: int) -> list[Any]:
        return [self.value() for _ in range(size)]

    def _text(self, size: int) -> str:
        self._at += size
        return self._data[self._at - size : self._at].decode()


_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_SIZED: dict[int, tuple[str, Any]] = {
    0xD9: (">B", _MessagePack._text),
    0xDA: (">H", _MessagePack._text),
    0xDB: (">I", _MessagePack._text),
    0xDC: (">H", _MessagePack._array),
    0xDD: (">I", _MessagePack._array),
    0xDE: (">H", _MessagePack._map),
    0xDF: (">I", _MessagePack._map),
}
