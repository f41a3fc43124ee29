"""Number formats: their names in deepgen, their storage in numpy, their precision.

numpy is imported where it is used, so that commands that only read studies do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class DType:
    """A dtype. `storage` is the numpy type of its bytes; formats that numpy lacks are stored as integers."""

    name: str
    bits: int
    storage: str
    epsilon: float  # distance from 1.0 to the next number; 0 for integers
    ctype: str  # the C type that stores it

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def integer(self) -> bool:
        return self.epsilon == 0.0

    @property
    def native(self) -> bool:
        """Whether numpy itself computes in this format."""
        return self.name not in _STORED_AS_INTEGERS

    def numpy(self) -> np.dtype[Any]:
        import numpy as np

        return np.dtype(self.storage)

    @property
    def whole(self) -> tuple[int, int]:
        """The smallest and largest number of an integer format."""
        signed = not self.storage.startswith("u")
        return -(1 << self.bits - 1) if signed else 0, (1 << self.bits - signed) - 1

    def __str__(self) -> str:
        return self.name


_STORED_AS_INTEGERS = ("bf16", "f8e4m3", "f8e5m2")

_ALL = (
    DType("f64", 64, "float64", 2.0**-52, "double"),
    DType("f32", 32, "float32", 2.0**-23, "float"),
    DType("tf32", 32, "float32", 2.0**-10, "float"),
    DType("f16", 16, "float16", 2.0**-10, "_Float16"),
    DType("bf16", 16, "uint16", 2.0**-7, "uint16_t"),
    DType("f8e4m3", 8, "uint8", 2.0**-3, "uint8_t"),
    DType("f8e5m2", 8, "uint8", 2.0**-2, "uint8_t"),
    DType("i8", 8, "int8", 0.0, "int8_t"),
    DType("u8", 8, "uint8", 0.0, "uint8_t"),
    DType("i16", 16, "int16", 0.0, "int16_t"),
    DType("i32", 32, "int32", 0.0, "int32_t"),
    DType("i64", 64, "int64", 0.0, "int64_t"),
)
DTYPES = {d.name: d for d in _ALL}

# Names used by other libraries. 8-bit floats without a kind are the ones that models are stored in.
_OTHER_NAMES = {
    "f64": ("float64", "fp64", "double"),
    "f32": ("float32", "fp32", "single"),
    "f16": ("float16", "fp16", "half"),
    "bf16": ("bfloat16",),
    "f8e4m3": ("fp8", "float8", "fp8_e4m3", "float8_e4m3", "float8_e4m3fn", "e4m3"),
    "f8e5m2": ("fp8_e5m2", "float8_e5m2", "e5m2"),
    "i8": ("int8",),
    "u8": ("uint8",),
    "i16": ("int16",),
    "i32": ("int32",),
    "i64": ("int64",),
}
_OURS = {theirs: ours for ours, names in _OTHER_NAMES.items() for theirs in names}


def dtype(name: str | DType) -> DType:
    """Look up a format by name."""
    if isinstance(name, DType):
        return name
    ours = name if name in DTYPES else our_name(name)
    if ours not in DTYPES:
        raise BadInput(f"unknown dtype {name!r}", allowed="one of " + ", ".join(DTYPES))
    return DTYPES[ours]


def our_name(name: str) -> str:
    """deepgen's name for a format that other libraries name differently; any other word unchanged."""
    lower = name.lower() if isinstance(name, str) else name
    return _OURS.get(lower, lower if lower in DTYPES else name)


def widen(values: npt.NDArray[Any], of: DType) -> npt.NDArray[Any]:
    """The values of stored numbers: float64 for floats, int64 for integers."""
    if values.size <= _PART:
        return _widened(values, of)
    import numpy as np

    return _in_parts(values, np.dtype(np.int64 if of.integer else np.float64), lambda some: _widened(some, of))


def _widened(values: npt.NDArray[Any], of: DType) -> npt.NDArray[Any]:
    import numpy as np

    if of.integer:
        return values.astype(np.int64)
    if of.name == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if of.name in _EIGHT_BITS:
        meant: npt.NDArray[Any] = _meanings(_EIGHT_BITS[of.name])[values]
        return meant
    return values.astype(np.float64)


def narrow(values: npt.NDArray[Any], to: DType) -> npt.NDArray[Any]:
    """Round numbers to a format, to nearest with ties to even, and return its storage.

    Numbers that are too large become infinite, except in f8e4m3, which has no infinities: they become its largest
    number with the same sign, as in GPU converters.
    """
    return (
        _narrowed(values, to)
        if values.size <= _PART
        else _in_parts(values, to.numpy(), lambda some: _narrowed(some, to))
    )


def least(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers in a smaller format, rounded; unchanged if some would not be normal numbers in it."""
    import numpy as np

    from deepgen.vocabulary.parallel import in_chunks

    if values.dtype.kind == "i":
        ends = (int(values.min()), int(values.max())) if values.size else (0, 0)
        held = (np.dtype(kind) for kind in (np.int8, np.int16, np.int32))
        fitting = (kind for kind in held if np.iinfo(kind).min <= ends[0] and ends[1] <= np.iinfo(kind).max)
        return values.astype(next(fitting, values.dtype))
    flat, small = values.reshape(-1), np.empty(values.size, np.float32)
    tiny, lost = np.finfo(np.float32).tiny, []

    def some(piece: slice) -> None:
        with np.errstate(all="ignore"):
            small[piece] = flat[piece]
            size = np.abs(small[piece])
            normal = (size >= tiny) & (size < np.inf)
            if not normal.all() and not (normal | (small[piece] == flat[piece]) | np.isnan(flat[piece])).all():
                lost.append(piece)

    in_chunks(flat.size, some)
    return values if lost else small.reshape(values.shape)


def _in_parts(values: npt.NDArray[Any], kind: np.dtype[Any], convert: Callable[[Any], Any]) -> npt.NDArray[Any]:
    """Convert a large array part by part, using all threads."""
    import numpy as np

    from deepgen.vocabulary.parallel import in_parts, usual_threads

    flat, out = np.ascontiguousarray(values).reshape(-1), np.empty(values.size, kind)

    def some(first: int, last: int) -> None:
        for part in range(first, last):
            where = slice(part * _PART, (part + 1) * _PART)
            out[where] = convert(flat[where])

    in_parts(-(-flat.size // _PART), usual_threads(), some)
    return out.reshape(values.shape)


def _narrowed(values: npt.NDArray[Any], to: DType) -> npt.NDArray[Any]:
    import numpy as np

    if to.name == "bf16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # Rounding the bits of a NaN could carry into infinity: use a quiet NaN.
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    if to.name in _EIGHT_BITS and values.dtype == np.float32 and values.size > _MEANT:
        bits = np.ascontiguousarray(values).view(np.uint32)
        # The upper half of the bits, with the last one set if any lower bit is set, rounds the same way.
        codes: npt.NDArray[Any] = _table(_EIGHT_BITS[to.name])[(bits >> 16) | ((bits & 0xFFFF) != 0)]
        return codes
    if to.name in _EIGHT_BITS:
        return _codes(values, _EIGHT_BITS[to.name])
    return values.astype(to.numpy())


@dataclass(frozen=True)
class _EightBits:
    """An 8-bit float: sign, exponent, fraction. Codes without the sign increase with the numbers."""

    fraction_bits: int
    lowest: int  # exponent of the smallest normal number; subnormal numbers have its step size
    top: float  # the largest number, or the value of infinity's code read as a number: larger numbers are clipped to it
    infinite: bool  # whether that code is infinity


_EIGHT_BITS = {
    "f8e4m3": _EightBits(fraction_bits=3, lowest=-6, top=448.0, infinite=False),
    "f8e5m2": _EightBits(fraction_bits=2, lowest=-14, top=2.0**16, infinite=True),
}
_NAN = 0x7F  # for either sign
_MEANT = 1 << 16  # the number of 16-bit upper halves of 32-bit floats
_PART = 1 << 18  # numbers that a thread converts at a time


@lru_cache(maxsize=None)  # noqa: UP033  bundles run on Python 3.8
def _table(of: _EightBits) -> npt.NDArray[Any]:
    """The code of each f32 number whose lower 16 bits are zero."""
    import numpy as np

    with np.errstate(all="ignore"):
        return _codes((np.arange(_MEANT, dtype=np.uint32) << 16).view(np.float32), of)


def _codes(values: npt.NDArray[Any], of: _EightBits) -> npt.NDArray[Any]:
    """Computed in the values' own precision, with a single inexact rounding: rounding twice could miss the nearest."""
    import numpy as np

    size = np.fmin(np.abs(values, dtype=np.result_type(values, np.float32)), of.top)
    exponent = np.frexp(np.maximum(size, 2.0**of.lowest))[1] - 1
    steps = np.rint(np.ldexp(size, of.fraction_bits - exponent)).astype(np.uint8)
    # A number that rounds up to the next power of two correctly carries into the exponent.
    code = steps + ((exponent - of.lowest) << of.fraction_bits).astype(np.uint8)
    sign = np.signbit(values).astype(np.uint8) << 7
    signed: npt.NDArray[Any] = np.where(np.isnan(values), np.uint8(_NAN), code) | sign
    return signed


def _meanings(of: _EightBits) -> npt.NDArray[Any]:
    """The value of each of the 256 codes."""
    import numpy as np

    code = np.arange(128)
    exponent = np.maximum(code >> of.fraction_bits, 1) - 1
    size = np.ldexp((code - (exponent << of.fraction_bits)).astype(np.float64), exponent + of.lowest - of.fraction_bits)
    size[size > of.top] = np.nan
    if of.infinite:
        size[size == of.top] = np.inf
    return np.concatenate([size, -size])


# Formats of kernels made by rules: with a type in C, and those that are stored only and computed with as f32.
OF_C = ("f32", "f64", "i8", "u8", "i16", "i32", "i64")
EIGHT_BITS = ("f8e4m3", "f8e5m2")
STORED = ("f16", "bf16", *EIGHT_BITS)


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The distinct values of an array, in order. Without an index numpy first imports its masked arrays: 12 ms, and
    0.17 s where there is no bytecode."""
    import numpy as np

    ordered: npt.NDArray[Any] = np.unique(values, return_index=True)[0]
    return ordered
