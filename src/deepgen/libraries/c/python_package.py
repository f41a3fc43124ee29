"""Tuned kernels, made by `deepgen library export --wheel`: functions on numpy arrays, and on arrays of a GPU.

Every function is listed in FUNCTIONS and can be imported by its name. It takes the tensors that are read by position,
and `out=` for what is written; without it a new array is made. On a GPU, arrays have the CUDA array interface, `out=`
must be given, `workspace=` too where one is needed, and `stream=` is the driver's handle of a stream.
"""

# This file becomes the package's `__init__.py`. It needs only numpy.
from __future__ import annotations

import ctypes
import json
import operator
import threading
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).parent
_ABOUT = json.loads((_HERE / "functions.json").read_text(encoding="utf-8"))
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}


class NotServed(ValueError):
    """No kernel serves these arrays, or a vendor's library is expected to be faster: use that instead."""


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_HERE / "lib" / _ABOUT["library"]))
    if library.deepgen_abi_version() != _ABOUT["abi"]:
        raise ImportError(f"{_HERE} holds a library of another version than this file")
    library.deepgen_last_error.restype = ctypes.c_char_p
    return library


class Function:
    """An operator: its tensors, and the library function that computes it."""

    def __init__(self, library: ctypes.CDLL, about: dict[str, Any]) -> None:
        self.name: str = about["name"]
        self.__doc__ = about["doc"]
        self._library = library
        self._call = library[about["symbol"]]
        self._query = library[f"{about['symbol']}_workspace"]
        self._gpu: bool = about["gpu"]
        self._sizes: list[str] = about["sizes"]
        self._tensors: list[dict[str, Any]] = about["tensors"]
        self._shapes: list[dict[str, Any]] = about["shapes"]  # the only ones served; empty: any
        self._local = threading.local()

    def __call__(self, *arrays: Any, out: Any = None, workspace: Any = None, stream: int = 0, **sizes: int) -> Any:
        read = [tensor for tensor in self._tensors if tensor["read"]]
        written = [tensor for tensor in self._tensors if not tensor["read"]]
        if len(arrays) != len(read):
            raise TypeError(
                f"{self.name} takes {', '.join(tensor['name'] for tensor in read)}, not {len(arrays)} arrays"
            )
        values = dict(sizes)
        if self._shapes:
            read, written = self._as_tuned(read, written, arrays, values)
        places = {t["name"]: self._seen(t, array, values) for t, array in zip(read, arrays)}  # noqa: B905  Python 3.9
        outs = out if isinstance(out, tuple) else (out,) * len(written)
        results = [self._result(t, array, values) for t, array in zip(written, outs)]  # noqa: B905
        if out is not None and not self._gpu:
            self._check_results([t["name"] for t in written], results, arrays)
        places.update((t["name"], self._seen(t, array, values)) for t, array in zip(written, results))  # noqa: B905
        numbers = [ctypes.c_int64(values[name]) for name in self._sizes]
        arguments: list[Any] = [*numbers]
        for tensor in self._tensors:
            address, strides = places[tensor["name"]]
            arguments += [ctypes.c_void_p(address), *(ctypes.c_int64(s) for s in strides[: tensor["strides"]])]
        memory, size = self._workspace(numbers, workspace)
        arguments += [ctypes.c_void_p(memory), ctypes.c_size_t(size)]
        self._check(self._call(*arguments, *([ctypes.c_void_p(stream)] if self._gpu else [])))
        return results[0] if len(results) == 1 else tuple(results)

    def _as_tuned(
        self, read: list[dict[str, Any]], written: list[dict[str, Any]], arrays: Any, values: dict[str, int]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The tensors with the shapes of the kernel that takes these arrays; its sizes are stored in `values`."""
        shapes = {tensor["name"]: [*np.shape(array)] for tensor, array in zip(read, arrays)}  # noqa: B905
        able = [
            tuned
            for tuned in self._shapes
            if {**tuned["sizes"], **values} == tuned["sizes"]
            and all(tuned["tensors"][name] == shape for name, shape in shapes.items())
        ]
        untold = [name for name in self._sizes if len({tuned["sizes"][name] for tuned in able}) > 1]
        if untold:
            raise TypeError(f"{self.name}: {untold[0]} cannot be derived from the arrays: pass it as {untold[0]}=")
        if able:
            of = able[0]["tensors"]
            values.update(able[0]["sizes"])
            return [{**t, "shape": of[t["name"]]} for t in read], [{**t, "shape": of[t["name"]]} for t in written]
        raise NotServed(f"{self.name} was not tuned for arrays of these shapes. {self.__doc__}")

    def _seen(self, tensor: dict[str, Any], array: Any, values: dict[str, int]) -> tuple[int, list[int]]:
        """The address and the strides of an array that fits the tensor; sizes from its shape are stored in `values`."""
        interface = "__cuda_array_interface__" if self._gpu else "__array_interface__"
        about = getattr(array, interface, None)
        if about is None:
            raise TypeError(f"{tensor['name']} has no {interface}")
        kind, shape = np.dtype(about["typestr"]), tuple(about["shape"])
        if kind != np.dtype(tensor["dtype"]):
            bits = f": pass its bits, by view(numpy.{tensor['dtype']})" if kind.kind == "V" else ""
            raise TypeError(f"{tensor['name']} is {getattr(array, 'dtype', kind)}, but must be {tensor['dtype']}{bits}")
        if len(shape) != len(tensor["shape"]):
            raise ValueError(f"{tensor['name']} has {len(shape)} dimensions, but must have {len(tensor['shape'])}")
        for size, expected in zip(shape, tensor["shape"], strict=True):
            if isinstance(expected, str):
                values.setdefault(expected, size)
            if _number(expected, values) != size:
                words = f"{tensor['name']} has the shape {shape}, which does not fit the others"
                raise ValueError(words)
        steps = about.get("strides") or [kind.itemsize * int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        strides = [step // kind.itemsize for step in steps]
        dense = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        first = tensor["strides"]  # strides from this one on must be dense
        if any(s != d and n > 1 for s, d, n in list(zip(strides, dense, shape, strict=True))[first:]):
            raise ValueError(f"{tensor['name']} is not row-major: pass a contiguous copy")
        return about["data"][0], [d if n == 1 else s for s, d, n in zip(strides, dense, shape, strict=True)]

    def _result(self, tensor: dict[str, Any], result: Any, values: dict[str, int]) -> Any:
        if result is not None:
            return result
        if self._gpu:
            raise TypeError(f"{self.name} runs on a GPU: pass {tensor['name']} as out=")
        return np.empty([_number(size, values) for size in tensor["shape"]], tensor["dtype"])

    @staticmethod
    def _check_results(names: list[str], results: list[Any], read: Any) -> None:
        """Raise if an array of the caller's cannot be written, or if it overlaps an input."""
        for name, array in zip(names, results):  # noqa: B905
            if isinstance(array, np.ndarray) and not array.flags.writeable:
                raise ValueError(f"{name} is read-only")
            if any(isinstance(one, np.ndarray) and np.may_share_memory(array, one) for one in read):
                raise ValueError(f"{name} overlaps an input array: pass a separate one")

    def _workspace(self, numbers: list[Any], passed: Any) -> tuple[int, int]:
        """The address and the bytes of the workspace; on a CPU each thread keeps its own."""
        needed = ctypes.c_size_t()
        self._check(self._query(*numbers, ctypes.byref(needed)))
        if self._gpu:
            about = {} if passed is None else passed.__cuda_array_interface__
            size = np.dtype(about["typestr"]).itemsize * int(np.prod(about["shape"])) if about else 0
            return (about["data"][0] if about else 0), size
        if getattr(self._local, "bytes", 0) < needed.value:
            self._local.memory = np.empty(needed.value, np.uint8)
            self._local.bytes = needed.value
        return (self._local.memory.ctypes.data, self._local.bytes) if needed.value else (0, 0)

    def _check(self, status: int) -> None:
        if status:
            words = self._library.deepgen_last_error().decode(errors="replace")
            raise {1: NotServed, 2: ValueError}.get(status, RuntimeError)(words)


def _number(size: Any, values: dict[str, int]) -> int:
    """A size: a number, a name, or an operation on two sizes."""
    if isinstance(size, list):
        return int(_OPERATIONS[size[0]](_number(size[1], values), _number(size[2], values)))
    if isinstance(size, str):
        if size not in values:
            raise TypeError(f"{size} is not known from the arrays: pass it as {size}=")
        return values[size]
    return int(size)


FUNCTIONS = {about["name"]: Function(_library(), about) for about in _ABOUT["functions"]}
globals().update(FUNCTIONS)
__all__ = ["FUNCTIONS", "Function", "NotServed"]
