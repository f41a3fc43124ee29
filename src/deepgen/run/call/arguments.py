"""The arguments of a call: sorted by the operator's signature, and checked for support by the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deepgen.operators import Operator, Param, Tensor, TensorFacts
from deepgen.operators.filling import bounds
from deepgen.operators.signature import DENSE, INOUT, INPUT, ROWS, broadcast_strides, dense_strides, stored
from deepgen.run.call import plans
from deepgen.run.call.arrays import CPU, View, as_format
from deepgen.run.call.devices import Device
from deepgen.run.call.plans import Scalars
from deepgen.vocabulary import BadInput, Kernel, dtype


class Arguments:
    """The arguments that a call of an operator takes.

    By position: the tensors that are read, inputs first, then those that are also written. By name: any tensor
    (optional ones only by name), and run-time scalars, whose defaults are the operator's. `out` is for tensors that are
    written.
    """

    def __init__(self, operator: Operator) -> None:
        self._signature, self._operator = operator.signature(), operator
        read = [p for role in (INPUT, INOUT) for p in self._signature.tensors if p.role == role]
        self.written = tuple(p.name for p in self._signature.outputs)
        # Addresses are listed in this order everywhere.
        self.order = tuple(dict.fromkeys((*(p.name for p in read), *self.written)))
        self.needed = tuple(p.name for p in read if not p.optional)
        self.values = dict(operator.values())

    def usage(self) -> str:
        """How to write a call: `kernel(A, B) -> C`."""
        return f"kernel({', '.join(self.needed)}) -> {', '.join(self.written)}"

    def sort(
        self, inputs: Sequence[Any], out: Any, named: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, int | float]]:
        """The arrays and scalars of a call, by name. Outputs that have to be allocated are omitted."""
        if len(inputs) > len(self.needed):
            allowed = f"{', '.join(self.needed)}; others by name"
            raise BadInput(
                f"{self._operator.describe()} takes {len(self.needed)} arrays by position, not {len(inputs)}",
                allowed=allowed,
            )
        arrays = dict(zip(self.needed, inputs))  # noqa: B905  fewer may be given: the others by name
        values = dict(self.values)
        for name, value in named.items():
            if name in values:
                values[name] = self._number(self._signature[name], value)
            elif name not in self.order:
                allowed = "one of " + ", ".join((*self.order, *self.values))
                raise BadInput(f"the kernel has no parameter {name}", allowed=allowed)
            elif name in arrays:
                raise BadInput(f"{name} is given twice", allowed="once, by position or by name")
            elif value is not None:
                arrays[name] = value
        for name, array in self._outputs(out, [n for n in self.written if n not in arrays]).items():
            arrays[name] = array
        for name in self.needed:
            if arrays.get(name) is None:
                how = "out=" if name in self.written else f"{name}="
                raise BadInput(f"{self._operator.describe()} needs {name}", allowed=f"pass it as {how}")
        if not arrays:
            raise BadInput(
                f"{self._operator.describe()} has no inputs, so the device to use is unknown", allowed="pass out="
            )
        return {name: arrays[name] for name in self.order if name in arrays}, values

    def result(self, arrays: Mapping[str, Any]) -> Any:
        """The value that a call returns: the written arrays, several as a tuple."""
        results = tuple(arrays[name] for name in self.written)
        return results[0] if len(results) == 1 else results

    def _outputs(self, out: Any, open_: Sequence[str]) -> dict[str, Any]:
        if out is None:
            return {}
        if isinstance(out, Mapping):
            for name in out:
                if name not in open_:
                    raise BadInput(
                        f"out has {name!r}", allowed=", ".join(open_) or "pass nothing: all outputs are already given"
                    )
            return {name: array for name, array in out.items() if array is not None}
        if not isinstance(out, (tuple, list)) and len(open_) == 1:
            return {open_[0]: out}
        if not isinstance(out, (tuple, list)) or len(out) != len(open_):
            allowed = f"{', '.join(open_) or 'none'}: a tuple in this order, or a mapping"
            raise BadInput("out does not match the kernel's outputs", allowed=allowed)
        return {name: array for name, array in zip(open_, out, strict=True) if array is not None}

    def _number(self, param: Param, value: Any) -> int | float:
        wanted = int if dtype(self._signature.dtype_of(param)).integer else float
        try:
            number: int | float = wanted(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if isinstance(value, str) or number != value:
            kind = "an integer" if wanted is int else "a number"
            raise BadInput(f"{param.name} is {value!r}", allowed=kind)
        return number


@dataclass(frozen=True)
class Admitted:
    """The result of checking a call's arrays."""

    tensors: Mapping[str, Tensor]  # with the call's sizes
    scalars: Scalars
    empty: bool  # all outputs have no elements: there is nothing to run


def admit(
    kernel: Kernel, operator: Operator, device: Device, views: Mapping[str, View], values: Mapping[str, int | float]
) -> Admitted:
    """Check a call's arrays. Errors name the parameter."""
    signature = operator.signature()
    facts = {}
    for name, seen in views.items():
        param = signature[name]
        wanted = stored(signature.dtype_of(param))
        kind = as_format(seen.dtype, wanted)
        if kind != wanted:  # also where the signature has a variable: the kernel was built for one format
            raise BadInput(f"{name} is {seen}", allowed=wanted)
        if not device.has(seen):
            raise BadInput(f"{name} is on the device {seen.device}", allowed=f"an array on the {device.kind}")
        if param.written and not seen.writeable:
            raise BadInput(f"{name} is read-only", allowed="a writeable array")
        facts[name] = TensorFacts(seen.shape, signature.dtype_of(param), seen.strides, seen.device)
    solved = operator.solve(facts)
    tensors = {t.name: t for t in solved.tensors()}
    for param in signature.scalars:
        low, high = bounds(param, dtype(signature.dtype_of(param)), solved.sizes)
        if not low <= values[param.name] <= high:
            raise BadInput(f"{param.name} is {values[param.name]}", allowed=f"{low} to {high}")
    written = [tensors[p.name] for p in signature.outputs]
    if all(0 in tensor.shape for tensor in written):
        return Admitted(tensors, {}, empty=True)
    _check_elements([tensors[name] for name in views], written)
    for name, seen in views.items():
        _check_strides(signature[name], seen, device, operator)
    bound = operator.bind(facts, values)
    _check_told(kernel, bound, facts, tensors)
    scalars = bound.strided(facts)
    plans.check_shape(kernel, scalars)
    return Admitted(tensors, scalars, empty=False)


def _check_elements(passed: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    """Raises if elements of a result would be computed from none, such as the maximum of no numbers."""
    none = next((tensor for tensor in passed if 0 in tensor.shape), None)
    if none is not None:
        some = next(tensor for tensor in written if 0 not in tensor.shape)
        words = f"{none.name} has no elements ({_shape(none)}), but {some.name} has ({_shape(some)})"
        raise BadInput(words, allowed=f"{none.name} must not be empty unless the result is empty")


def _check_strides(param: Param, seen: View, device: Device, operator: Operator) -> None:
    """Raises if the array's strides do not satisfy the parameter's requirement."""
    steps = [*zip(seen.shape, seen.strides, dense_strides(seen.shape), strict=True)]
    if param.written and any(step == 0 and size > 1 for size, step, _ in steps):
        raise BadInput(f"{param.name} is written, but its elements overlap in memory", allowed="pass a contiguous copy")
    # Most families in C are verified only on dense arrays, whatever an operator's GPU families support.
    dense_only = device.kind == CPU and not operator.strided_on_processors
    wanted = DENSE if dense_only and param.strides == ROWS else param.strides
    if wanted == DENSE and any(step != dense and size > 1 for size, step, dense in steps):
        allowed = "use numpy.ascontiguousarray, or torch's contiguous()"
        raise BadInput(f"{param.name} is not a contiguous row-major array", allowed=allowed)
    if wanted == ROWS and steps and steps[-1][0] > 1 and steps[-1][1] != 1:
        words = f"{param.name} is not row-major: its last dimension has a stride of {steps[-1][1]}"
        raise BadInput(words, allowed="pass a contiguous copy")


def _check_told(
    kernel: Kernel, bound: Operator, facts: Mapping[str, TensorFacts], tensors: Mapping[str, Tensor]
) -> None:
    """Raises if the launch plan does not pass the kernel a stride that differs from a dense array's."""
    passed, plain = plans.names_of(kernel.plan), bound.scalars()
    for name, fact in facts.items():
        shape = tensors[name].shape
        dense = dense_strides(shape)
        steps = broadcast_strides(fact.shape, fact.strides or dense_strides(fact.shape), shape)
        for place, (size, step) in enumerate(zip(shape, steps, strict=True)):
            if size == 1 or step == dense[place]:
                continue
            only = replace(fact, shape=shape, strides=(*dense[:place], step, *dense[place + 1 :]))
            changed = {n for n, value in bound.strided({name: only}).items() if plain[n] != value}
            if not changed & passed:
                words = (
                    f"{name} has a stride of {step} along dimension {place}, which kernel {kernel.name} does not take"
                )
                raise BadInput(words, allowed=f"a contiguous array of {_shape(tensors[name])}")


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))
