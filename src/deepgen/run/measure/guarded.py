"""Guarded memory: a kernel's out-of-bounds writes are detected, by a fault or by a canary.

Each buffer is a mapping of its own. Its end touches a guard region that cannot be read or written. A gap left by the
alignment, and the space from the lower guard to the start, are filled with canary bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from enum import Enum
from typing import Any

import numpy as np

from deepgen.operators import Array
from deepgen.run.measure.channel import GUARD, BufferPlace
from deepgen.run.measure.harness import StepKind


class Placement(Enum):
    """Where tensors are placed. A call's arrays are aligned as their parameters promise: to their elements, unless more
    is declared."""

    LINES = "lines"  # at cache lines, where kernels are timed, and where torch's tensors begin
    BEHIND = "behind"  # 16 bytes behind one, where numpy's large arrays begin: timed too, beside numpy
    TIGHT = "tight"  # no byte between their end and the guard
    OFF = "off"  # aligned only as promised: a kernel that assumes a cache line's alignment traps or is wrong
    # Each tensor with another part of a line before it, as a user's arrays have: 16 bytes are common. A kernel that
    # looks at one tensor's address, and takes the others to be alike, traps or is wrong.
    APART_0, APART_1, APART_2 = "apart 0", "apart 1", "apart 2"

    @property
    def timed(self) -> bool:
        """Whether kernels are timed there."""
        return self in (Placement.LINES, Placement.BEHIND)

    @staticmethod
    def apart(run: int) -> Placement:
        return _APART[run % len(_APART)]

    def border(self, promised: int, number: int = 0) -> tuple[int, int]:
        """The alignment of addresses, and an offset in bytes added to it, for the tensor of this number."""
        if self is Placement.TIGHT:
            return promised, 0
        if self is Placement.BEHIND:
            return max(_LINE, promised), _BEHIND if promised <= _BEHIND else 0
        line = max(_LINE, 2 * promised)
        if self in _APART:
            parts = [line >> halvings for halvings in (1, 2, 3) if line >> halvings >= promised]
            return line, parts[(_APART.index(self) + number) % len(parts)]
        return (line, promised) if self is Placement.OFF else (max(_LINE, promised), 0)


_APART = (Placement.APART_0, Placement.APART_1, Placement.APART_2)


CANARY = 0xC5
_LINE, _BEHIND = 64, 16
_HUGE = 2 << 20
_HUGE_FROM = 4 << 20  # numpy requests huge pages from this size on, so we do too for comparability
_AROUND = 64 << 10  # bytes on each side that timed runs may read: at least a page, whatever its size
_NONE, _READ, _WRITE = 0, 1, 2
_PRIVATE, _ANONYMOUS, _NORESERVE = 0x02, 0x20, 0x4000
_MADV_HUGEPAGE = 14
_MOVED_THERE = 1 | 2 | 4  # flags of mremap: to this address, and the source stays mapped
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """One buffer with guards on both sides. Its address is a multiple of `align` plus `off` bytes."""

    def __init__(self, name: str, size: int, align: int = _LINE, off: int = 0) -> None:
        self.name, self.bytes = name, size
        page = mmap.PAGESIZE
        if align > page:
            raise MemoryError(f"{name}: an alignment of {align} bytes exceeds a page")
        self._body = max(page, -(-(size + (align if off else -size % align)) // page) * page)
        whole = self._body + 2 * GUARD + _HUGE
        base = _libc.mmap(None, whole, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"no memory for the {size} bytes of {name}: {os.strerror(ctypes.get_errno())}")
        self._mapped = [(base, whole)]
        # Ending large buffers at a huge page's boundary gives them the same pages in every worker.
        end = base + GUARD + self._body
        end = -(-end // _HUGE) * _HUGE if self._body >= _HUGE_FROM else end
        self._first, self._end = end - self._body, end
        self.protect(read_only=False)
        if self._body >= _HUGE_FROM:
            _libc.madvise(self._first, self._body, _MADV_HUGEPAGE)
        self.start = (end - size - off) // align * align + off
        self.all: Array = _bytes_at(self.start, size)
        past = self.start + size
        self._canaries = (_bytes_at(self._first, self.start - self._first), _bytes_at(past, end - past))
        self._fill_canaries()
        self.read_only = self._around = False
        self._others, self._exchanged = (0, 0), False  # where other pages lie, and where those in use will

    def allow_reads(self, allowed: bool) -> None:
        """Set whether memory just outside may be read, as it usually may around a user's arrays; writing there traps.

        Libraries prefetch beyond the data they read. If pages there cannot be read, each prefetch causes a failing page
        walk: numpy takes twice as long for a product of 16x19x35. Reading the pages once enters them in the page
        tables.
        """
        if allowed == self._around:
            return
        self._around = allowed
        for at in (self._first - _AROUND, self._end):
            if _libc.mprotect(at, _AROUND, _READ if allowed else _NONE) == 0 and allowed:
                for page in range(at, at + _AROUND, mmap.PAGESIZE):
                    ctypes.c_uint8.from_address(page).value  # noqa: B018 (it is read)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.all.view(dtype).reshape(shape)

    def protecting(self, *, read_only: bool) -> tuple[StepKind, int, int, int]:
        """The step that `protect` carries out."""
        return StepKind.PROTECT, self._first, _READ if read_only else _READ | _WRITE, self._body

    def intact(self) -> list[tuple[StepKind, int, int, int]]:
        """The steps that fail if something was written outside."""
        return [(StepKind.INTACT, c.ctypes.data, CANARY, len(c)) for c in self._canaries]

    def protect(self, *, read_only: bool) -> None:
        """Inputs become read-only once filled, so that a kernel that writes to one traps."""
        if _libc.mprotect(self._first, self._body, _READ if read_only else _READ | _WRITE) != 0:
            raise MemoryError(f"no memory for the {self.bytes} bytes of {self.name}: {os.strerror(ctypes.get_errno())}")
        self.read_only = read_only

    def make_exchangeable(self) -> None:
        """Reserve the address space for other pages: later, a limit on it might count it as a kernel's."""
        self._others = self._reserved(), self._reserved()

    def exchange(self) -> bool:
        """Exchange all pages for others at the same addresses, the first time for empty ones; then these come back.

        Copying inputs of 16 MB takes longer than many kernels, and this some 30 us. False: the system cannot do it, and
        the contents are undefined now.
        """
        self.protect(read_only=True)  # one mapping again, if a kernel has changed a part of it
        full, empty = self._others
        exchanged = self._move(self._first, empty)
        _libc.mprotect(empty, self._body, _NONE)  # a kernel that gets lost there traps
        exchanged = exchanged and self._move(full, self._first)
        self._others = empty, full
        if not (exchanged and self._exchanged):
            self.protect(read_only=False)
            self._fill_canaries()
        self.protect(read_only=True)
        self._exchanged = True
        return exchanged

    def _reserved(self) -> int:
        """Memory for as many pages, placed alike with regard to huge pages."""
        whole = self._body + _HUGE
        base = _libc.mmap(None, whole, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            return 0
        self._mapped.append((base, whole))
        at: int = base + (self._first - base) % _HUGE
        if self._body >= _HUGE_FROM:
            _libc.madvise(at, self._body, _MADV_HUGEPAGE)
        return at

    def _move(self, source: int, to: int) -> bool:
        """Move pages. The source stays mapped, as a thread could map something else there."""
        return bool(source and to) and _libc.mremap(source, self._body, self._body, _MOVED_THERE, to) == to

    def _fill_canaries(self) -> None:
        for canary in self._canaries:
            canary.fill(CANARY)

    def place(self) -> BufferPlace:
        return BufferPlace(self.name, self.start, self.bytes, self.read_only)

    def damage(self) -> str | None:
        """A description of what was written outside; the canaries are restored."""
        before, after = self._canaries
        damage = None
        if len(before) and not (before == CANARY).all():
            distance = len(before) - int(np.flatnonzero(before != CANARY)[-1])
            damage = f"wrote before the start of {self.name} (at byte -{distance})"
        elif len(after) and not (after == CANARY).all():
            distance = int(np.flatnonzero(after != CANARY)[0])
            damage = f"wrote past the end of {self.name} (at byte {self.bytes + distance} of {self.bytes})"
        if damage:
            before.fill(CANARY)
            after.fill(CANARY)
        return damage

    def close(self) -> None:
        """Free the memory. No array over it may be used any more."""
        for mapping in self._mapped:
            _libc.munmap(*mapping)


def _bytes_at(address: int, size: int) -> Array:
    raw = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(raw).cast("b"), np.uint8) if size else np.empty(0, np.uint8)
