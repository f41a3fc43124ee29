"""Whether a kernel serves the arrays of a call: what is worked out once for their shapes, strides and formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deepgen.operators import Operator, Param, Tensor, TensorFacts
from deepgen.operators.base import bounds
from deepgen.operators.signature import DENSE, ROWS, broadcast_strides, dense_strides, stored
from deepgen.run.call import plans
from deepgen.run.call.arrays import CPU, View, as_format
from deepgen.run.call.devices import Device
from deepgen.run.call.plans import Scalars
from deepgen.vocabulary import BadInput, Kernel, dtype


@dataclass(frozen=True)
class Admitted:
    """What a call with such arrays comes to."""

    tensors: Mapping[str, Tensor]  # with the sizes of the call
    scalars: Scalars
    empty: bool  # all that is written has no elements: there is nothing to run


def admit(
    kernel: Kernel,
    operator: Operator,
    device: Device,
    views: Mapping[str, View],
    values: Mapping[str, int | float],
) -> Admitted:
    """What does not fit is said by the parameter's name."""
    signature = operator.signature()
    facts = {}
    for name, seen in views.items():
        param = signature[name]
        wanted = stored(signature.dtype_of(param))
        kind = as_format(seen.dtype, wanted)
        if kind != wanted:  # where the signature has a variable too: the kernel was built for one format
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
        _check_strides(signature[name], seen, device)
    bound = operator.bind(facts, values)
    _check_told(kernel, bound, facts, tensors)
    scalars = bound.strided(facts)
    plans.check_shape(kernel, scalars)
    return Admitted(tensors, scalars, empty=False)


def _check_elements(given: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    """Raises where elements of a result would be made of nothing, as the greatest of no numbers is."""
    none = next((tensor for tensor in given if 0 in tensor.shape), None)
    if none is not None:
        some = next(tensor for tensor in written if 0 not in tensor.shape)
        words = f"{none.name} has no elements ({_shape(none)}), and {some.name} has ({_shape(some)})"
        raise BadInput(words, allowed=f"{none.name} must not be empty unless the result is")


def _check_strides(param: Param, seen: View, device: Device) -> None:
    """Whether the array's strides are what the parameter requires."""
    steps = [*zip(seen.shape, seen.strides, dense_strides(seen.shape), strict=True)]
    if param.written and any(step == 0 and size > 1 for size, step, _ in steps):
        raise BadInput(f"{param.name} is written, but its elements overlap in memory", allowed="pass a contiguous copy")
    # Families in C are verified on dense arrays only, whatever an operator's families for GPUs serve.
    wanted = DENSE if device.kind == CPU and param.strides == ROWS else param.strides
    if wanted == DENSE and any(step != dense and size > 1 for size, step, dense in steps):
        allowed = "use numpy.ascontiguousarray, or contiguous() of torch"
        raise BadInput(f"{param.name} is not a contiguous row-major array", allowed=allowed)
    if wanted == ROWS and steps and steps[-1][0] > 1 and steps[-1][1] != 1:
        words = f"{param.name} is not row-major: its last dimension has a stride of {steps[-1][1]}"
        raise BadInput(words, allowed="pass a contiguous copy")


def _check_told(
    kernel: Kernel, bound: Operator, facts: Mapping[str, TensorFacts], tensors: Mapping[str, Tensor]
) -> None:
    """Whether the launch plan tells the kernel of each stride that is not that of a dense array."""
    told, plain = plans.names_of(kernel.plan), bound.scalars()
    for name, given in facts.items():
        shape = tensors[name].shape
        dense = dense_strides(shape)
        steps = broadcast_strides(given.shape, given.strides or dense_strides(given.shape), shape)
        for place, (size, step) in enumerate(zip(shape, steps, strict=True)):
            if size == 1 or step == dense[place]:
                continue
            only = replace(given, shape=shape, strides=(*dense[:place], step, *dense[place + 1 :]))
            changed = {n for n, value in bound.strided({name: only}).items() if plain[n] != value}
            if not changed & told:
                words = (
                    f"{name} has a stride of {step} along dimension {place}, which kernel {kernel.name} is not told of"
                )
                raise BadInput(words, allowed=f"a contiguous array of {_shape(tensors[name])}")


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))
