"""References on a CPU by an operator's own C kernel, on all threads, after numpy has verified some elements."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from deepgen.operators import Answer, Array, Operator, Tensor, Tolerance
from deepgen.operators.compare import Comparison, flat_scale, floor, largest, scale_format
from deepgen.operators.expr.interpret import ancestors, interpret
from deepgen.operators.expr.nodes import HasExpression
from deepgen.operators.expr.reference_kernels import is_narrow
from deepgen.run.measure.base import Helper
from deepgen.run.measure.references import doubt
from deepgen.vocabulary import Kernel, ScalarArg, TensorArg, WorkspaceArg
from deepgen.vocabulary.dtypes import DType, widen
from deepgen.vocabulary.dtypes import dtype as dtype_of
from deepgen.vocabulary.parallel import in_parts

_FORMATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u8", "i16", "i32", "i64")  # reference.h's order
_POINTER, _STAGE = ctypes.c_void_p, "stage_"


@dataclass(frozen=True)
class HostReference:
    """A loaded reference kernel, for all shapes whose kernel has the same source."""

    name: str
    library: ctypes.CDLL
    threads: int

    @staticmethod
    def load(helper: Helper, threads: int) -> HostReference | None:
        """None if the file is gone: a cache may have been cleaned in the meantime."""
        try:
            return HostReference(helper.kernel.name, ctypes.CDLL(str(helper.binary)), threads)
        except OSError:
            return None

    def answers(self, operator: Operator, inputs: Mapping[str, Array], probe: str) -> dict[str, Answer] | str:
        """The reference, or why it cannot be trusted; "" if this kernel is not the operator's."""
        kernel = operator.reference_kernel("c")
        if kernel is None or kernel.name != self.name:
            return ""
        arrays = self._run(kernel, operator, inputs)
        out = {}
        for tensor in operator.tensors():
            if tensor.role == "input":
                continue
            values, scale = arrays[f"want_{tensor.name}"].reshape(tensor.shape), arrays.get(f"scale_{tensor.name}")
            some = partial(_picked, arrays)
            if words := doubt(operator, tensor, inputs, probe, some, scaled=scale is not None):
                return words
            out[tensor.name] = Answer(values) if scale is None else Answer(values, scale.reshape(tensor.shape))
        return out

    def _run(self, kernel: Kernel, operator: Operator, inputs: Mapping[str, Array]) -> dict[str, Array]:
        arrays: dict[str, Array] = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for tensor in operator.tensors():
            if tensor.role != "input":
                arrays.update(_results(tensor))
        self._multiply(kernel, operator, arrays)
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
                values.append(_POINTER(arrays[name].ctypes.data))
            entry = getattr(self.library, step.entry)
            in_parts(int(step.grid[0]), self.threads, partial(_call, entry, values))
        return arrays

    @staticmethod
    def _multiply(kernel: Kernel, operator: Operator, arrays: dict[str, Array]) -> None:
        """Compute with numpy the sums of products that the kernel leaves out."""
        names = {arg.tensor for step in kernel.plan.steps for arg in step.args if isinstance(arg, TensorArg)}
        stages = [name[len(_STAGE) :] for name in names if name.startswith(_STAGE)]
        if stages and isinstance(operator, HasExpression):
            expression = operator.expression()
            read = [t for t in expression.tensors if t.name in ancestors(expression, stages)]
            wide = {t.name: widen(arrays[t.name], dtype_of(t.dtype)) for t in read}
            computed = interpret(expression, wide, stages)
            for name in stages:
                numbers = computed.held[name]
                arrays[_STAGE + name] = np.ascontiguousarray(numbers.values)
                arrays[f"off_{name}"] = np.ascontiguousarray(np.broadcast_to(numbers.error, numbers.values.shape))

    def compare(self, got: Array, want: Answer, dtype: DType, tolerance: Tolerance) -> Comparison:
        """The same as in `operators/compare.py`."""
        reference, scale = want.values.reshape(-1), np.ascontiguousarray(flat_scale(want))
        narrow, wide = reference.dtype == np.float32, scale.dtype == np.float64
        if not wide and scale.dtype != np.float32:
            scale = scale.astype(np.float32)
        entry = self.library.reference_compare
        entry.restype = ctypes.c_int64
        kind = _FORMATS.index(dtype.name.replace("tf32", "f32"))
        values = (
            _POINTER(got.ctypes.data), ctypes.c_int64(kind), _POINTER(reference.ctypes.data), ctypes.c_int64(narrow),
            _POINTER(scale.ctypes.data), ctypes.c_int64(scale.size > 1), ctypes.c_int64(wide),
            *map(ctypes.c_double, (tolerance.absolute, tolerance.relative)),
            *map(ctypes.c_double, (0.0 if dtype.integer else largest(dtype), floor(dtype, tolerance))),
        )  # fmt: skip
        parts: list[tuple[float, int, int]] = []

        def part(first: int, last: int) -> None:
            worst, place = ctypes.c_double(), ctypes.c_int64()
            limits = ctypes.c_int64(first), ctypes.c_int64(last)
            wrong = entry(*limits, *values, ctypes.byref(worst), ctypes.byref(place))
            parts.append((worst.value, wrong, place.value))

        in_parts(got.size, self.threads, part)
        first = min((place for _, wrong, place in parts if wrong), default=None)
        return Comparison(max(error for error, _, _ in parts), sum(wrong for _, wrong, _ in parts), first, got.size)


def _results(tensor: Tensor) -> dict[str, Array]:
    """Arrays for an output's reference, in the formats that the kernel writes."""
    of, count = tensor.dtype, prod(tensor.shape)
    if of.integer:
        return {f"want_{tensor.name}": np.empty(count, np.int64)}
    wide = scale_format(of).numpy()
    kind = np.float32 if is_narrow(of) else np.float64
    return {f"want_{tensor.name}": np.empty(count, kind), f"scale_{tensor.name}": np.empty(count, wide)}


def _call(entry: Callable[..., object], values: Sequence[object], first: int, last: int) -> None:
    entry(ctypes.c_int64(first), ctypes.c_int64(last), *values)


def _picked(arrays: Mapping[str, Array], name: str, places: Array) -> Array:
    values: Array = arrays[name][places]
    return values.astype(np.float64) if name.startswith("want_") and values.dtype == np.float32 else values


class HostReferences:
    """All reference kernels of a worker."""

    def __init__(self, helpers: Sequence[Helper], threads: int) -> None:
        loaded = (HostReference.load(helper, threads) for helper in helpers if helper.binary.is_file())
        self._every = [one for one in loaded if one is not None]

    def answers(self, operator: Operator, inputs: Mapping[str, Array], probe: str) -> dict[str, Answer] | str:
        """The answers from the operator's kernel, or why numpy has to compute them."""
        for one in self._every:
            if (computed := one.answers(operator, inputs, probe)) != "":
                return computed
        return ""

    @property
    def compare(self) -> Callable[[Array, Answer, DType, Tolerance], Comparison] | None:
        return self._every[0].compare if self._every else None
