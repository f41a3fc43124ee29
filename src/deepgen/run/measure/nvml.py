"""Clocks, temperature, power and throttling of an NVIDIA GPU, through its management library; nothing is ever set."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p

from deepgen.vocabulary import JsonObject

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
# Reasons for which clocks are lower than they could be; idle and application settings are none of our business.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class Nvml:
    """One device."""

    def __init__(self, library: ctypes.CDLL, device: c_void_p) -> None:
        self._library, self._device = library, device

    @staticmethod
    def find(index: int) -> Nvml | None:
        """The device of that number; None where the library is not here or does not know it."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        device = c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(device)):
            return None
        return Nvml(library, device)

    def read(self) -> JsonObject:
        """What it says now; what it does not say is left out."""
        throttled = self._reasons()
        found: dict[str, int | float | None] = {
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            "memory_mhz": self._number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            "celsius": self._number("nvmlDeviceGetTemperature", 0),
            "milliwatts": self._number("nvmlDeviceGetPowerUsage"),
        }
        out: JsonObject = {key: value for key, value in found.items() if value is not None}
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
