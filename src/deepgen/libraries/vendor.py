"""A vendor's library in place of a kernel: called like one, where none of ours serves or is as fast."""

from __future__ import annotations

from typing import Any

from deepgen import baselines
from deepgen.operators import Operator, TensorFacts
from deepgen.operators.signature import dense_strides
from deepgen.run.call.arguments import Arguments
from deepgen.run.call.arrays import CPU, View, allocator, view
from deepgen.run.measure.gpu_buffers import DeviceTensor
from deepgen.targets import Target, host
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import DTYPES


class VendorKernel:
    """Call it with the arrays that the operator reads, as a loaded kernel."""

    def __init__(self, name: str, operator: Operator, target: Target, threads: int | None = None) -> None:
        self.name, self.operator, self.target = name, operator, target
        self._baseline = baselines.by_name(name)
        self._arguments = Arguments(operator)
        self._threads = threads or host.usable_cores()

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """What the operator gives: an array, or a tuple of several. Arrays must be dense."""
        arrays, values = self._arguments.sort(inputs, out, named)
        seen = {name: view(array, name) for name, array in arrays.items()}
        signature = self.operator.signature()
        facts = {
            n: TensorFacts(v.shape, signature.dtype_of(signature[n]), v.strides, v.device) for n, v in seen.items()
        }
        bound = self.operator.bind(facts, values)
        if (why := self._baseline.missing(bound, self.target)) is not None:
            raise BadInput(f"{self.name} does not serve {bound.describe()}", allowed=why)
        for tensor in bound.tensors():
            if tensor.name in self._arguments.written and tensor.name not in arrays:
                arrays[tensor.name] = allocator([*arrays.values()], tensor, 1)(next(iter(arrays.values())))
                seen[tensor.name] = view(arrays[tensor.name], tensor.name)
        shaped = {t.name: t for t in bound.tensors()}
        tensors = {name: _shared(name, arrays[name], seen[name], shaped[name].dtype.name) for name in seen}
        self._baseline.prepare(bound, tensors, self._threads)()
        return self._arguments.result(arrays)

    def __repr__(self) -> str:
        return f"<{self.name} for {self.operator.describe()}, in place of a deepgen kernel>"


def _shared(name: str, array: Any, seen: View, dtype: str) -> Any:
    """The array's memory in the form that baselines take it in."""
    if seen.strides != dense_strides(seen.shape):
        raise BadInput(f"{name} is not a contiguous row-major array", allowed="pass a contiguous copy")
    if seen.device != CPU:
        return DeviceTensor(seen.address, seen.shape, DTYPES[dtype])
    import numpy as np

    return array if isinstance(array, np.ndarray) else np.asarray(array)
