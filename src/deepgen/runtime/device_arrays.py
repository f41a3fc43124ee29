"""Arrays in device memory, whoever made them: torch, CuPy, JAX, or anything with DLPack or the CUDA array interface."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from deepgen.vocabulary import BadInput

_TORCH = {
    "torch.float64": "f64",
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "f8e4m3",
    "torch.float8_e5m2": "f8e5m2",
    "torch.int8": "i8",
    "torch.uint8": "u8",
    "torch.int32": "i32",
    "torch.int64": "i64",
}
_NUMPY = {"f8": "f64", "f4": "f32", "f2": "f16", "i1": "i8", "u1": "u8", "i4": "i32", "i8": "i64", "V2": "bf16"}
_DLPACK = {(2, 64): "f64", (2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (0, 8): "i8", (1, 8): "u8", (0, 32): "i32"}
_CUDA, _ROCM = 2, 10  # DLPack's kinds of device


@dataclass(frozen=True)
class View:
    """Where an array lies and how. Strides count elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def view(array: Any) -> View:
    """Any device array as numbers. Raises BadInput when it is none."""
    if hasattr(array, "data_ptr"):
        if array.device.type != "cuda":
            raise BadInput(f"a tensor on {array.device}", allowed="a tensor on the GPU")
        return View(
            array.data_ptr(), tuple(array.shape), tuple(array.stride()), _TORCH.get(str(array.dtype), "unknown")
        )
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(interface)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    kind = type(array).__name__
    raise BadInput(f"{kind} is no device array", allowed="one with DLPack or the CUDA array interface")


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
    raise BadInput(f"{type(stream).__name__} is no stream", allowed="a handle, or a stream of torch or CuPy")


def _from_interface(interface: dict[str, Any]) -> View:
    shape, word = tuple(interface["shape"]), interface["typestr"]
    width = int(word[2:])
    steps = interface.get("strides")
    strides = tuple(s // width for s in steps) if steps else _dense(shape)
    return View(interface["data"][0], shape, strides, _NUMPY.get(word[1:], "unknown"))


class _Tensor(ctypes.Structure):
    """DLTensor, the first member of what a DLPack capsule holds."""

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


def _from_dlpack(array: Any) -> View:
    """The capsule is only looked at: it stays the producer's, and the array must outlive the call anyway."""
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.device_type not in (_CUDA, _ROCM):
        raise BadInput("the array is not in GPU memory", allowed="an array on the GPU")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _dense(shape)
    kind = _DLPACK.get((tensor.code, tensor.bits), "unknown")
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides, kind)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
