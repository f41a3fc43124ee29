"""The worker's side of measuring on a GPU, with clocks, temperature and power if NVML reports them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from deepgen.run.counters import Counted
from deepgen.run.measure import limits
from deepgen.run.measure.base import REFERENCE, Helper, Task
from deepgen.run.measure.channel import Pulse
from deepgen.run.measure.gpu_bench import DeviceReference, GpuBench
from deepgen.run.measure.gpu_device import SHORTEST, Checks, Queue
from deepgen.run.measure.gpu_entrant import GpuEntrant, GpuSurroundings, StridedEntrant
from deepgen.run.measure.guarded import Placement
from deepgen.run.measure.referee import Inputs, Referee
from deepgen.targets.gpu_driver import APIS, Driver
from deepgen.vocabulary import DeepgenError, JsonObject, Kernel

_BENCH_BYTES = 4 << 30  # least memory for inputs of other seeds and probes, cached for the next finalist
_LAUNCHES = 20


@cache
def meet(language: str) -> Driver:
    """The device with its context, whose creation takes a while."""
    return Driver(APIS[language])


class GpuWorker(Referee[GpuEntrant]):
    """Runs kernels of one operator on one GPU."""

    def __init__(self, opening: Mapping[str, Any], pulse: Pulse) -> None:
        self.task = Task.from_json(opening["task"])
        self._worn = set()
        target = self.task.target
        helpers = {name: Helper.from_json(row) for name, row in opening["helpers"].items()}
        if "harness" not in helpers:
            raise DeepgenError(f"the measuring kernels for {target.name} could not be built")
        self._threads: int = opening["threads"]
        self._scratch = Path(opening["scratch"])
        driver = meet(target.languages[0])
        checks = Checks(driver, helpers["harness"].binary.read_bytes())
        references = [helper for name, helper in helpers.items() if name.startswith(REFERENCE)]
        self._reference = DeviceReference(driver, references, target.languages[0]) if references else None
        self.judge = helpers.get("judge")
        self._device = GpuSurroundings(self.task, pulse, driver, checks, Queue(driver, checks, target.cache_bytes))
        self._nvml = Nvml.find(driver.device) if "cuda" in target.languages else None
        self._benches: dict[Inputs, GpuBench] = {}
        self._call_seconds = self._empty_launch()

    def entrant(self, inputs: Inputs, who: int, beat: float | None, placed: Placement = Placement.LINES) -> GpuEntrant:
        limit, bench = limits.run_seconds(self.task.at(inputs.shape), beat), self._bench(inputs)
        bench.place(placed)
        return GpuEntrant(self._device, bench, who, limit)

    def strided_entrant(self, inputs: Inputs) -> GpuEntrant:
        bench = self._bench(inputs)
        bench.place(Placement.LINES)
        return StridedEntrant(self._device, bench, 0, limits.run_seconds(self.task.at(inputs.shape)))

    def load(self, entrant: GpuEntrant, entry: Mapping[str, Any]) -> None:
        if entry.get("kernel"):
            entrant.load(Kernel.from_json(entry["kernel"]), entry["binary"])
        else:
            entrant.load_baseline(entry["name"], self._threads)

    def limited(self) -> AbstractContextManager[None]:
        # Address space cannot be limited here: a driver maps the whole device into it.
        return nullcontext()

    def look(self) -> None:
        pass

    def conditions(self, entrant: GpuEntrant) -> JsonObject:
        cold = self.task.policy.cold
        return {
            **({"form": entrant.form} if entrant.form else {}),
            "cold": cold,
            "flush": "read" if cold else None,
            "late_samples": entrant.late,
            "runs_checked": entrant.calls,
            "reproducible": entrant.reproducible,
            "call_seconds": self._call_seconds,
            "reference": entrant.bench.reference,
            **(self._nvml.read() if self._nvml else {}),
        }

    def counted(self, entrant: GpuEntrant, events: Sequence[str]) -> Counted:
        """Run the kernel for a profiler, which counts from outside this process."""
        entrant.between(*self._device.driver.profiled())
        return Counted()

    def stray(self) -> bool:
        return False

    def close(self) -> None:
        device = self._device
        device.prepared.clear()
        for bench in self._benches.values():
            bench.close()
        self._benches.clear()
        if self._reference is not None:
            self._reference.close()
        device.queue.close()
        device.checks.close()

    def _bench(self, inputs: Inputs) -> GpuBench:
        inputs = inputs.first
        if inputs not in self._benches:
            timed = {Inputs(self.task.seed, shape=shape).first for shape in range(len(self.task.timed))}
            others = [one for one in self._benches if one not in timed]
            device = self._device
            room = max(_BENCH_BYTES, device.driver.free_bytes() // 2)
            while others and sum(self._benches[k].bytes for k in others) > room:
                self._benches.pop(others.pop(0)).close()
            self._benches[inputs] = GpuBench(
                device.driver,
                device.checks,
                self.task.shapes[inputs.shape],
                inputs.seed,
                inputs.probe,
                self._scratch,
                self._reference,
            )
            if self._benches[inputs].unanswered:
                limit = limits.run_seconds(self.task.at(inputs.shape))
                self.give_answers(GpuEntrant(self._device, self._benches[inputs], 0, limit))
        return self._benches[inputs]

    def _empty_launch(self) -> float:
        """The time of an empty kernel by the same clock, which is part of every sample, including a baseline's."""
        queue, launch = self._device.queue, self._device.checks.nothing()
        taken = []
        for _ in range(_LAUNCHES):
            queue.flush()
            taken.append(queue.timed(launch.fire, SHORTEST).seconds)
        return sorted(taken)[_LAUNCHES // 2]


_SM_CLOCK, _MEMORY_CLOCK = 1, 2
# Reasons for reduced clocks, except idle and application settings.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


_LATEST_SECONDS = 0.5


class Nvml:
    """One device as seen by NVML."""

    def __init__(self, library: ctypes.CDLL, device: c_void_p) -> None:
        self._library, self._device = library, device
        self._latest: tuple[float, JsonObject] = (0.0, {})

    @staticmethod
    def find(index: int) -> Nvml | None:
        """The device with this number; None if the library is missing or does not know it."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        device = c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(device)):
            return None
        return Nvml(library, device)

    def read(self) -> JsonObject:
        """The current readings, or those of a moment ago, as reading takes milliseconds; only available ones."""
        now = time.monotonic()
        if not self._latest[1] or now - self._latest[0] > _LATEST_SECONDS:
            self._latest = now, self._asked()
        return self._latest[1]

    def _asked(self) -> JsonObject:
        throttled = self._reasons()
        readings: dict[str, int | float | None] = {
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            "memory_mhz": self._number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            "celsius": self._number("nvmlDeviceGetTemperature", 0),
            "milliwatts": self._number("nvmlDeviceGetPowerUsage"),
        }
        out: JsonObject = {key: value for key, value in readings.items() if value is not None}
        return {**out, "throttled": list(throttled)} if throttled else out

    def _number(self, call: str, *which: int) -> int | None:
        value = c_uint()
        code = getattr(self._library, call)(self._device, *(c_uint(w) for w in which), byref(value))
        return None if code else value.value

    def _reasons(self) -> list[str]:
        bits = c_ulonglong()
        if self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._device, byref(bits)):
            return []
        return [name for bit, name in _REASONS.items() if bits.value & bit]
