"""The worker's own kernels at work: checking results, finding damage, and bringing the device into a known state."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from importlib import resources

from deepgen.operators import Tolerance
from deepgen.operators.compare import floor, largest
from deepgen.run.measure.gpu_buffers import CANARY, GUARD, DeviceBuffer
from deepgen.targets.gpu_driver import Driver, Launch
from deepgen.vocabulary import DType, Kernel, LaunchPlan, Source, Step

_KINDS = {"f64": 0, "f32": 1, "tf32": 1, "f16": 2, "bf16": 3, "i8": 4, "i32": 5, "i64": 6}
_BLOCKS, _THREADS = 1024, 256
_FOUND = struct.Struct("<QQ")
_ENTRIES = ("dg_judge", "dg_differ", "dg_read", "dg_hold", "dg_nothing")
_NEVER = 1  # what the words of memory that holds zeros do not combine to


def source(language: str) -> Kernel:
    """The kernels as something that deepgen.toolchains builds and caches like any other."""
    text = (resources.files("deepgen.run.measure") / "gpu_harness.cu").read_text()
    steps = tuple(Step(entry, (), block=(_THREADS, 1, 1)) for entry in _ENTRIES)
    return Kernel("measuring_harness", language, (Source("gpu_harness.cu", text),), (), LaunchPlan(steps))


def known(dtype: DType) -> bool:
    return dtype.name in _KINDS


@dataclass(frozen=True)
class Found:
    """How many elements or words are off, and what goes with that."""

    count: int
    detail: int

    @property
    def error(self) -> float:
        """Of a judgement: the largest error as a share of the tolerance."""
        (value,) = struct.unpack("<d", struct.pack("<Q", self.detail))
        return float(value)

    @property
    def place(self) -> int:
        """Of a difference: the first byte."""
        return ~self.detail & 0xFFFFFFFFFFFFFFFF


class Checks:
    """Runs the kernels and waits for what they find."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self._driver = driver
        self._module = driver.load(image)
        self._functions = {name: driver.function(self._module, name) for name in _ENTRIES}
        self._found = driver.alloc(_FOUND.size)
        self._canaries = driver.alloc(2 * GUARD)
        driver.fill(self._canaries, CANARY, 2 * GUARD)

    def judge(
        self, got: int, want: int, scale: int, count: int, each: bool, dtype: DType, tolerance: Tolerance
    ) -> Found:
        """`each`: whether every element has a scale of its own."""
        return self._run(
            "dg_judge",
            ctypes.c_uint64(got),
            ctypes.c_uint64(want),
            ctypes.c_uint64(scale),
            ctypes.c_uint64(count),
            ctypes.c_int32(each),
            ctypes.c_int32(_KINDS[dtype.name]),
            ctypes.c_double(tolerance.absolute),
            ctypes.c_double(tolerance.relative),
            ctypes.c_double(0.0 if dtype.integer else largest(dtype)),
            ctypes.c_double(floor(dtype, tolerance)),
        )

    def differ(self, a: int, b: int, size: int) -> Found:
        return self._run("dg_differ", ctypes.c_uint64(a), ctypes.c_uint64(b), ctypes.c_uint64(size))

    def damage(self, buffer: DeviceBuffer) -> str | None:
        """What was written outside a buffer, as a sentence; its canaries are restored."""
        (before, size), (after, rest) = buffer.guards
        if (found := self.differ(before, self._canaries, size)).count:
            buffer.restore_guards()
            return f"wrote before the start of {buffer.name} (at byte {found.place - size})"
        if (found := self.differ(after, self._canaries, rest)).count:
            buffer.restore_guards()
            return f"wrote past the end of {buffer.name} (at byte {buffer.bytes + found.place} of {buffer.bytes})"
        return None

    def read(self, zeros: DeviceBuffer) -> Launch:
        """Reads a buffer that holds zeros, and writes nothing."""
        words, never = ctypes.c_uint64(zeros.bytes // 8), ctypes.c_uint64(_NEVER)
        return self._launch("dg_read", _BLOCKS, _THREADS, ctypes.c_uint64(zeros.start), words, never, self._place())

    def hold(self, cycles: ctypes.c_uint64) -> Launch:
        """Keeps the device busy for that many cycles, which may be changed between launches."""
        return self._launch("dg_hold", 1, 1, cycles)

    def nothing(self) -> Launch:
        """An empty kernel."""
        return self._launch("dg_nothing", 1, 32)

    def close(self) -> None:
        for address in (self._found, self._canaries):
            self._driver.free(address)
        self._driver.unload(self._module)

    def _run(self, entry: str, *values: object) -> Found:
        self._driver.fill(self._found, 0, _FOUND.size)
        self._launch(entry, _BLOCKS, _THREADS, *values, self._place()).fire()
        answer = ctypes.create_string_buffer(_FOUND.size)
        self._driver.to_host(ctypes.addressof(answer), self._found, _FOUND.size)
        return Found(*_FOUND.unpack(answer.raw))

    def _place(self) -> ctypes.c_uint64:
        return ctypes.c_uint64(self._found)

    def _launch(self, entry: str, blocks: int, threads: int, *values: object) -> Launch:
        return Launch(self._driver, self._functions[entry], ((blocks, 1, 1), (threads, 1, 1), (1, 1, 1), 0), values)
