"""Device memory between canaries, and what frameworks need to see it as a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deepgen.operators import Array
from deepgen.targets.gpu_driver import Driver
from deepgen.vocabulary import DType

GUARD = 1 << 20  # bytes on each side; a device has no guard pages, so a write there is found afterwards
CANARY = 0xC5
_ALIGN = 256  # what every allocator of device memory gives


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor in device memory as frameworks take it, through the CUDA array interface."""

    address: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.numpy().str,  # formats that numpy lacks come as the integers that store them
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


class DeviceBuffer:
    """One buffer with canaries on both sides."""

    def __init__(self, driver: Driver, name: str, size: int) -> None:
        self.name, self.bytes = name, size
        self._driver = driver
        self._base = driver.alloc(GUARD + -(-size // _ALIGN) * _ALIGN + GUARD)
        self.start = self._base + GUARD
        self.guards = ((self._base, GUARD), (self.start + size, -size % _ALIGN + GUARD))
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
        """A few elements of what lies here as one row of that type."""
        out = np.empty(len(places), dtype)
        for i, place in enumerate(places.tolist()):
            self._driver.to_host(out[i:].ctypes.data, self.start + place * dtype.itemsize, dtype.itemsize)
        return out

    def close(self) -> None:
        self._driver.free(self._base)
