"""The worker's C harness, and a fallback where it cannot be built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntFlag
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from deepgen.operators import Array
from deepgen.run.measure.channel import Pulse
from deepgen.vocabulary import Kernel, LaunchPlan, Source


def source() -> Kernel:
    """The harness as something that deepgen.toolchains builds and caches like any kernel."""
    text = (resources.files("deepgen.run.measure") / "harness.c").read_text()
    return Kernel("measuring_harness", "c", (Source("harness.c", text),), ("-O2",), LaunchPlan(()))


class FloatingMode(IntFlag):
    """What a kernel can change of how its thread computes. Mirrors the enum in harness.c."""

    ROUNDING = 1
    DENORMALS = 2
    OTHERWISE = 4  # traps, default NaNs, the precision of the x87


class Harness:
    """Cache flushing and notes about crashes. Without a library it streams memory and leaves no notes."""

    def __init__(self, library: Path | None, pulse: Pulse, cache_bytes: int) -> None:
        self._library = ctypes.CDLL(str(library)) if library else None
        if self._library is not None:
            self._library.dg_flush.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
            self._library.dg_watch(ctypes.byref(pulse.fields))
        self.begin = self._library.dg_begin if self._library is not None else _nothing
        self._arithmetic = self._library.dg_arithmetic if self._library is not None else int
        self.by_lines = self._library is not None and bool(self._library.dg_flush(None, 0))
        self._ballast = None if self.by_lines else np.zeros(cache_bytes // 8, np.float64)

    def flush(self, arrays: Sequence[Array]) -> None:
        """Push these arrays out of every cache.

        Flushing their own cache lines takes 0.8 ms for 12 MB. Reads are then as cold as after streaming 320 MB, which
        takes 37 ms, and the interpreter's own memory stays warm; it is not part of what is timed.
        """
        if self._ballast is not None:
            self._ballast += 1.0
        elif self._library is not None:
            for array in arrays:
                self._library.dg_flush(array.ctypes.data, array.nbytes)

    def arithmetic(self) -> FloatingMode:
        """What kernels have left changed since this was last asked; afterwards this thread computes as usual."""
        return FloatingMode(self._arithmetic())

    def empty_call(self) -> Callable[[], None]:
        """A call that does nothing, with as many arguments as kernels usually have."""
        if self._library is None:
            return _nothing
        return partial(self._library.dg_nothing, *(ctypes.c_void_p(n) for n in range(10)))


def _nothing() -> None:
    return None
