"""The arguments of a user's own kernel: tensors, numbers and scratch memory, in the order of its parameters."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from deepgen.operators.filling import drawn
from deepgen.operators.signature import INOUT, INPUT, OUTPUT, Param, Size, Tensor
from deepgen.vocabulary import BadInput, DType
from deepgen.vocabulary import dtype as dtype_of
from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.dtypes import narrow

Array: TypeAlias = npt.NDArray[Any]
# How an input is filled: see `input`.
Fill: TypeAlias = "str | tuple[Any, ...] | Array | Callable[..., Any]"
_MOST_ALIGN = 256  # the alignment that allocators of device memory provide
CTYPES = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64")


def _fill_to_json(fill: Any) -> Any:
    """Arrays and functions are identified by their digest only."""
    if fill is None or isinstance(fill, str):
        return fill
    if isinstance(fill, tuple):
        return list(fill)
    if isinstance(fill, np.ndarray):
        return {"array": hashlib.sha256(np.ascontiguousarray(fill).tobytes()).hexdigest()[:16]}
    return {"function": getattr(fill, "__qualname__", type(fill).__name__)}


def _fill_from_json(fill: Any) -> Any:
    return tuple(fill) if isinstance(fill, list) else fill


@dataclass(frozen=True)
class TensorArgument(Serializable):
    """A buffer. With a `symbol` it is not passed but copied to that global variable before each run."""

    json_kind: ClassVar[str] = "tensor"

    name: str
    role: str
    shape: tuple[Size, ...]
    dtype: str
    fill: Any = field(default=None, metadata=coded(write=_fill_to_json, read=_fill_from_json))
    checked: bool = field(default=True, metadata=coded(omit=True))  # False: what the kernel writes there is ignored
    symbol: str | None = field(default=None, metadata=coded(omit=True))
    # Bytes that its address is a multiple of; 0: the size of an element.
    align: int = field(default=0, metadata=coded(omit=True))


@dataclass(frozen=True)
class ScalarArgument(Serializable):
    """A number passed by value.

    `value`: None if its name is a size; otherwise an expression over sizes and strides, or a number. A number is the
    default of a keyword of the call.
    """

    json_kind: ClassVar[str] = "scalar"

    name: str
    ctype: str
    value: int | float | str | None = None
    # The values with which kernels are tested.
    range: tuple[float, float] | None = field(default=None, metadata=coded(omit=True))


@dataclass(frozen=True)
class ScratchArgument(Serializable):
    """Memory for the kernel's own use; its size is a number or an expression over sizes and knobs."""

    json_kind: ClassVar[str] = "scratch"

    name: str
    bytes: Size
    zeroed: bool = False


Argument: TypeAlias = "TensorArgument | ScalarArgument | ScratchArgument"


def input(
    name: str, shape: Sequence[Size] | Size, dtype: str, *, fill: Fill | None = None, align: int = 0
) -> TensorArgument:
    """A tensor that the kernel reads.

    `fill` is its content while tuning: "normal", ("uniform", low, high), ("integers", low, high), "permutation",
    "zeros", "ones", an array, or a function of a numpy random generator and the shape. Without it, floats are drawn
    from a normal distribution and integers from the whole range of their type. Bounds may be expressions over sizes.

    `align`: required alignment in bytes, such as 64. Without it the kernel must work at any element-aligned address;
    with it, calls with less aligned arrays are refused.
    """
    return _tensor(name, INPUT, shape, dtype, fill, align=align)


def output(
    name: str, shape: Sequence[Size] | Size, dtype: str, *, checked: bool = True, align: int = 0
) -> TensorArgument:
    """A tensor that the kernel writes. `checked=False`: its content is not compared."""
    return _tensor(name, OUTPUT, shape, dtype, None, checked=checked, align=align)


def inout(
    name: str,
    shape: Sequence[Size] | Size,
    dtype: str,
    *,
    fill: Fill | None = None,
    checked: bool = True,
    align: int = 0,
) -> TensorArgument:
    """A tensor that the kernel reads and writes. It is refilled before every run."""
    return _tensor(name, INOUT, shape, dtype, fill, checked=checked, align=align)


def constant(
    name: str, shape: Sequence[Size] | Size, dtype: str, *, fill: Fill | None = None, symbol: str | None = None
) -> TensorArgument:
    """A tensor that the kernel reads from a global variable, such as one in a GPU's constant memory."""
    return _tensor(name, INPUT, shape, dtype, fill, symbol=symbol or name)


def scalar(
    name: str,
    dtype: str,
    value: int | float | str | None = None,
    *,
    range: tuple[float, float] | None = None,
) -> ScalarArgument:
    """A number passed by value: a size, an expression such as "n * 4", or an independent number.

    The winner must be correct for two other values of an independent number, drawn from its `range`, or near it.
    """
    ctype = dtype_of(dtype).name if dtype not in CTYPES else dtype
    if ctype not in CTYPES:
        raise BadInput(f"scalar {name} is {dtype}", allowed="one of " + ", ".join(CTYPES))
    _check_name(name)
    if range is not None and (not isinstance(value, (int, float)) or len(range) != 2 or range[0] > range[1]):
        raise BadInput(f"the range of scalar {name} is {range!r}", allowed="two numbers")
    return ScalarArgument(name, ctype, value, None if range is None else (range[0], range[1]))


def workspace(name: str, bytes: Size, *, zeroed: bool = False) -> ScratchArgument:
    """Scratch memory. `zeroed`: set to zero before every run."""
    _check_name(name)
    return ScratchArgument(name, bytes, zeroed)


def texture(name: str, *_: object, **__: object) -> TensorArgument:
    """Refused: deepgen does not support textures."""
    raise BadInput(f"argument {name} is a texture", allowed="pass tensors in memory: deepgen does not support textures")


def _tensor(
    name: str,
    role: str,
    shape: Sequence[Size] | Size,
    dtype: str,
    fill: Fill | None,
    *,
    checked: bool = True,
    symbol: str | None = None,
    align: int = 0,
) -> TensorArgument:
    _check_name(name)
    if type(align) is not int or not 0 <= align <= _MOST_ALIGN or align & (align - 1):
        raise BadInput(f"{name} is aligned to {align!r} bytes", allowed=f"a power of two up to {_MOST_ALIGN}")
    sizes = (shape,) if isinstance(shape, (int, str)) else tuple(shape)
    return TensorArgument(name, role, sizes, dtype_of(dtype).name, fill, checked, symbol, align)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise BadInput(f"an argument is named {name!r}", allowed="a name such as a or weights")


KINDS = {
    "normal": "a standard normal distribution",
    "uniform": '("uniform", low, high)',
    "integers": '("integers", low, high), both included',
    "permutation": "a random permutation of 0, 1, 2, ...",
    "zeros": "all zero",
    "ones": "all one",
}


def check(argument: TensorArgument) -> None:
    """Raises BadInput for an invalid fill."""
    fill, name = argument.fill, argument.name
    if fill is None or callable(fill) or isinstance(fill, (np.ndarray, dict)):
        return
    kind, *rest = (fill,) if isinstance(fill, str) else tuple(fill) or ("nothing",)
    if kind not in KINDS or len(rest) != (2 if kind in ("uniform", "integers") else 0):
        raise BadInput(f"{name} is filled by {fill!r}", allowed="one of " + ", ".join(KINDS) + ", an array, a function")


def declared_range(argument: TensorArgument) -> tuple[Size | float, Size | float] | None:
    """The bounds that a fill declares: probes at the ends of a range stay within them."""
    fill = argument.fill
    if isinstance(fill, tuple) and fill[0] in ("uniform", "integers"):
        low, high = fill[1:]
        return low, high
    return None


def free(argument: TensorArgument) -> bool:
    """Whether it may be filled with other numbers: an index, a given array or a permutation has a meaning."""
    fill = argument.fill
    return fill is None or (isinstance(fill, str) and fill == "normal") or declared_range(argument) is not None


def filled(
    argument: TensorArgument, param: Param, tensor: Tensor, sizes: Mapping[str, int], seed: int, probe: str
) -> Array:
    """One input in its storage dtype."""
    fill, of = argument.fill, tensor.dtype
    if free(argument):
        return drawn(tensor, param, sizes, seed, probe)
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    if isinstance(fill, str) and fill == "permutation":
        count = int(np.prod(tensor.shape, dtype=np.int64))
        return narrow(rng.permutation(count).reshape(tensor.shape), of)
    if isinstance(fill, str):
        value = np.full(tensor.shape, fill == "ones", np.int64 if of.integer else np.float32)
        return narrow(value, of)
    values = fill if isinstance(fill, np.ndarray) else _called(argument, rng, tensor)
    if values.shape != tensor.shape:
        raise BadInput(f"{tensor.name} is filled with an array of shape {values.shape}", allowed=f"{tensor.shape}")
    return stored(values, of)


def stored(values: Array, of: DType) -> Array:
    """An array of numbers, or already in a format's storage dtype, in that dtype."""
    if values.dtype == of.numpy():
        return np.ascontiguousarray(values)
    return narrow(values if of.integer else values.astype(np.float64), of)


def _called(argument: TensorArgument, rng: np.random.Generator, tensor: Tensor) -> Array:
    if not callable(argument.fill):
        what = f"the fill of {argument.name} is not available: a study stores functions and arrays by name only"
        raise BadInput(what, allowed="the file that the kernel was described in")
    return np.asarray(argument.fill(rng, tensor.shape))
