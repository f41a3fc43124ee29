"""BLAS libraries: through numpy, and through the C interface that OpenBLAS and MKL share."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from deepgen.baselines import expression_calls
from deepgen.baselines.products import factors, product
from deepgen.operators import Array, Gemm, Operator
from deepgen.operators.expr.operator import Expressed
from deepgen.targets import Target
from deepgen.vocabulary import DeepgenError, Missing

_ROWS, _PLAIN, _TRANSPOSED = 101, 111, 112  # CblasRowMajor, CblasNoTrans, CblasTrans
_LETTERS = {"f32": ("s", c_float), "f64": ("d", c_double)}
_SYSTEM = ("/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
           "/opt/intel/oneapi/mkl/latest/lib")  # fmt: skip


class _Cblas:
    """C = alpha A B + beta C by cblas_sgemm or cblas_dgemm."""

    name = ""
    called, remedy = "", ""
    files: Sequence[str] = ()
    set_threads: Sequence[str] = ()
    # The prefix and suffix of function names, and the integer type, for each kind of library.
    spellings = (("", "", c_int), ("", "64_", c_int64), ("scipy_", "", c_int), ("scipy_", "64_", c_int64))

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"{self.called} does not run on {target.name}"
        if not isinstance(operator, Gemm):
            return f"{self.called} has no {operator.name}"
        if operator.a not in _LETTERS or not operator.a == operator.b == operator.c:
            return f"{self.called} is compared in f32 and f64 only"
        words = (operator.bias, operator.activation, operator.scales, operator.epilogue)
        if operator.batch > 1 or words != (False, "none", "none", ""):
            return f"{self.called} is compared on plain products only"
        return None if self.find() else f"{self.called} is not installed ({self.remedy})"

    def find(self) -> Path | None:
        """The library's file, from a Python package or else from the system."""
        folders = [*_packages(), *map(Path, (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_SYSTEM))]
        paths = (path for pattern in self.files for folder in folders for path in sorted(folder.glob(pattern)))
        return next(paths, None)

    def prepare(self, operator: Operator, tensors: Mapping[str, Array], threads: int) -> Callable[[], None]:
        path = self.find()
        if path is None:
            raise Missing(self.called, blocks="its baseline cannot run", remedy=self.remedy)
        operator = product(operator, self.called)
        library = ctypes.CDLL(str(path))
        letter, number = _LETTERS[operator.a]
        call, size = self._function(library, f"cblas_{letter}gemm")
        self._limit(library, threads)
        m, n, k = operator.m, operator.n, operator.k
        transposed = [layout == "t" for layout in operator.layout]
        a, b, c = (c_void_p(tensors[name].ctypes.data) for name in "ABC")
        arguments: list[Any] = [
            c_int(_ROWS), *(c_int(_TRANSPOSED if flag else _PLAIN) for flag in transposed), size(m), size(n), size(k),
            number(operator.alpha), a, size(m if transposed[0] else k), b, size(k if transposed[1] else n),
            number(operator.beta), c, size(n),
        ]  # fmt: skip
        call.restype = None
        return partial(call, *arguments)

    def _function(self, library: Any, name: str) -> tuple[Any, Any]:
        for before, after, size in self.spellings:
            function = getattr(library, f"{before}{name}{after}", None)
            if function is not None:
                return function, size
        raise DeepgenError(f"{self.called} has no {name}")

    def _limit(self, library: Any, threads: int) -> None:
        for name in self.set_threads:
            for before, after, _ in self.spellings:
                function = getattr(library, f"{before}{name}{after}", None)
                if function is not None:
                    function(c_int(threads))
                    return


class OpenBlas(_Cblas):
    """Takes part only when requested by name, because numpy calls the same library if it was built with it."""

    name = "openblas"
    on_request = True
    called, remedy = "OpenBLAS", "apt install libopenblas0, or pip install scipy-openblas32"
    files = ("libopenblas.so*", "libscipy_openblas*.so*", "libopenblas*.so*")
    set_threads = ("openblas_set_num_threads",)


class Mkl(_Cblas):
    """MKL through its single dynamic library, with 32-bit sizes."""

    name = "mkl"
    called, remedy = "MKL", "pip install mkl"
    files = ("libmkl_rt.so*",)
    set_threads = ("MKL_Set_Num_Threads",)


def _packages() -> list[Path]:
    """Folders in which Python packages keep their bundled libraries."""
    prefix = Path(sys.prefix) / "lib"
    folders = [prefix]
    for name in ("scipy_openblas32", "scipy_openblas64", "numpy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            folders += [folder / "lib", folder.with_name(f"{name}.libs")]
    return folders


class NumpyBlas:
    """matmul for products, and for expressions the calls a numpy user would write.

    The number of threads is set through the worker's environment, which the BLAS reads when it is loaded.
    """

    name = "numpy"
    behind = True

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"numpy does not run on {target.name}"
        if isinstance(operator, Expressed):
            return expression_calls.unfit(operator.expression(), expression_calls.ArrayCalls)
        if not isinstance(operator, Gemm):
            return f"numpy has no {operator.name}"
        if operator.a not in ("f32", "f64") or not operator.a == operator.b == operator.c:
            return "numpy's BLAS multiplies f32 or f64 only"
        if operator.beta != 0.0 or operator.alpha != 1.0 or operator.bias or operator.scales != "none":
            return "numpy's matmul has no alpha, beta, bias or scales"
        return "numpy's matmul has no activation" if operator.activation != "none" or operator.epilogue else None

    def prepare(self, operator: Operator, tensors: Mapping[str, Array], threads: int) -> Callable[[], None]:
        if isinstance(operator, Expressed):
            return expression_calls.call_of(expression_calls.ArrayCalls(), operator.expression(), tensors)
        operator = product(operator, "numpy")
        return partial(np.matmul, *factors(operator, tensors), out=tensors["C"])

    @staticmethod
    def called(operator: Gemm) -> str:
        """The function that `prepare` calls."""
        return "numpy.matmul(out=)"
