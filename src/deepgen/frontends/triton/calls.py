"""A call of a Triton kernel as an operator to tune: copies of its tensors, its numbers, and its configs.

A call does not say which tensors a kernel writes. So each is treated as read and written, and its final content must
agree with that of the first config.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deepgen.kernels.own.arguments import Argument, ScalarArgument, TensorArgument
from deepgen.kernels.own.description import Description, OwnLaunch, checked
from deepgen.kernels.own.operator import KernelOperator, class_of
from deepgen.kernels.own.triton_family import ALL_OPTIONS, TritonFamily
from deepgen.kernels.own.triton_text import keyed, read
from deepgen.operators import Operator, Tolerance
from deepgen.space import Space, parse
from deepgen.space.expr import const
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, DeepgenError, Kernel, dtype
from deepgen.vocabulary.dtypes import DTYPES

CONFIG = "config"  # knob for a list of configs: an index into it
_JUDGED = ("f64", "f32", "f16", "bf16", "i8", "i32", "i64")  # formats that a GPU worker can verify
_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
}  # fmt: skip
_GRANULE = 16
_MOST_BYTES = 8 << 30  # maximum bytes of tensors, which are copied through the host's memory


class Undescribable(DeepgenError):
    """A call that only Triton itself can make."""


@dataclass(frozen=True)
class Called:
    """A kernel's arguments by name, except those that a config sets; the grid of a config; and heuristics."""

    function: Any  # the @triton.jit function
    arguments: Mapping[str, Any]
    grid: Callable[[Mapping[str, Any]], Sequence[int]] | Sequence[int]
    heuristics: Sequence[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = ()

    def named(self) -> dict[str, Any]:
        """The arguments that every config receives, by name."""
        parameters = inspect.signature(self.function.fn).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
        return {**defaults, **self.arguments}

    def at(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a config's launch, by name."""
        named = {**self.named(), **config}
        for values in self.heuristics:
            named |= {name: value(named) for name, value in values.items()}
        return named

    def blocks(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        grid = self.grid(self.at(config)) if callable(self.grid) else self.grid
        return (*(int(size) for size in grid), 1, 1, 1)[:3]


class CalledFamily(TritonFamily):
    """Kernels of one call, from a list of configs or from a space."""

    def __init__(self, described: Description, called: Called, rows: Sequence[Mapping[str, Any]] | None) -> None:
        super().__init__(described)
        self._call, self._rows = called, rows

    def config(self, chosen: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config for a point of the space."""
        return chosen if self._rows is None else self._rows[chosen[CONFIG]]

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        chosen = self.config(config)
        named = self._call.at(chosen)
        options = {name: value for name, value in named.items() if name in ALL_OPTIONS and value is not None}
        constants = {name: _constant(name, named) for name in self.description.options["constants"]}
        described = replace(
            self.description,
            knobs={name: (value,) for name, value in options.items()},
            launches=(replace(self.description.launches[0], grid=self._call.blocks(chosen)),),
            options={**self.description.options, "defaults": constants},
        )
        return TritonFamily(described).emit(operator, target, options)


def operator_of(
    called: Called,
    rows: Sequence[Mapping[str, Any]] | None,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    requires: Sequence[str] = (),
) -> KernelOperator:
    """What a call computes, with the kernels that compute it. Raises Undescribable if only Triton can make the call."""
    described = _described(called, {CONFIG: range(len(rows))} if rows is not None else knobs or {}, requires)
    try:
        complete = keyed(replace(described, sources=read(called.function)))
    except BadInput as error:
        raise Undescribable(str(error)) from error
    family = CalledFamily(complete, called, rows)
    generic = class_of(described, None, lambda: family, __name__, "<of a call>")
    body = {"tolerance": _tolerance, "__qualname__": "<of a call>"}
    kind: type[KernelOperator] = type(generic.__name__, (generic,), body)
    return kind.make({})


def _tolerance(self: KernelOperator, output: str, probe: str = "normal") -> Tolerance:
    """Configs accumulate in different orders, and the number of terms is unknown: as for sums of a million terms in
    f32.
    """
    of = dtype(self.signature().dtype_of(self.signature()[output]))
    if of.integer:
        return Tolerance(0.0, 0.0)
    step = max(of.epsilon, DTYPES["f64"].epsilon) if of.name == "f64" else DTYPES["f32"].epsilon
    return Tolerance(4.0 * of.epsilon + 4096.0 * step, 4.0 * of.epsilon + 64.0 * step)


def _described(called: Called, knobs: Mapping[str, Sequence[Any]], requires: Sequence[str]) -> Description:
    function = called.function
    arguments: list[Argument] = []
    sizes: dict[str, int] = {}
    constants = [p.name for p in function.params if p.is_constexpr]
    plain = [p.name for p in function.params if p.do_not_specialize or p.do_not_specialize_on_alignment]
    total = 0
    named = called.named()
    for name in (n for n in function.arg_names if n not in constants):
        if name not in named:
            raise Undescribable(f"{function.fn.__name__} is called without {name}")
        value = named[name]
        if value is None:
            constants.append(name)  # as Triton does for an optional pointer that is omitted
        elif hasattr(value, "data_ptr"):
            argument, misaligned = _tensor(name, value)
            arguments.append(argument)
            plain += [name] if misaligned else []
            total += argument.fill.nbytes
        else:
            arguments.append(_number(name, value, sizes))
    if all(argument.role == "input" for argument in arguments if isinstance(argument, TensorArgument)):
        raise Undescribable("it has no tensor whose values can be compared")
    if total > _MOST_BYTES:
        raise Undescribable(f"its tensors have {total >> 30} GB")
    import triton

    return checked(
        Description(
            name=function.fn.__name__,
            language="triton",
            sources=(),
            arguments=tuple(arguments),
            sizes=sizes,
            knobs={name: tuple(values) for name, values in knobs.items()},
            launches=(OwnLaunch(function.fn.__name__),),
            requires=tuple(requires),
            options={
                "triton": triton.__version__,
                "parameters": [argument.name for argument in arguments],
                "constants": constants,
                "defaults": {},
                "unspecialised": plain,
            },
        )
    )


def _tensor(name: str, tensor: Any) -> tuple[TensorArgument, bool]:
    """A tensor's memory from its first element to its last, with any strides."""
    import torch

    kind = str(tensor.dtype).rpartition(".")[2]
    if kind not in _DTYPES:
        raise Undescribable(f"{name} is a tensor of {kind}")
    of = dtype(_DTYPES[kind])
    if any(stride < 0 for stride in tensor.stride()) or tensor.numel() == 0:
        raise Undescribable(f"{name} is empty, or runs backwards")
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.detach().as_strided((extent,), (1,))
    bits = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[of.bytes]
    # A copy: the call's tensor may change while configs are timed.
    array = np.array(flat.view(getattr(torch, bits)).cpu().numpy()).view(of.numpy())
    role = "inout" if of.name in _JUDGED else "input"
    return TensorArgument(name, role, (extent,), of.name, array), tensor.data_ptr() % _GRANULE != 0


def _number(name: str, value: Any, sizes: dict[str, int]) -> ScalarArgument:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Undescribable(f"{name} is a {type(value).__name__}")
    if isinstance(value, float):
        return ScalarArgument(name, "f32", value)
    ctype = "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    if value < 1:
        return ScalarArgument(name, ctype, value)
    sizes[name] = value  # so that kernels are specialised for its value, as Triton does
    return ScalarArgument(name, ctype)


def _constant(name: str, named: Mapping[str, Any]) -> Any:
    value = getattr(named.get(name), "value", named.get(name))
    if type(value).__name__ == "dtype":
        import triton.language as tl

        return "tl." + next(w for w in dir(tl) if type(getattr(tl, w)) is type(value) and getattr(tl, w) == value)
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    raise Undescribable(f"{name} is a {type(value).__name__}")


def space_of(called: Called, knobs: Mapping[str, Sequence[Any]], requires: Sequence[str]) -> Space:
    """The space of a call; `requires` may refer to its numbers."""
    space = Space(called.function.fn.__name__)
    for name, values in knobs.items():
        space.knob(name, values)
    numbers = {name: const(value) for name, value in called.named().items() if type(value) is int}
    for text in requires:
        space.require(parse(text, numbers), text)
    return space
