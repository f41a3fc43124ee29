"""The best of cuBLASLt: every algorithm that its heuristic proposes is tried, and the fastest is the rival."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from ctypes import byref, c_size_t, c_void_p
from math import inf
from statistics import median
from typing import Any

from deepgen.baselines.base import Timer
from deepgen.baselines.cublaslt_api import COMPUTE, TYPES, Handle, Heuristic, find
from deepgen.operators import Gemm, Operator
from deepgen.targets import Target
from deepgen.targets.gpu_driver import CUDA, Driver
from deepgen.vocabulary import BadInput, DeepgenError, Missing

REQUESTED = 64
WORKSPACE = 64 << 20
_TRIES, _FINALISTS, _FINAL_TRIES = 3, 4, 15
_BALLAST = 256 << 20  # more than the last-level cache of any GPU so far
_FLOATS: dict[str, Any] = {"f32": ctypes.c_float, "tf32": ctypes.c_float, "f64": ctypes.c_double}


class CublasLt:
    """f32 is computed in f32 by multiply-adds; tensor cores take part where the operator's dtype says so.

    8-bit floats are added up as the operator asks.
    """

    name = "cublaslt"

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "cuda" not in target.languages:
            return f"cuBLASLt does not run on {target.name}"
        if not isinstance(operator, Gemm):
            return f"cuBLASLt has no {operator.name}"
        if operator.bias or operator.activation != "none" or operator.scales != "none":
            return "cuBLASLt is compared on plain products only"
        if (
            operator.a != operator.b
            or operator.a not in TYPES
            or operator.c not in TYPES
            or operator.acc not in COMPUTE
        ):
            return f"cuBLASLt does not multiply {operator.a} and {operator.b} into {operator.c}"
        return None if find() else "cuBLASLt is not installed (pip install nvidia-cublas)"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        """The fastest by a clock of its own: each run follows the filling of a buffer larger than the cache."""
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
        if not isinstance(operator, Gemm):
            raise BadInput(f"cuBLASLt has no {operator.name}")
        if path is None:
            raise Missing("cuBLASLt", blocks="its baseline cannot run", remedy="pip install nvidia-cublas")
        return _Products(Driver(CUDA), Handle(path), operator, tensors).best(seconds)


class _Products:
    """One product by any algorithm. cuBLASLt is column-major: C^T = op(B)^T op(A)^T is the row-major product."""

    def __init__(self, driver: Driver, handle: Handle, gemm: Gemm, tensors: Mapping[str, Any]) -> None:
        self._driver, self._handle = driver, handle
        a, b, c = (tensors[name].address for name in ("A", "B", "C"))
        ta, tb = gemm.layout[0] == "t", gemm.layout[1] == "t"
        m, n, k, batch = gemm.m, gemm.n, gemm.k, gemm.batch
        compute = "tf32" if gemm.a == "tf32" else gemm.acc
        self._product = handle.product(compute, (tb, ta), gemm.fast_sums)
        first = handle.layout(gemm.b, *((k, n) if tb else (n, k)), k if tb else n, batch, k * n)
        second = handle.layout(gemm.a, *((m, k) if ta else (k, m)), m if ta else k, batch, m * k)
        result = handle.layout(gemm.c, n, m, n, batch, m * n)
        self._layouts = (first, second, result, result)
        self._alpha, self._beta = _scalar(gemm.alpha, compute), _scalar(gemm.beta, compute)
        self._addresses = (c_void_p(b), c_void_p(a), c_void_p(c))
        workspace = driver.alloc(WORKSPACE)
        self._workspace = c_void_p(workspace)
        # One process times many products; at its end the context may be gone before this is.
        weakref.finalize(self, driver.free, workspace).atexit = False

    def best(self, seconds: Timer) -> Callable[[], None]:
        """The fastest algorithm: all are tried a few times, the best few and the heuristic's own choice again."""
        found = self._handle.algorithms(self._product, self._layouts, REQUESTED, WORKSPACE)
        calls = [self._call(heuristic) for heuristic in found]
        order = sorted((self._median(call, seconds, _TRIES), i) for i, call in enumerate(calls))
        finalists = [i for place, (taken, i) in enumerate(order) if taken < inf and (place < _FINALISTS or i == 0)]
        if not finalists:
            raise DeepgenError("cuBLASLt has no algorithm for this product")
        return calls[min((self._median(calls[i], seconds, _FINAL_TRIES), i) for i in finalists)[1]]

    def _call(self, chosen: Heuristic) -> Callable[[], None]:
        b, a, c = self._addresses
        first, second, result, _ = self._layouts
        size, on = c_size_t(chosen.workspace), c_void_p(0)
        # Kept as they are passed: making them anew for each call would take longer than many a launch.
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
        except DeepgenError:  # proposed but not runnable: it happens
            return inf
        return median(seconds(run) for _ in range(tries))


def _scalar(value: float, compute: str) -> Any:
    return ctypes.c_int32(int(value)) if compute == "i32" else _FLOATS[compute](value)
