"""The worker's C harness, and a fallback if it cannot be built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum, IntFlag
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from deepgen.run.measure.channel import Pulse
from deepgen.vocabulary import Kernel, LaunchPlan, Source

_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def source() -> Kernel:
    """The harness in the form that deepgen.toolchains builds and caches like any kernel."""
    text = (resources.files("deepgen.run.measure") / "harness.c").read_text()
    return Kernel("measuring_harness", "c", (Source("harness.c", text),), ("-O2",), LaunchPlan(()))


class FloatingMode(IntFlag):
    """What a kernel can change about its thread's arithmetic. Matches the enum in harness.c."""

    ROUNDING = 1
    DENORMALS = 2
    OTHERWISE = 4  # traps, default NaNs, x87 precision


class StepKind(IntEnum):
    """What a step does to memory before or after a run. Matches the enum in harness.c."""

    COPY = 0
    FILL = 1
    PROTECT = 2
    FLUSH = 3
    INTACT = 4
    SAME = 5
    FILL_PART = 6
    SAME_PART = 7


BLOCK, PARTS = 4096, 7  # a part is every seventh block of so many bytes: no power of two, as tiles' sizes mostly are


class Steps:
    """Rows of a kind, an address, a source (an address, a byte or a protection) and a number of bytes."""

    def __init__(self, rows: Iterable[tuple[StepKind, int, int, int]], *kept: object) -> None:
        """`kept`: objects that must live as long as their addresses are used."""
        self.rows = [row for row in rows if row[3]]
        self._block = np.array(self.rows, np.uint64).reshape(-1, 4)
        self.arguments = ctypes.c_void_p(self._block.ctypes.data), ctypes.c_size_t(len(self.rows))
        self._kept = kept


def in_python(steps: Steps) -> int:
    """The first step that failed, or -1. Without the library cache lines are not flushed."""
    for place, (kind, to, source, size) in enumerate(steps.rows):
        if kind is StepKind.COPY:
            ctypes.memmove(to, source, size)
        elif kind is StepKind.FILL:
            ctypes.memset(to, source, size)
        elif kind is StepKind.PROTECT:
            if _libc.mprotect(to, size, source) != 0:
                return place
        elif kind is StepKind.SAME:
            if ctypes.string_at(to, size) != ctypes.string_at(source, size):
                return place
        elif kind in (StepKind.FILL_PART, StepKind.SAME_PART):
            whole = StepKind.FILL if kind is StepKind.FILL_PART else StepKind.SAME
            along = 0 if kind is StepKind.FILL_PART else 1  # a byte, or an address
            for at in range(0, size, BLOCK * PARTS):
                if in_python(Steps([(whole, to + at, source + along * at, min(BLOCK, size - at))])) >= 0:
                    return place
        elif kind is StepKind.INTACT and ctypes.string_at(to, size) != bytes([source]) * size:
            return place
    return -1


class Harness:
    """Cache flushing and notes about crashes. Without the library it streams through memory and leaves no notes."""

    def __init__(self, library: Path | None, pulse: Pulse, cache_bytes: int) -> None:
        self._library = ctypes.CDLL(str(library)) if library else None
        if self._library is not None:
            self._library.dg_flush.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
            self._library.dg_steps.restype = ctypes.c_int64
            self._library.dg_watch(ctypes.byref(pulse.fields))
        self.begin = self._library.dg_begin if self._library is not None else _nothing
        self._arithmetic = self._library.dg_arithmetic if self._library is not None else int
        self.by_lines = self._library is not None and bool(self._library.dg_flush(None, 0))
        self._ballast = None if self.by_lines else np.zeros(cache_bytes // 8, np.float64)

    def do(self, steps: Steps) -> int:
        """Carry out the steps. Returns the first that failed, or -1."""
        if self._library is None:
            return in_python(steps)
        return int(self._library.dg_steps(*steps.arguments))

    def running(self, files: Sequence[int]) -> bool | None:
        """Whether one of the threads with these files is running now; None if unknown."""
        if self._library is None:
            return None
        return bool(self._library.dg_running((ctypes.c_int * len(files))(*files), ctypes.c_size_t(len(files))))

    def flush(self, lines: Steps) -> None:
        """Flush these lines from every cache.

        Flushing their own cache lines takes 0.8 ms for 12 MB. Reads are then as cold as after streaming 320 MB, which
        takes 37 ms, and the interpreter's own memory, which is not timed, stays warm.
        """
        if self._ballast is not None:
            self._ballast += 1.0
        else:
            self.do(lines)

    def arithmetic(self) -> FloatingMode:
        """What kernels have left changed since the last call; resets this thread to the usual mode."""
        return FloatingMode(self._arithmetic())

    def empty_call(self) -> Callable[[], None]:
        """A call that does nothing, with as many arguments as typical kernels have."""
        if self._library is None:
            return _nothing
        return partial(self._library.dg_nothing, *(ctypes.c_void_p(n) for n in range(10)))


def _nothing() -> None:
    return None
