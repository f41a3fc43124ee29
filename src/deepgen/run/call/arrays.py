"""Arrays of any library: numpy (including ml_dtypes), torch, CuPy, JAX, and others with DLPack or the CUDA array
interface.

No array library is imported here: a caller that passes its arrays has already imported it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from deepgen.operators import Array, Tensor
from deepgen.operators.signature import dense_strides, stored
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import DTYPES

CPU, GPU = "cpu", "gpu"
# Makes a new array on the same device as the given one.
Maker: TypeAlias = "Callable[[Any], Any]"

# Our formats, with their names in numpy, ml_dtypes, torch, CuPy and JAX, in the array interface, and with DLPack's code
# and bits. Formats that a library lacks may also be passed as unsigned integers that hold the bits.
_FORMATS = (
    ("f64", "float64", "f8", (2, 64)), ("f32", "float32", "f4", (2, 32)), ("f16", "float16", "f2", (2, 16)),
    ("bf16", "bfloat16", "V2", (4, 16)),
    ("f8e4m3", "float8_e4m3fn", "", (10, 8)), ("f8e5m2", "float8_e5m2", "", (12, 8)),
    ("i8", "int8", "i1", (0, 8)), ("u8", "uint8", "u1", (1, 8)),
    ("i16", "int16", "i2", (0, 16)), ("u16", "uint16", "u2", (1, 16)),
    ("i32", "int32", "i4", (0, 32)), ("i64", "int64", "i8", (0, 64)),
)  # fmt: skip
_THEIRS = {ours: theirs for ours, theirs, _, _ in _FORMATS}
_NAMES = {theirs: ours for ours, theirs in _THEIRS.items()}
_INTERFACE = {word: ours for ours, _, word, _ in _FORMATS if word}
_DLPACK = {code: ours for ours, _, _, code in _FORMATS}
_MALLOC, _TORCHS = 16, 64  # alignment in bytes of numpy's arrays, and of torch's tensors on the CPU
_STRIDED = "torch.strided"
_DLPACK_DEVICES = {1: CPU, 2: GPU, 10: GPU}  # the host, CUDA, ROCm


@dataclass(frozen=True)
class View:
    """An array's address, shape and layout. Strides are in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # our name of the format, or the library's if we have none
    device: str  # cpu, gpu, or gpu:N if the array tells the device's number
    writeable: bool = True

    def of(self, dtype: str) -> View:
        """The same bytes in another format."""
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.shape)) or '(a single number)'}"


def view(array: Any, name: str = "the array") -> View:
    """The view of any array. Raises BadInput, with the given name, if it is not an array."""
    if isinstance(array, np.ndarray):
        return _of_numpy(array, name)
    if is_torch(array):
        return _of_torch(array, name)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(interface)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array, name)
    allowed = "pass a numpy or torch array, or one with DLPack or the CUDA array interface"
    raise BadInput(f"{name} is not an array but a {type(array).__name__}", allowed=allowed)


def glance(array: Any, name: str) -> tuple[Any, int]:
    """Everything that a call depends on except the address, in hashable form, and the address."""
    if type(array) is np.ndarray:
        return (array.shape, array.strides, array.dtype, array.flags.writeable), array.ctypes.data
    if is_torch(array) and str(array.layout) == _STRIDED:
        return (array.shape, array.stride(), array.dtype, array.device), array.data_ptr()
    seen = view(array, name)
    return (seen.shape, seen.strides, seen.dtype, seen.device, seen.writeable), seen.address


def as_format(seen: str, wanted: str) -> str:
    """The format of an array where `wanted` is expected: unsigned integers may hold its bits."""
    of = DTYPES[stored(wanted)]
    return of.name if not of.native and seen == _NAMES[of.storage] else seen


def is_torch(array: Any) -> bool:
    return hasattr(array, "data_ptr")


def allocator(arrays: Sequence[Any], tensor: Tensor, align: int) -> Maker:
    """A function that makes a new array of the same library as these, on the device of the array that it is given: the
    first.

    numpy has no bf16 and 8-bit floats: ml_dtypes is used if one of the arrays uses it, otherwise integers with the
    bits.
    """
    like, shape, dtype = arrays[0], tensor.shape, tensor.dtype.name
    theirs = _THEIRS[stored(dtype)]
    if is_torch(like):
        torch = sys.modules["torch"]
        element, plain = getattr(torch, theirs), (torch.Tensor, torch.nn.Parameter)
        if like.device.type == CPU and align > _TORCHS:
            return lambda a: _aligned_tensor(a, shape, element, align)
        make = torch_maker(shape, dense_strides(shape), element, like.device)
        return lambda a: make() if type(a) in plain else a.new_empty(shape, dtype=element)
    if isinstance(like, np.ndarray):
        element_type = _numpy_dtype(arrays, dtype)
        return lambda _: np.empty(shape, element_type) if align <= _MALLOC else _aligned(shape, element_type, align)
    library = type(like).__module__.partition(".")[0]
    if library == "cupy":
        element_type = _numpy_dtype(arrays, dtype)
        return lambda a: _by_cupy(a, shape, element_type)
    if library in ("jax", "jaxlib"):
        jax = sys.modules["jax"]
        # JAX creates arrays asynchronously, after the call returns.
        return lambda a: jax.numpy.empty(shape, theirs, device=a.sharding).block_until_ready()
    raise BadInput(f"cannot allocate {tensor.name} for arrays of type {type(like).__name__}", allowed="pass it as out=")


def torch_maker(shape: Sequence[int], strides: Sequence[int], element: Any, device: Any) -> Callable[[], Any]:
    """A function that makes a new tensor with a private function of torch's compiler, in a third of the time.

    The variant for GPUs uses the current device, so there must be only one.
    """
    torch = sys.modules["torch"]
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    quick = getattr(guards, f"_empty_strided_{device.type}", None)
    if quick is None or (device.type == "cuda" and torch.cuda.device_count() > 1):
        return partial(torch.empty_strided, shape, strides, dtype=element, device=device)
    return partial(quick, shape, strides, element)


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream: a number, or a stream of torch, CuPy, cuda.core or numba."""
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise BadInput(f"{type(stream).__name__} is not a stream", allowed="a handle, or a torch or CuPy stream")


def as_bytes(seen: View) -> Array:
    """The array as a numpy array of bytes, with one more dimension. Nothing is read or copied."""
    width = DTYPES[seen.dtype].bytes
    return np.asarray(
        SimpleNamespace(
            __array_interface__={
                "version": 3,
                "data": (seen.address, True),
                "shape": (*seen.shape, width),
                "strides": (*(stride * width for stride in seen.strides), 1),
                "typestr": "|u1",
            }
        )
    )


def _numpy_dtype(arrays: Sequence[Any], dtype: str) -> np.dtype[Any]:
    of = DTYPES[dtype]
    types = [getattr(getattr(array, "dtype", None), "type", object) for array in arrays]
    if not of.native and any(element.__module__ == "ml_dtypes" for element in types):
        extended: np.dtype[Any] = np.dtype(getattr(sys.modules["ml_dtypes"], _THEIRS[dtype]))
        return extended
    return of.numpy()


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any], align: int) -> Array:
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + align, np.uint8)
    skip = -raw.ctypes.data % align
    return raw[skip : skip + size].view(dtype).reshape(shape)


def _aligned_tensor(like: Any, shape: tuple[int, ...], element: Any, align: int) -> Any:
    raw = like.new_empty(prod(shape) + align // element.itemsize, dtype=element)
    skip = -raw.data_ptr() % align // element.itemsize
    return raw[skip : skip + prod(shape)].reshape(shape)


def _by_cupy(like: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    with like.device:
        return sys.modules["cupy"].empty(shape, dtype)


def _of_numpy(array: Array, name: str) -> View:
    if not array.dtype.isnative:
        raise BadInput(f"{name} is not in native byte order", allowed="convert it with astype(dtype.newbyteorder('='))")
    width = array.itemsize
    if any(step % width for step in array.strides):
        raise BadInput(
            f"{name} has strides that are not multiples of its element size", allowed="pass a contiguous copy"
        )
    kind = _NAMES.get(array.dtype.name, array.dtype.name)
    strides = tuple(step // width for step in array.strides)
    return View(array.ctypes.data, array.shape, strides, kind, CPU, array.flags.writeable)


def _of_torch(array: Any, name: str) -> View:
    if str(array.layout) != _STRIDED:
        raise BadInput(f"{name} has the layout {array.layout}", allowed="a dense tensor: use to_dense()")
    kind, index = array.device.type, array.device.index
    if kind not in ("cpu", "cuda"):  # torch calls AMD's GPUs cuda as well
        raise BadInput(f"{name} is on {array.device}", allowed="a tensor on the CPU or on an NVIDIA or AMD GPU")
    device = CPU if kind == "cpu" else f"{GPU}:{index}"
    theirs = str(array.dtype).rpartition(".")[2]
    return View(array.data_ptr(), tuple(array.shape), tuple(array.stride()), _NAMES.get(theirs, theirs), device)


def _of_interface(interface: dict[str, Any]) -> View:
    shape, word = tuple(interface["shape"]), interface["typestr"]
    width = int(word[2:])
    steps = interface.get("strides")
    strides = tuple(s // width for s in steps) if steps else dense_strides(shape)
    address, read_only = interface["data"]
    return View(address, shape, strides, _INTERFACE.get(word[1:], word), GPU, not read_only)


class _Tensor(ctypes.Structure):
    """DLTensor, the first member of the struct in a DLPack capsule."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _of_dlpack(array: Any, name: str) -> View:
    """The view of a DLPack array. The capsule stays the producer's, and the array must outlive the call anyway."""
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    device = _DLPACK_DEVICES.get(tensor.device_type)
    if device is None:
        raise BadInput(f"{name} is on a device of DLPack type {tensor.device_type}", allowed="the CPU or a GPU")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense_strides(shape)
    kind = _DLPACK.get((tensor.code, tensor.bits), f"DLPack's format {tensor.code} of {tensor.bits} bits")
    where = device if device == CPU else f"{GPU}:{tensor.device_id}"
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, kind, where)
