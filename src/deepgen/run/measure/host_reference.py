"""References on a processor by an operator's own kernel in C, on all threads, once numpy has checked some elements."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from deepgen.operators import Answer, Array, Operator
from deepgen.run.measure.base import Helper
from deepgen.run.measure.sampled import doubt
from deepgen.vocabulary import Kernel, ScalarArg, TensorArg, WorkspaceArg
from deepgen.vocabulary.parallel import in_parts


@dataclass(frozen=True)
class HostReference:
    """One kernel, loaded: it serves all shapes whose kernel has the same text."""

    name: str
    library: ctypes.CDLL
    threads: int

    @staticmethod
    def load(helper: Helper, threads: int) -> HostReference | None:
        """None where the file is gone: a cache may have been cleaned meanwhile."""
        try:
            return HostReference(helper.kernel.name, ctypes.CDLL(str(helper.binary)), threads)
        except OSError:
            return None

    def answers(self, operator: Operator, inputs: Mapping[str, Array], probe: str) -> dict[str, Answer] | str:
        """The reference, or why it cannot be trusted; empty words where this kernel is not the operator's."""
        kernel = operator.reference_kernel("c")
        if kernel is None or kernel.name != self.name:
            return ""
        arrays = self._run(kernel, operator, inputs)
        out = {}
        for tensor in operator.tensors():
            if tensor.role == "input":
                continue
            values = arrays[f"want_{tensor.name}"].reshape(tensor.shape)
            scale = arrays.get(f"scale_{tensor.name}")
            answer = Answer(values) if scale is None else Answer(values, scale.reshape(tensor.shape))

            def some(of: str, places: Array) -> Array:
                picked: Array = arrays[of].reshape(-1)[places]
                return picked

            if words := doubt(operator, tensor, inputs, probe, some, scaled=scale is not None):
                return words
            out[tensor.name] = answer
        return out

    def _run(self, kernel: Kernel, operator: Operator, inputs: Mapping[str, Array]) -> dict[str, Array]:
        arrays: dict[str, Array] = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for tensor in operator.tensors():
            if tensor.role != "input":
                integer, count = tensor.dtype.integer, prod(tensor.shape)
                arrays[f"want_{tensor.name}"] = np.empty(count, np.int64 if integer else np.float64)
                if not integer:
                    wide = np.float64 if tensor.dtype.name == "f64" else np.float32
                    arrays[f"scale_{tensor.name}"] = np.empty(count, wide)
        for step in kernel.plan.steps:
            values: list[object] = []
            for arg in step.args:
                if isinstance(arg, ScalarArg):
                    values.append(ctypes.c_int64(int(arg.value)))
                    continue
                if isinstance(arg, WorkspaceArg) and arg.name not in arrays:
                    arrays[arg.name] = np.empty(int(arg.bytes), np.uint8)
                assert isinstance(arg, (TensorArg, WorkspaceArg)), "a reference takes nothing else"
                name = arg.tensor if isinstance(arg, TensorArg) else arg.name
                values.append(ctypes.c_void_p(arrays[name].ctypes.data))
            entry = getattr(self.library, step.entry)
            in_parts(int(step.grid[0]), self.threads, partial(_call, entry, values))
        return arrays


def _call(entry: Callable[..., object], values: Sequence[object], first: int, last: int) -> None:
    entry(ctypes.c_int64(first), ctypes.c_int64(last), *values)
