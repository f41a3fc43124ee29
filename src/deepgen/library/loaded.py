"""A tuned kernel as a Python function on numpy arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from deepgen.build import build_once
from deepgen.library.gpu import LoadedGpuKernel
from deepgen.library.shapes import check_shape
from deepgen.measure.native import NativeKernel
from deepgen.operators import Array, Gemm, Operator
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import BadInput, DeepgenError, Kernel


class LoadedKernel:
    """Call it with the operator's inputs; sizes are taken from the arrays, so one kernel serves many shapes."""

    def __init__(self, kernel: Kernel, operator: Gemm, binary: Path) -> None:
        self.kernel = kernel
        self.operator = operator
        self._native = NativeKernel(kernel, binary)
        self._admitted: set[tuple[int, ...]] = set()

    def __call__(self, a: Array, b: Array, *, out: Array | None = None) -> Array:
        """C from A and B. With beta, `out` must be given and holds C before and after."""
        operator = self._for(a, b)
        tensors = {t.name: t for t in operator.tensors()}
        if set(tensors) != {"A", "B", "C"}:
            raise BadInput(f"{operator.describe()} takes more inputs than A and B", allowed="a plain GEMM")
        if out is None:
            if operator.beta != 0.0:
                raise BadInput("this kernel adds beta * C: it needs C", allowed="pass it as out=")
            out = tensors["C"].empty()
        arrays = {"A": a, "B": b, "C": out}
        for name, array in arrays.items():
            _check(name, array, tensors[name].shape, tensors[name].dtype.numpy())
        scalars = operator.scalars()
        shape = (operator.m, operator.n, operator.k, operator.batch)
        if shape not in self._admitted:
            check_shape(self.kernel, scalars)
            self._admitted.add(shape)
        self._native.run(arrays, scalars)
        return out

    def _for(self, a: Array, b: Array) -> Gemm:
        op = self.operator
        if a.ndim != b.ndim or a.ndim != (3 if op.batch > 1 else 2):
            raise BadInput(f"A has {a.ndim} and B {b.ndim} dimensions", allowed="2 each, or 3 with a batch")
        m, k = a.shape[-2:] if op.layout[0] == "n" else a.shape[:-3:-1]
        kb, n = b.shape[-2:] if op.layout[1] == "n" else b.shape[:-3:-1]
        if k != kb:
            raise BadInput(f"A has K={k} and B has K={kb} in layout {op.layout}", allowed="the same K in both")
        return replace(op, m=m, n=n, k=k, batch=a.shape[0] if a.ndim == 3 else 1)

    def __repr__(self) -> str:
        return f"<deepgen kernel {self.kernel.name} for {self.operator.describe()}>"


Loaded: TypeAlias = "LoadedKernel | LoadedGpuKernel"


def load(kernel: Kernel, operator: Operator, target: Target, binary: Path | None = None) -> Loaded:
    """Load a kernel into this process, building it when there is no binary."""
    if kernel.language not in ("c", "cuda", "hip") or not isinstance(operator, Gemm):
        raise DeepgenError(f"kernels in {kernel.language} for {target.name} cannot be called from this process")
    if isinstance(target, Gpu):
        return LoadedGpuKernel(kernel, operator, binary or Path(build_once(kernel, target).binary))
    return LoadedKernel(kernel, operator, binary or Path(build_once(kernel, target).binary))


def _check(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise BadInput(f"{name} is {array.dtype} {array.shape}", allowed=f"{dtype} {shape}")
    if not array.flags.c_contiguous:
        raise BadInput(f"{name} is not contiguous in row-major order", allowed="use numpy.ascontiguousarray")
    if name == "C" and not array.flags.writeable:
        raise BadInput("out is read-only", allowed="a writeable array")
