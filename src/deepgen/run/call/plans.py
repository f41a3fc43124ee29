"""Evaluates launch plans: sizes, scalar arguments and workspaces for an operator's scalars."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from deepgen.space import parse
from deepgen.vocabulary import BadInput, DescriptorArg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

Scalars: TypeAlias = "Mapping[str, int | float]"


@dataclass(frozen=True)
class RawStep:
    """A step for C: a function, and the eight-byte cells that hold its arguments."""

    function: int
    whole: tuple[int, ...]  # cells of addresses and integers
    real: tuple[int, ...] = ()  # of floating-point numbers
    fails: str = ""  # the function's name, if it returns an error code (0 on success)
    stream: int | None = None  # the cell with the stream's handle
    keep: object = None  # keeps the cells' memory alive


def cells(*values: int) -> Any:
    """New cells with these values."""
    return (ctypes.c_uint64 * len(values))(*values)


def places(block: Any) -> tuple[int, ...]:
    """The address of each cell of a block."""
    return tuple(ctypes.addressof(block) + 8 * place for place in range(len(block)))


def address_of(function: Any) -> int:
    """The address of a library's function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_CTYPES: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double}
_parsed = lru_cache(maxsize=1024)(parse)  # parsing takes longer than many kernels run


def evaluate(value: int | float | str, scalars: Scalars) -> int | float:
    """A number in a launch plan: a literal, or an expression over the operator's scalars."""
    if not isinstance(value, str):
        return value
    if value in scalars:
        return scalars[value]
    result = _parsed(value).evaluate(scalars)
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        raise BadInput(f"launch plan: {value!r} evaluates to {result!r}", allowed="a number")
    return result


def scalar(arg: ScalarArg, scalars: Scalars) -> Any:
    """A scalar argument as a ctypes object."""
    if arg.ctype not in _CTYPES:
        raise BadInput(f"launch plan: scalar type {arg.ctype!r}", allowed="one of " + ", ".join(_CTYPES))
    value = evaluate(arg.value, scalars)
    if arg.ctype.startswith("f"):
        return _CTYPES[arg.ctype](float(value))
    passed = _CTYPES[arg.ctype](int(value))
    if passed.value != int(value):  # it would silently become another number
        raise BadInput(f"{arg.value} is {int(value)}", allowed=f"it is passed as {arg.ctype}, whose range it exceeds")
    return passed


def steps_of(plan: LaunchPlan) -> tuple[Step, ...]:
    return plan.prepare + plan.steps


def workspaces(plan: LaunchPlan, scalars: Scalars) -> dict[str, tuple[WorkspaceArg, int]]:
    """Each workspace once, with its bytes; steps that use the same name share it, at the largest requested size."""
    wanted: dict[str, tuple[WorkspaceArg, int]] = {}
    for arg in (a for s in steps_of(plan) for a in s.args if isinstance(a, WorkspaceArg)):
        size = int(evaluate(arg.bytes, scalars))
        if arg.name not in wanted or wanted[arg.name][1] < size:
            wanted[arg.name] = (arg, size)
    return wanted


def prepared(plan: LaunchPlan) -> frozenset[str]:
    """The workspaces that keep data from the preparation."""
    return frozenset(a.name for s in plan.prepare for a in s.args if isinstance(a, WorkspaceArg))


def constant(plan: LaunchPlan) -> frozenset[str]:
    """The tensors that the preparation reads, which the kernel assumes to stay unchanged between runs."""
    return frozenset(_passed(plan.prepare))


def _passed(steps: Iterable[Step]) -> Iterator[str]:
    return (a.tensor for s in steps for a in s.args if isinstance(a, (TensorArg, DescriptorArg)))


def names_of(plan: LaunchPlan) -> frozenset[str]:
    """The scalars that a kernel gets, through its arguments or descriptors."""
    names: set[str] = set()
    for arg in (a for s in steps_of(plan) for a in s.args):
        if isinstance(arg, ScalarArg):
            names |= _names((arg.value,))
        elif isinstance(arg, DescriptorArg):
            names |= _names(arg.spec.expressions)
    return frozenset(names)


def check_shape(kernel: Kernel, scalars: Scalars) -> None:
    """Raises BadInput with the requirement's words if the kernel does not support these sizes and strides."""
    for expression, words in kernel.requirements:
        if not holds(expression, scalars):
            read = _parsed(expression).knobs()
            sizes = ", ".join(f"{name}={value}" for name, value in scalars.items() if name in read)
            raise BadInput(f"kernel {kernel.name} does not support {sizes}", allowed=words)


def holds(expression: str, scalars: Scalars) -> bool:
    """Whether sizes and strides meet a requirement."""
    return bool(_parsed(expression).evaluate(scalars))


def _names(values: Iterable[int | float | str]) -> frozenset[str]:
    return frozenset(name for value in values if isinstance(value, str) for name in _parsed(value).knobs())
