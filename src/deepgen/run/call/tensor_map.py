"""Tensor maps: descriptors by which Hopper's copy engine finds the tiles of a tensor (cuTensorMapEncodeTiled)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from deepgen.run.call.plans import Scalars, evaluate
from deepgen.targets.gpu_driver import CUDA, Driver
from deepgen.vocabulary import BadInput, DescriptorArg, Size, dtype

_ALIGN, _BYTES = 64, 128
_MOST = 256  # addresses whose descriptors are kept
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
class Descriptor:
    """A descriptor and the object that fills it again when the tensor has another address."""

    storage: Any
    slot: Any


@dataclass(frozen=True)
class Codes:
    """What the driver calls the format of a tensor and the options of its tensor map."""

    element: int
    swizzle: int
    l2: int


def codes(arg: DescriptorArg, element: str) -> Codes:
    """Raises BadInput for a spec that no tensor map has."""
    spec = arg.spec
    swizzle, l2 = _SWIZZLES.get(spec.swizzle or "none"), _PROMOTIONS.get(spec.l2 or "128")
    if swizzle is None or l2 is None:
        allowed = f"swizzle {', '.join(_SWIZZLES)}; l2 {', '.join(_PROMOTIONS)}"
        raise BadInput(f"the tensor map of {arg.tensor} has {spec.to_json()}", allowed=allowed)
    return Codes(_TYPES[element], swizzle, l2)


class _Slot:
    """Stands where a tensor's address would: setting `value` encodes the descriptor again.

    A model's tensors come back to the same few addresses. What was encoded for one is kept, as a copy of it takes a
    tenth of the driver's time.
    """

    def __init__(self, driver: Driver, storage: Any, arguments: tuple[Any, ...]) -> None:
        self._driver, self._storage, self._arguments = driver, storage, arguments
        self._value = -1
        self._known: dict[int, bytes] = {}

    @property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, address: int) -> None:
        if address == self._value:
            return
        known = self._known.get(address)
        if known is None:
            self._encode(address)
        else:
            self._storage.raw = known
        self._value = address

    def _encode(self, address: int) -> None:
        kind, rank, *rest = self._arguments
        call = self._driver.library.cuTensorMapEncodeTiled
        code = call(self._storage, kind, rank, ctypes.c_void_p(address), *rest)
        self._driver.check("cuTensorMapEncodeTiled", code)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[address] = self._storage.raw


def encode(
    driver: Driver, arg: DescriptorArg, address: int, shape: tuple[int, ...], element: str, scalars: Scalars
) -> Descriptor:
    """The descriptor of a tensor at an address."""
    if driver.api.kind != CUDA.kind:
        raise BadInput(f"a tensor map of {arg.tensor}", allowed="tensor maps exist on NVIDIA GPUs only")
    spec = arg.spec
    known = codes(arg, element)
    box = _numbers(spec.box, scalars)
    sizes = _numbers(spec.sizes, scalars) if spec.sizes is not None else [*reversed(shape)]
    width = dtype(element).bytes
    dense = [prod(sizes[:i]) * width for i in range(1, len(sizes))]
    strides = _numbers(spec.strides, scalars) if spec.strides is not None else dense
    storage = _aligned()
    rank = len(sizes)
    slot = _Slot(
        driver,
        storage,
        (
            known.element,
            rank,
            (ctypes.c_uint64 * rank)(*sizes),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,
            known.swizzle,
            known.l2,
            0,
        ),
    )
    slot.value = address
    return Descriptor(storage, slot)


def _numbers(values: Sequence[Size], scalars: Scalars) -> list[int]:
    return [int(evaluate(value, scalars)) for value in values]


def _aligned() -> Any:
    raw = ctypes.create_string_buffer(_BYTES + _ALIGN)
    return (ctypes.c_char * _BYTES).from_buffer(raw, -ctypes.addressof(raw) % _ALIGN)
