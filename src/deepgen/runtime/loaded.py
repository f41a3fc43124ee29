"""A tuned kernel as a Python function on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from deepgen.build import build_once
from deepgen.operators import Array, Gemm, Operator
from deepgen.runtime.loaded_gpu import LoadedGpuKernel
from deepgen.runtime.native import NativeKernel
from deepgen.runtime.overlap import refuse_arrays
from deepgen.runtime.shapes import check_shape
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import BadInput, DeepgenError, Kernel


@dataclass(frozen=True)
class _Admitted:
    """What is worked out once for each shape: a call takes microseconds, and so must all that is around it."""

    tensors: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    scalars: Mapping[str, int | float]


class LoadedKernel:
    """Call it with the operator's inputs; sizes are taken from the arrays, so one kernel serves many shapes."""

    def __init__(self, kernel: Kernel, operator: Gemm, binary: Path) -> None:
        self.kernel = kernel
        self.operator = operator
        self._native = NativeKernel(kernel, binary)
        self._admitted: dict[tuple[tuple[int, ...], tuple[int, ...]], _Admitted] = {}

    def __call__(self, a: Array, b: Array, *, bias: Array | None = None, out: Array | None = None) -> Array:
        """C from A and B, and bias where the kernel adds one. With beta, `out` must hold C; it does so afterwards."""
        try:
            admitted = self._admitted.get((a.shape, b.shape)) or self._admit(a, b)
        except AttributeError:
            kinds = f"{type(a).__name__} and {type(b).__name__}"
            raise BadInput(f"A and B are {kinds}", allowed="arrays of numpy: use numpy.asarray") from None
        if out is None:
            if self.operator.beta != 0.0:
                raise BadInput("this kernel adds beta * C: it needs C", allowed="pass it as out=")
            out = np.empty(*admitted.tensors["C"])
        else:
            refuse_arrays(out, {"A": a, "B": b})
        arrays = {"A": a, "B": b, "C": out}
        if bias is not None:
            arrays["bias"] = bias
        if arrays.keys() != admitted.tensors.keys():
            wanted = ", ".join(sorted(admitted.tensors))
            raise BadInput(f"this kernel was given {', '.join(sorted(arrays))}", allowed=f"exactly {wanted}")
        for name, array in arrays.items():
            _check(name, array, *admitted.tensors[name])
        self._native.run(arrays, admitted.scalars)
        return out

    def _admit(self, a: Array, b: Array) -> _Admitted:
        operator = self._for(a, b)
        scalars = operator.scalars()
        check_shape(self.kernel, scalars)
        tensors = {t.name: (t.shape, t.dtype.numpy()) for t in operator.tensors()}
        return self._admitted.setdefault((a.shape, b.shape), _Admitted(tensors, scalars))

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
