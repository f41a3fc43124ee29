"""Tensor maps: descriptors by which Hopper's copy engine finds the tiles of a tensor (cuTensorMapEncodeTiled).

A spec names the tile: `box` (elements, innermost first), `swizzle` (none, 32, 64 or 128 bytes) and `l2` (none, 64, 128
or 256 bytes fetched at a time). `sizes` (innermost first) and `strides` (bytes, of all dimensions but the innermost)
may be expressions over the operator's scalars; without them they are those of the tensor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from deepgen.runtime.gpu_driver import CUDA, Driver
from deepgen.runtime.native import Scalars, evaluate
from deepgen.vocabulary import BadInput, TensorMapArg, dtype

_ALIGN, _BYTES = 64, 128
_TYPES = {
    **dict.fromkeys(("u8", "i8", "f8e4m3", "f8e5m2"), 0),
    "i16": 1,
    "i32": 3,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "tf32": 7,
    "f64": 8,
    "bf16": 9,
}  # CUtensorMapDataType
_SWIZZLES = {"none": 0, "32": 1, "64": 2, "128": 3}
_PROMOTIONS = {"none": 0, "64": 1, "128": 2, "256": 3}


@dataclass(frozen=True)
class TensorMap:
    """A descriptor and the object that fills it anew when the tensor lies elsewhere."""

    storage: Any
    slot: Any


class _Slot:
    """Stands where a tensor's address would: setting `value` encodes the descriptor again."""

    def __init__(self, driver: Driver, storage: Any, arguments: tuple[Any, ...]) -> None:
        self._driver, self._storage, self._arguments = driver, storage, arguments
        self._value = -1

    @property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, address: int) -> None:
        if address == self._value:
            return
        kind, rank, *rest = self._arguments
        call = self._driver.library.cuTensorMapEncodeTiled
        code = call(self._storage, kind, rank, ctypes.c_void_p(address), *rest)
        self._driver.check("cuTensorMapEncodeTiled", code)
        self._value = address


def encode(
    driver: Driver, arg: TensorMapArg, address: int, shape: tuple[int, ...], element: str, scalars: Scalars
) -> TensorMap:
    """The descriptor of a tensor at an address."""
    if driver.api is not CUDA:
        raise BadInput(f"a tensor map of {arg.tensor}", allowed="tensor maps exist on NVIDIA GPUs only")
    spec = {"swizzle": "none", "l2": "128", **arg.spec}
    unknown = set(spec) - {"box", "swizzle", "l2", "sizes", "strides"}
    if unknown or "box" not in spec or spec["swizzle"] not in _SWIZZLES or spec["l2"] not in _PROMOTIONS:
        raise BadInput(
            f"the tensor map of {arg.tensor} is {dict(arg.spec)}", allowed="box, swizzle, l2, sizes, strides"
        )
    box = _numbers(spec["box"], scalars)
    sizes = _numbers(spec["sizes"], scalars) if "sizes" in spec else [*reversed(shape)]
    width = dtype(element).bytes
    strides = (
        _numbers(spec["strides"], scalars)
        if "strides" in spec
        else [prod(sizes[:i]) * width for i in range(1, len(sizes))]
    )
    storage = _aligned()
    rank = len(sizes)
    slot = _Slot(
        driver,
        storage,
        (
            _TYPES[element],
            rank,
            (ctypes.c_uint64 * rank)(*sizes),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,
            _SWIZZLES[str(spec["swizzle"])],
            _PROMOTIONS[str(spec["l2"])],
            0,
        ),
    )
    slot.value = address
    return TensorMap(storage, slot)


def _numbers(values: Any, scalars: Scalars) -> list[int]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise BadInput(f"tensor map: {values!r}", allowed="a list of numbers or expressions")
    return [int(evaluate(value, scalars)) for value in values]


def _aligned() -> Any:
    raw = ctypes.create_string_buffer(_BYTES + _ALIGN)
    return (ctypes.c_char * _BYTES).from_buffer(raw, -ctypes.addressof(raw) % _ALIGN)
