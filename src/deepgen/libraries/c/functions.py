"""The functions of an exported library: one for each operator in all its shapes, on CPUs or on one kind of GPU;
and expressions of launch plans in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from deepgen.libraries.entry import Entry, is_resized
from deepgen.operators import Operator, Param
from deepgen.operators.signature import DENSE
from deepgen.space import parse
from deepgen.space.expr import Expr
from deepgen.vocabulary import DeepgenError, Json, digest
from deepgen.vocabulary.dtypes import dtype
from deepgen.vocabulary.kernel import is_reserved

# C and C++ types of dtypes. Formats that neither language has are passed as their bits.
_CTYPES = {"f64": "double", "f32": "float", "tf32": "float", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t"}
_TAKEN = {"v", "workspace", "workspace_bytes", "stream", "bytes", "in"}  # names used by the generated functions
_BITS = {8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "int64_t"}


def ctype(of: str) -> str:
    """The C type of a dtype."""
    return _CTYPES.get(of, _BITS[dtype(of).bits])


def argument(name: str) -> str:
    """The C name of a size or a tensor."""
    lower = name.lower()
    return f"{lower}_" if lower in _TAKEN or is_reserved(lower) else lower


@dataclass(frozen=True)
class Stride:
    """A stride that the caller passes: its name in C, and its value in C if the tensor is dense."""

    name: str
    scalar: str  # its name in launch plans
    dense: str


@dataclass(frozen=True)
class ExportedFunction:
    """One function: an operator whose sizes are arguments, and the entries that serve it."""

    name: str
    kind: str  # cpu, cuda or hip
    operator: Operator  # in one of its shapes
    entries: tuple[Entry, ...]

    @property
    def on_gpu(self) -> bool:
        return self.kind != "cpu"

    @cached_property
    def tensors(self) -> tuple[Param, ...]:
        return tuple(self.operator.signature().tensors)

    @cached_property
    def _named(self) -> frozenset[str]:
        """The sizes that appear in the shapes of tensors."""
        shapes = [str(size) for param in self.tensors for size in param.shape]
        return frozenset(name for size in shapes for name in parse(size).knobs())

    @property
    def fixed(self) -> bool:
        """Whether shapes are plain numbers, as in expressions: each kernel serves only the shape it was tuned for."""
        return not self._named

    def at(self, entry: Entry) -> ExportedFunction:
        """The function with the shape of one of its kernels."""
        return replace(self, operator=entry.operator) if self.fixed else self

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The sizes that are arguments: those that the shapes of tensors depend on."""
        return tuple(name for name in self.operator.sizes() if self.fixed or name in self._named)

    @cached_property
    def strides(self) -> Mapping[str, tuple[Stride, ...]]:
        """The strides of each tensor that allows gaps between rows: one for each dimension but the last."""
        out = {}
        for param in self.tensors:
            scalars = [f"stride_{param.name}_{i}" for i in range(len(param.shape) - 1)]
            out[param.name] = tuple(
                Stride(self._stride_name(scalar), scalar, self.product(param.shape[i + 1 :]))
                for i, scalar in enumerate(scalars if param.strides != DENSE and not self.fixed else ())
            )
        return out

    def _stride_name(self, scalar: str) -> str:
        """The operator's alias for it, such as BLAS's name for a matrix's stride, or its own name in lower case."""
        return next((alias for alias, of in self.operator.aliases().items() if of == scalar), scalar.lower())

    @cached_property
    def sized(self) -> Mapping[str, str]:
        """The sizes in C: entries of `v`, or constants."""
        places = {name: f"v[{place}]" for place, name in enumerate(self.sizes)}
        return {name: places.get(name, in_c(value, {})) for name, value in self.operator.sizes().items()}

    @cached_property
    def scalars(self) -> Mapping[str, str]:
        """Each number that a launch plan may refer to, in C."""
        names = {name: in_c(value, {}) for name, value in self.operator.scalars().items()} | dict(self.sized)
        for param in self.tensors:
            names |= {f"stride_{param.name}_{i}": self.product(param.shape[i + 1 :]) for i in range(len(param.shape))}
        passed = [stride for strides in self.strides.values() for stride in strides]
        names |= {stride.scalar: f"v[{len(self.sizes) + place}]" for place, stride in enumerate(passed)}
        return names | {alias: in_c(meant, names) for alias, meant in self.operator.aliases().items()}

    @property
    def numbers(self) -> int:
        """How many sizes and strides are passed."""
        return len(self.sizes) + sum(map(len, self.strides.values()))

    def product(self, shape: Sequence[int | str]) -> str:
        """The number of elements in C."""
        return "(" + " * ".join(in_c(size, self.sized) for size in shape) + ")" if shape else "INT64_C(1)"


def functions_of(entries: Iterable[Entry]) -> list[ExportedFunction]:
    """Entries grouped by what they compute, on CPUs and on each kind of GPU."""
    groups: list[list[Entry]] = []
    for entry in sorted(entries, key=lambda e: e.name):
        for group in groups:
            if _kind(group[0]) == _kind(entry) and _same_function(group[0].operator, entry.operator):
                group.append(entry)
                break
        else:
            groups.append([entry])
    named: dict[str, ExportedFunction] = {}
    for group in groups:
        kind, operator = _kind(group[0]), group[0].operator
        name = f"deepgen_{_name(operator)}" + ("" if kind == "cpu" else f"_{kind}")
        if name in named:
            name += f"_{digest(operator.to_json(), 6)}"
        named[name] = ExportedFunction(name, kind, operator, tuple(group))
    return list(named.values())


def _same_function(one: Operator, other: Operator) -> bool:
    shapes = [[(p.name, p.shape) for p in operator.signature().params] for operator in (one, other)]
    if any(isinstance(size, str) for _, shape in shapes[0] for size in shape):
        return shapes[0] == shapes[1] and is_resized(one, other)
    return type(one) is type(other) and _without_sizes(one) == _without_sizes(other)


def _without_sizes(operator: Operator) -> Mapping[str, Json]:
    return {name: value for name, value in operator.to_json().items() if name not in operator.sizes()}


def _kind(entry: Entry) -> str:
    return "cpu" if entry.target.runner == "cpu" else entry.target.kind


def _name(operator: Operator) -> str:
    """The operator's description without sizes, so one name for all shapes: gemm_f32_nn, gemm_bf16_nt_relu_bias."""
    sizes = operator.sizes()
    text = re.sub(r"batch \d+ of ", "batched ", operator.describe())
    text = re.sub(rf"\b({'|'.join(('to', 'by', *sizes))}) \d+(x\d+)*", "", text)
    words = [
        word
        for word in text.split()
        if not re.fullmatch(r"\d+(x\d+)*", word) and word.partition("=")[0] not in (sizes if "=" in word else ())
    ]
    return re.sub(r"[^a-z0-9]+", "_", " ".join(words).lower()).strip("_")


_INFIX = {"+": "+", "-": "-", "*": "*", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CALLS = {"//": "floor_div", "%": "modulo", "ceil_div": "ceil_div", "min": "least", "max": "greatest"}


class NotInC(DeepgenError):
    """A kernel that an exported library cannot hold."""


def in_c(value: int | float | str, names: Mapping[str, str]) -> str:
    """A number of a launch plan, or an expression over the scalars; `names` gives the C text of each scalar."""
    if isinstance(value, str):
        return _text(parse(value), names)
    return _constant(value)


def _text(expr: Expr, names: Mapping[str, str]) -> str:
    op, args = expr.op, expr.args
    if op == "const":
        return _constant(expr.data)
    if op == "knob":
        if expr.data not in names:
            raise NotInC(f"it uses {expr.data!r}, which no argument provides")
        return names[expr.data]
    inner = [_text(arg, names) for arg in args]
    if op == "named":
        return inner[0]
    if op in _INFIX:
        return f"({inner[0]} {_INFIX[op]} {inner[1]})"
    if op in _CALLS:
        return reduce(lambda one, other: f"{_CALLS[op]}({one}, {other})", inner)
    if op == "divides":
        return f"(modulo({inner[1]}, {inner[0]}) == 0)"
    if op in ("and", "or"):
        return "(" + (" && " if op == "and" else " || ").join(inner) + ")"
    if op == "not":
        return f"(!{inner[0]})"
    if op == "neg":
        return f"(-{inner[0]})"
    if op == "implies":
        return f"(!{inner[0]} || {inner[1]})"
    if op == "where":
        return f"({inner[0]} ? {inner[1]} : {inner[2]})"
    if op == "isin":
        return "(" + (" || ".join(f"{inner[0]} == {_constant(one)}" for one in expr.data) or "0") + ")"
    raise NotInC(f"its launch plan has '{expr}', whose {op} has no form in C")


def _constant(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
    if isinstance(value, float):
        return repr(value)
    raise NotInC(f"its launch plan has the constant {value!r}")
