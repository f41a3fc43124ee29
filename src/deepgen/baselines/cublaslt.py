"""The best of cuBLASLt: every algorithm that its heuristic proposes is timed, and the fastest is the baseline.

If there is none, as for 8-bit types whose rows are not multiples of 16 bytes, it multiplies padded copies, and copying
is part of the call. The few functions needed are called through ctypes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from math import gcd, inf
from pathlib import Path
from statistics import median
from typing import Any

from deepgen.baselines.base import OnCopies, Timer
from deepgen.baselines.products import Matrices, padded_forms, product, stored
from deepgen.operators import Gemm, Operator
from deepgen.targets import Target
from deepgen.targets.gpu_driver import CUDA, Driver
from deepgen.vocabulary import DeepgenError, Missing
from deepgen.vocabulary import dtype as format_of

REQUESTED = 64
WORKSPACE = 64 << 20
_TRIES, _FINALISTS, _FINAL_TRIES = 3, 4, 15
_BALLAST = 256 << 20  # more than the last-level cache of any GPU so far
_FLOATS: dict[str, Any] = {"f32": ctypes.c_float, "tf32": ctypes.c_float, "f64": ctypes.c_double}


class CublasLt:
    """f32 is computed in f32 by multiply-adds; tensor cores are used if the operator's dtype allows it. 8-bit floats
    are accumulated as the operator specifies.
    """

    name = "cublaslt"

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "cuda" not in target.languages:
            return f"cuBLASLt does not run on {target.name}"
        if not isinstance(operator, Gemm):
            return f"cuBLASLt has no {operator.name}"
        if operator.bias or operator.activation != "none" or operator.scales != "none" or operator.epilogue:
            return "cuBLASLt is compared on plain products only"
        if (
            operator.a != operator.b
            or operator.a not in TYPES
            or operator.c not in TYPES
            or operator.acc not in COMPUTE
        ):
            return f"cuBLASLt does not multiply {operator.a} and {operator.b} into {operator.c}"
        return None if find() else "cuBLASLt is not installed (pip install nvidia-cublas)"

    @staticmethod
    def imports(operator: Operator) -> tuple[str, ...]:
        """Torch, if copies are needed, since it may copy faster than the driver. Importing it while holding the device
        delayed a search by 3.5 of its 5 seconds.
        """
        if not isinstance(operator, Gemm) or format_of(operator.a).bytes > 1:
            return ()
        return ("torch",) if any(True for _ in padded_forms(operator)) else ()

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        """The fastest algorithm, timed here: before each run, a buffer larger than the cache is filled."""
        driver = Driver(CUDA)
        ballast = driver.alloc(_BALLAST)
        start, end = driver.event(), driver.event()

        def seconds(run: Callable[[], None]) -> float:
            driver.fill(ballast, 0, _BALLAST)
            driver.record(start)
            run()
            driver.record(end)
            driver.synchronize()
            return driver.elapsed(start, end)

        try:
            return self.choose(operator, tensors, threads, seconds)
        finally:
            driver.free(ballast)

    def choose(
        self, operator: Operator, tensors: Mapping[str, Any], threads: int, seconds: Timer
    ) -> Callable[[], None]:
        path = find()
        operator = product(operator, "cuBLASLt")
        if path is None:
            raise Missing("cuBLASLt", blocks="its baseline cannot run", remedy="pip install nvidia-cublas")
        driver, handle = Driver(CUDA), Handle(path)
        addresses = {name: tensors[name].address for name in ("A", "B", "C")}
        try:
            return _Algorithms(driver, handle, operator, stored(operator)).best(addresses, seconds)
        except _NoAlgorithm as none:
            best: tuple[float, Callable[[], None]] | None = None
            for padded, matrices in padded_forms(operator):
                with suppress(_NoAlgorithm):
                    algorithms = _Algorithms(driver, handle, padded, matrices)
                    call = _on_copies(driver, algorithms, stored(operator), addresses, seconds)
                    taken = median(seconds(call) for _ in range(_FINAL_TRIES))
                    best = (taken, call) if best is None or taken < best[0] else best
                    if padded != operator:
                        break  # more padding is only slower
            if best is None:
                raise none
            return best[1]


class _NoAlgorithm(DeepgenError):
    """cuBLASLt has no algorithm for operands with this memory layout."""


class _Algorithms:
    """All algorithms for one product. cuBLASLt is column-major: C^T = op(B)^T op(A)^T is the row-major product."""

    def __init__(self, driver: Driver, handle: Handle, gemm: Gemm, matrices: Matrices) -> None:
        self.gemm, self.matrices = gemm, matrices
        self._driver, self._handle = driver, handle
        compute = "tf32" if gemm.a == "tf32" else gemm.acc
        product = handle.product(compute, (gemm.layout[1] == "t", gemm.layout[0] == "t"), gemm.fast_sums)
        second, first, result = (
            handle.layout(getattr(gemm, name.lower()), columns, rows, pitch, gemm.batch, rows * pitch)
            for name, (rows, columns, pitch) in matrices.items()
        )
        self._product, self._layouts = product, (first, second, result, result)
        try:
            self._proposals = handle.algorithms(product, self._layouts, REQUESTED, WORKSPACE)
        except DeepgenError as error:
            raise _NoAlgorithm(str(error)) from error
        self._alpha, self._beta = _scalar(gemm.alpha, compute), _scalar(gemm.beta, compute)
        self._workspace = c_void_p(self.memory(WORKSPACE))

    def memory(self, size: int) -> int:
        """Device memory that is freed together with this object."""
        address = self._driver.alloc(size)
        # One process times many products; at exit the context may be destroyed before this object.
        weakref.finalize(self, self._driver.free, address).atexit = False
        return address

    def best(self, addresses: Mapping[str, int], seconds: Timer) -> Callable[..., None]:
        """The fastest algorithm: all are timed a few times, then the best few and the heuristic's first again."""
        self._addresses = tuple(c_void_p(addresses[name]) for name in "BAC")
        calls = [self._call(heuristic) for heuristic in self._proposals]
        order = sorted((self._median(call, seconds, _TRIES), i) for i, call in enumerate(calls))
        finalists = [i for place, (taken, i) in enumerate(order) if taken < inf and (place < _FINALISTS or i == 0)]
        if not finalists:
            raise _NoAlgorithm("cuBLASLt has no algorithm for this product")
        return calls[min((self._median(calls[i], seconds, _FINAL_TRIES), i) for i in finalists)[1]]

    def _call(self, chosen: Heuristic) -> Callable[..., None]:
        b, a, c = self._addresses
        first, second, result, _ = self._layouts
        size, on = c_size_t(chosen.workspace), c_void_p(0)
        # Created once: creating them for each call would take longer than many launches.
        arguments = (
            self._product, byref(self._alpha), b, first, a, second, byref(self._beta), c, result, c, result,
            byref(chosen), self._workspace, size, on,
        )  # fmt: skip

        def run(stream: int = 0) -> None:
            on.value = stream
            status = self._handle.call(*arguments)
            if status:
                raise DeepgenError(f"cublasLtMatmul failed with status {status}")

        return run

    def _median(self, run: Callable[[], None], seconds: Timer, tries: int) -> float:
        try:
            run()
            self._driver.synchronize()
        except DeepgenError:  # an algorithm may be proposed that cannot run
            return inf
        return median(seconds(run) for _ in range(tries))


def _on_copies(
    driver: Driver, algorithms: _Algorithms, matrices: Matrices, addresses: Mapping[str, int], seconds: Timer
) -> OnCopies:
    """The product on copies of operands with another layout; the result is copied back. Padding is zero."""
    gemm, places = algorithms.gemm, dict(addresses)
    before: list[Callable[[int], None]] = []
    after: list[Callable[[int], None]] = []
    for name, (rows, columns, pitch) in algorithms.matrices.items():
        height, width, _ = matrices[name]
        if (rows, columns, pitch) == matrices[name]:
            continue
        each = format_of(getattr(gemm, name.lower())).bytes
        size = gemm.batch * rows * pitch * each
        places[name] = algorithms.memory(size)
        driver.fill(places[name], 0, size)
        theirs, copied = DeviceRows(addresses[name], height, width * each), DeviceRows(places[name], rows, pitch * each)
        shape = (gemm.batch, height, width * each)
        if name != "C" or gemm.beta:
            before.append(_fastest_copy(driver, copied, theirs, shape, seconds))
        if name == "C":
            after.append(_fastest_copy(driver, theirs, copied, shape, seconds))
    multiply = algorithms.best(places, seconds)

    def run(stream: int = 0) -> None:
        for copy in before:
            copy(stream)
        multiply(stream)
        for copy in after:
            copy(stream)

    return OnCopies(run)


@dataclass(frozen=True)
class DeviceRows:
    """Consecutive matrices in device memory, each with this many rows at this distance in bytes."""

    address: int
    height: int
    pitch: int

    def interface(self, shape: tuple[int, int, int], unit: int) -> dict[str, Any]:
        """The CUDA array interface, with integers of this many bytes as elements."""
        batch, rows, width = shape
        strides = (self.height * self.pitch, self.pitch, unit)
        typestr = f"{'|' if unit == 1 else '<'}i{unit}"
        like = {"shape": (batch, rows, width // unit), "strides": strides, "typestr": typestr, "version": 3}
        return {**like, "data": (self.address, False)}


def _fastest_copy(
    driver: Driver, to: DeviceRows, source: DeviceRows, shape: tuple[int, int, int], seconds: Timer
) -> Callable[[int], None]:
    """One call that copies the rows of all matrices: the driver's, or torch's if it is faster."""
    ways = [_driver_copy(driver, to, source, shape)]
    with suppress(DeepgenError):  # torch may be missing
        ways.append(_torch_copy(to, source, shape))
    taken = [median(seconds(lambda: way(0)) for _ in range(_TRIES)) for way in ways]  # noqa: B023
    return ways[taken.index(min(taken))]


def _driver_copy(
    driver: Driver, to: DeviceRows, source: DeviceRows, shape: tuple[int, int, int]
) -> Callable[[int], None]:
    batch, rows, width = shape
    sides = (CopySide(kind=_DEVICE, device=s.address, pitch=s.pitch, height=s.height) for s in (source, to))
    copied = Copy3D(*sides, width, rows, batch)
    function, on = driver.library["cuMemcpy3DAsync_v2"], c_void_p(0)

    def run(stream: int) -> None:
        on.value = stream
        driver.check("cuMemcpy3DAsync", function(byref(copied), on))

    return run


def _torch_copy(to: DeviceRows, source: DeviceRows, shape: tuple[int, int, int]) -> Callable[[int], None]:
    """The copy uses elements as wide as the alignment of all rows allows."""
    from deepgen.baselines.torch_gpu import device_view, gpu_torch

    torch = gpu_torch()
    unit = gcd(8, shape[2], *(number for one in (to, source) for number in (one.address, one.pitch)))
    target, origin = (device_view(torch, one.interface(shape, unit)) for one in (to, source))

    def run(stream: int) -> None:
        if stream:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
                target.copy_(origin)
        else:
            target.copy_(origin)

    return run


def _scalar(value: float, compute: str) -> Any:
    return ctypes.c_int32(int(value)) if compute == "i32" else _FLOATS[compute](value)


# cudaDataType, cublasComputeType_t and attribute numbers from cublas_api.h and cublasLt.h.
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


_DEVICE = 2  # CU_MEMORYTYPE_DEVICE


class CopySide(ctypes.Structure):
    """The part of CUDA_MEMCPY3D that describes one side's memory."""

    _fields_ = (
        *((name, c_size_t) for name in ("x", "y", "z", "lod")),
        ("kind", c_int),
        *((name, c_void_p) for name in ("host", "device", "array", "reserved")),
        *((name, c_size_t) for name in ("pitch", "height")),
    )


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (("source", CopySide), ("to", CopySide), *((name, c_size_t) for name in ("width", "rows", "depth")))


def find() -> Path | None:
    """The newest library, from a Python package or else from a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    paths = [path for folder in packages for path in folder.glob("*/lib/libcublasLt.so.*[0-9]")]
    paths = paths or [path for folder in _TOOLKITS for path in folder.glob("libcublasLt.so.*[0-9]")]
    return max(paths, key=lambda path: int(path.name.partition(".so.")[2].split(".")[0]), default=None)


class Handle:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._handle = c_void_p()
        self._call("cublasLtCreate", byref(self._handle))

    def product(self, compute: str, transposed: tuple[bool, bool], fast_sums: bool = False) -> c_void_p:
        """The descriptor of a product; scale factors have the compute type.

        `fast_sums`: 8-bit floats are accumulated as the tensor cores do it, with fewer bits than f32.
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
        """The algorithms proposed by the library's heuristic, best guess first, within this workspace size."""
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
        """Call cublasLtMatmul and return its status."""
        return int(self._library.cublasLtMatmul(self._handle, *arguments))

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._library[name](*arguments)
        if status:
            raise DeepgenError(f"{name} failed with status {status}")
