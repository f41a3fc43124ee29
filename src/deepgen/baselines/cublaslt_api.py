"""The few calls of NVIDIA's cuBLASLt that a matrix product needs, through ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from deepgen.vocabulary import DeepgenError

# cudaDataType, cublasComputeType_t and the attributes' numbers, as cublas_api.h and cublasLt.h give them.
TYPES = {"f32": 0, "tf32": 0, "f64": 1, "f16": 2, "i8": 3, "i32": 10, "bf16": 14, "f8e4m3": 28, "f8e5m2": 29}
COMPUTE = {"f32": 68, "f64": 70, "i32": 72, "tf32": 77}
_TRANSPOSE_A, _TRANSPOSE_B, _FAST_SUMS = 3, 4, 25
_BATCH, _STRIDE = 5, 6
_WORKSPACE = 1
_TOOLKITS = (Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu"))


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm and what it needs."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


def find() -> Path | None:
    """The newest library of a Python package, else of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    found = [path for folder in packages for path in folder.glob("*/lib/libcublasLt.so.*[0-9]")]
    found = found or [path for folder in _TOOLKITS for path in folder.glob("libcublasLt.so.*[0-9]")]
    return max(found, key=lambda path: int(path.name.partition(".so.")[2].split(".")[0]), default=None)


class Handle:
    """The library, opened."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._handle = c_void_p()
        self._call("cublasLtCreate", byref(self._handle))

    def product(self, compute: str, transposed: tuple[bool, bool], fast_sums: bool = False) -> c_void_p:
        """The description of a product; scale factors have the type that is computed in.

        `fast_sums`: 8-bit floats are added up as the tensor cores do it, with fewer bits than f32 has.
        """
        out = c_void_p()
        scale = {"tf32": "f32"}.get(compute, compute)
        self._call("cublasLtMatmulDescCreate", byref(out), COMPUTE[compute], TYPES[scale])
        for attribute, flag in zip((_TRANSPOSE_A, _TRANSPOSE_B), transposed, strict=True):
            value = c_int(flag)
            self._call("cublasLtMatmulDescSetAttribute", out, attribute, byref(value), c_size_t(4))
        if fast_sums:
            fast = ctypes.c_int8(1)
            self._call("cublasLtMatmulDescSetAttribute", out, _FAST_SUMS, byref(fast), c_size_t(1))
        return out

    def layout(self, dtype: str, rows: int, columns: int, leading: int, batch: int, stride: int) -> c_void_p:
        """A column-major matrix, or a batch of them."""
        out = c_void_p()
        self._call(
            "cublasLtMatrixLayoutCreate",
            byref(out),
            TYPES[dtype],
            c_uint64(rows),
            c_uint64(columns),
            ctypes.c_int64(leading),
        )
        if batch > 1:
            count, step = c_int(batch), ctypes.c_int64(stride)
            self._call("cublasLtMatrixLayoutSetAttribute", out, _BATCH, byref(count), c_size_t(4))
            self._call("cublasLtMatrixLayoutSetAttribute", out, _STRIDE, byref(step), c_size_t(8))
        return out

    def algorithms(
        self, product: c_void_p, layouts: tuple[c_void_p, ...], count: int, workspace: int
    ) -> list[Heuristic]:
        """What the library's heuristic proposes, best guess first, each with a workspace of no more than that."""
        preference, size = c_void_p(), c_uint64(workspace)
        self._call("cublasLtMatmulPreferenceCreate", byref(preference))
        self._call("cublasLtMatmulPreferenceSetAttribute", preference, _WORKSPACE, byref(size), c_size_t(8))
        results, returned = (Heuristic * count)(), c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle,
            product,
            *layouts,
            preference,
            count,
            results,
            byref(returned),
        )
        return [result for result in results[: returned.value] if result.state == 0]

    def call(self, *arguments: Any) -> int:
        """cublasLtMatmul, its status as answer."""
        return int(self._library.cublasLtMatmul(self._handle, *arguments))

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._library[name](*arguments)
        if status:
            raise DeepgenError(f"{name} failed with status {status}")
