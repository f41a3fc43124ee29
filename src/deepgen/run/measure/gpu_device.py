"""A GPU as the worker uses it: memory between canaries, our kernels that check results, the queue and its clock.

At the start of a timed run the state is the same for kernels and baselines:

- Caches are cold and clean: a buffer larger than the last-level cache was read. Filling it instead would leave lines
  that are written back while the run is timed, which costs a short run up to 20%.
- The queue is full: the whole run is enqueued while a kernel of ours still holds the device, so the device never
  waits for the host, and data sent with a launch, such as large arguments, has arrived. A run finds the same state in a
  CUDA graph or behind other work. The start event shows whether the host was fast enough: if the device has reached
  it before the last launch was enqueued, the device is held for longer and the sample is taken again.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from deepgen.operators import Array, Tolerance
from deepgen.operators.compare import floor, largest
from deepgen.targets.gpu_driver import Driver, DriverLaunch
from deepgen.vocabulary import DType, Kernel, LaunchPlan, Source, Step

GUARD = 1 << 20  # bytes on each side; without guard pages on a device, writes there are detected afterwards
CANARY = 0xC5
_ALIGN = 256  # the alignment of every device allocator


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor in device memory, which frameworks accept through the CUDA array interface."""

    address: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.numpy().str,  # formats that numpy lacks are shown as their storage integers
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


class DeviceBuffer:
    """One buffer with canaries on both sides."""

    def __init__(self, driver: Driver, name: str, size: int) -> None:
        self.name, self.bytes = name, size
        self._driver = driver
        self._base, self._whole = driver.alloc(whole := GUARD + -(-size // _ALIGN) * _ALIGN + GUARD), whole
        self.place(0)

    def place(self, off: int) -> None:
        """Shift the buffer's start by this many bytes from an allocation's alignment. Its content is lost."""
        self.start = self._base + GUARD + off
        past = self.start + self.bytes
        self.guards = ((self._base, GUARD + off), (past, self._base + self._whole - past))
        self.restore_guards()

    def restore_guards(self) -> None:
        for address, size in self.guards:
            self._driver.fill(address, CANARY, size)

    def put(self, array: Array) -> None:
        whole = np.ascontiguousarray(array)
        self._driver.to_device(self.start, whole.ctypes.data, whole.nbytes)

    def get(self, like: Array) -> Array:
        out = np.empty(like.shape, like.dtype)
        self._driver.to_host(out.ctypes.data, self.start, out.nbytes)
        return out

    def some(self, places: Array, dtype: np.dtype[Any]) -> Array:
        """A few elements of the buffer, taken as a row of this type."""
        out = np.empty(len(places), dtype)
        for i, place in enumerate(places.tolist()):
            self._driver.to_host(out[i:].ctypes.data, self.start + place * dtype.itemsize, dtype.itemsize)
        return out

    def close(self) -> None:
        self._driver.free(self._base)


_KINDS = {"f64": 0, "f32": 1, "tf32": 1, "f16": 2, "bf16": 3, "i8": 4, "i32": 5, "i64": 6}
_BLOCKS, _THREADS = 1024, 256
_RESULT = struct.Struct("<QQ")
_ENTRIES = ("dg_judge", "dg_differ", "dg_read", "dg_hold", "dg_nothing")
_MOST_PAIRS = 100  # cached launches: creating one takes longer than running it
_NEVER = 1  # a value that words of zeros cannot combine to


def source(language: str) -> Kernel:
    """The checking kernels, in the form that deepgen.toolchains builds and caches."""
    text = (resources.files("deepgen.run.measure") / "gpu_harness.cu").read_text()
    steps = tuple(Step(entry, (), block=(_THREADS, 1, 1)) for entry in _ENTRIES)
    return Kernel("measuring_harness", language, (Source("gpu_harness.cu", text),), (), LaunchPlan(steps))


def can_judge(dtype: DType) -> bool:
    return dtype.name in _KINDS


@dataclass(frozen=True)
class CheckResult:
    """The number of wrong elements or words, and a detail of them."""

    count: int
    detail: int

    @property
    def error(self) -> float:
        """After `judge`: the largest error as a share of the tolerance."""
        (value,) = struct.unpack("<d", struct.pack("<Q", self.detail))
        return float(value)

    @property
    def place(self) -> int:
        """After `differ`: the first differing byte."""
        return ~self.detail & 0xFFFFFFFFFFFFFFFF


class Checks:
    """Runs the checking kernels and waits for their results."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self._driver = driver
        self._module = driver.load(image)
        self._functions = {name: driver.function(self._module, name) for name in _ENTRIES}
        self._result = driver.alloc(_RESULT.size)
        self._pairs: dict[tuple[int, int, int], DriverLaunch] = {}
        self._canaries = driver.alloc(2 * GUARD)
        driver.fill(self._canaries, CANARY, 2 * GUARD)

    def judge(
        self, got: int, want: int, scale: int, count: int, each: bool, dtype: DType, tolerance: Tolerance
    ) -> CheckResult:
        """`each`: whether every element has its own scale."""
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

    def differ(self, a: int, b: int, size: int) -> CheckResult:
        return self._run("dg_differ", ctypes.c_uint64(a), ctypes.c_uint64(b), ctypes.c_uint64(size))

    def same(self, pairs: Sequence[tuple[int, int, int]]) -> bool:
        """Whether pairs of regions, given as two addresses and a size, are equal. Waits only once for all of them."""
        self._driver.fill(self._result, 0, _RESULT.size)
        for pair in pairs:
            if pair not in self._pairs:
                if len(self._pairs) >= _MOST_PAIRS:
                    self._pairs.clear()
                values = (*map(ctypes.c_uint64, pair), self._place())
                self._pairs[pair] = self._launch("dg_differ", _BLOCKS, _THREADS, *values)
            self._pairs[pair].fire()
        return not self._answered().count

    def damage(self, buffer: DeviceBuffer) -> str | None:
        """A description of what was written outside a buffer; its canaries are restored."""
        (before, size), (after, rest) = buffer.guards
        if (changed := self.differ(before, self._canaries, size)).count:
            buffer.restore_guards()
            return f"wrote before the start of {buffer.name} (at byte {changed.place - size})"
        if (changed := self.differ(after, self._canaries, rest)).count:
            buffer.restore_guards()
            return f"wrote past the end of {buffer.name} (at byte {buffer.bytes + changed.place} of {buffer.bytes})"
        return None

    def read(self, zeros: DeviceBuffer) -> DriverLaunch:
        """A launch that reads a buffer of zeros and writes nothing."""
        words, never = ctypes.c_uint64(zeros.bytes // 8), ctypes.c_uint64(_NEVER)
        return self._launch("dg_read", _BLOCKS, _THREADS, ctypes.c_uint64(zeros.start), words, never, self._place())

    def hold(self, cycles: ctypes.c_uint64) -> DriverLaunch:
        """A launch that keeps the device busy for that many cycles, which may be changed between launches."""
        return self._launch("dg_hold", 1, 1, cycles)

    def nothing(self) -> DriverLaunch:
        """An empty kernel."""
        return self._launch("dg_nothing", 1, 32)

    def close(self) -> None:
        for address in (self._result, self._canaries):
            self._driver.free(address)
        self._driver.unload(self._module)

    def _run(self, entry: str, *values: object) -> CheckResult:
        self._driver.fill(self._result, 0, _RESULT.size)
        self._launch(entry, _BLOCKS, _THREADS, *values, self._place()).fire()
        return self._answered()

    def _answered(self) -> CheckResult:
        answer = ctypes.create_string_buffer(_RESULT.size)
        self._driver.to_host(ctypes.addressof(answer), self._result, _RESULT.size)
        return CheckResult(*_RESULT.unpack(answer.raw))

    def _place(self) -> ctypes.c_uint64:
        return ctypes.c_uint64(self._result)

    def _launch(self, entry: str, blocks: int, threads: int, *values: object) -> DriverLaunch:
        return DriverLaunch(
            self._driver, self._functions[entry], ((blocks, 1, 1), (threads, 1, 1), (1, 1, 1), 0), values
        )


SHORTEST, LONGEST = 1 << 15, 1 << 24  # cycles for which the device is held: about 20 us and about 10 ms
LONGER = 4  # factor if the host was too slow
_LEAST_BALLAST = 256 << 20


@dataclass(frozen=True)
class QueueSample:
    """One timed run."""

    seconds: float
    full: bool  # whether all of it was enqueued before the device started it


class Queue:
    """A device's default stream, its last-level cache, and the clock."""

    def __init__(self, driver: Driver, checks: Checks, l2_bytes: int) -> None:
        self._driver = driver
        self._ballast = DeviceBuffer(driver, "ballast", max(_LEAST_BALLAST, 4 * l2_bytes))
        driver.fill(self._ballast.start, 0, self._ballast.bytes)
        self._read = checks.read(self._ballast)
        self._cycles = ctypes.c_uint64(SHORTEST)
        self._hold = checks.hold(self._cycles)
        self._start, self._end = driver.event(), driver.event()

    def flush(self) -> None:
        """Evict everything from the last-level cache, including data to be written back."""
        self._read.fire()

    def hold(self, cycles: int) -> None:
        """Delay everything that is enqueued from now on by that many cycles."""
        self._cycles.value = cycles
        self._hold.fire()

    def timed(self, run: Callable[[], None], cycles: int) -> QueueSample:
        """Time one run, enqueued while the device is held for so many cycles."""
        driver = self._driver
        self.hold(cycles)
        driver.record(self._start)
        run()
        driver.record(self._end)
        full = not driver.happened(self._start)
        driver.synchronize()
        return QueueSample(driver.elapsed(self._start, self._end), full)

    def close(self) -> None:
        self._ballast.close()
