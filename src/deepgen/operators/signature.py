"""A signature: the ordered parameters of an operator, with symbolic shapes that a call's arrays determine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from deepgen.space.parse import parse
from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.dtypes import DType, dtype
from deepgen.vocabulary.errors import BadInput

# A size: a number, a symbol such as "rows", or an expression over symbols such as "(H + 2 * pad - k) // stride + 1".
Size: TypeAlias = "int | str"
INPUT, OUTPUT, INOUT, SCALAR = "input", "output", "inout", "scalar"
ROLES = (INPUT, OUTPUT, INOUT, SCALAR)
# Allowed memory layouts of a tensor.
DENSE, ROWS, ANY = "dense", "rows", "any"
STRIDES = {
    DENSE: "dense, in row-major order",
    ROWS: "contiguous along its last dimension",
    ANY: "strided in any way",
}

_OMITTED = coded(omit=True)  # old files stay readable when fields are added
_parsed = lru_cache(maxsize=1024)(parse)


@dataclass(frozen=True)
class Param(Serializable):
    """One parameter: a tensor that is read, written or both, or a run-time scalar.

    `dtype` is a format's name or a variable of the signature. `range`: the least and greatest value that an input may
    hold, as numbers or expressions over sizes, so that indices stay in bounds; None: any value of its dtype.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[Size, ...] = field(default=(), metadata=_OMITTED)
    optional: bool = field(default=False, metadata=_OMITTED)  # a call may omit it, or pass None
    range: tuple[Size | float, Size | float] | None = field(default=None, metadata=_OMITTED)
    strides: str = field(default=DENSE, metadata=_OMITTED)
    # Alignment of its address in bytes; 0: the size of an element.
    align: int = field(default=0, metadata=_OMITTED)
    # A size of 1 is broadcast, and leading dimensions may be missing.
    broadcast: bool = field(default=False, metadata=_OMITTED)
    aliases: tuple[str, ...] = field(default=(), metadata=_OMITTED)  # inputs whose memory an output may share
    checked: bool = field(default=True, metadata=_OMITTED)  # False: its content after a run is not checked

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise BadInput(f"parameter {self.name}: role {self.role!r}", allowed="one of " + ", ".join(ROLES))
        if self.strides not in STRIDES:
            raise BadInput(f"parameter {self.name}: strides {self.strides!r}", allowed="one of " + ", ".join(STRIDES))
        if self.role == SCALAR and self.shape:
            raise BadInput(f"parameter {self.name} is a scalar with a shape", allowed="a tensor, or no shape")

    @property
    def is_tensor(self) -> bool:
        return self.role != SCALAR

    @property
    def read(self) -> bool:
        return self.role in (INPUT, INOUT)

    @property
    def written(self) -> bool:
        return self.role in (OUTPUT, INOUT)


@dataclass(frozen=True)
class TensorFacts:
    """What is known about an array of a call. Strides are in elements; None means dense and row-major."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Tensor:
    """One tensor of an operator whose sizes are known: dense, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.bytes

    def empty(self) -> Any:
        import numpy as np

        return np.empty(self.shape, self.dtype.numpy())


@dataclass(frozen=True)
class Solved:
    """The result of solving a call's arrays: numbers for symbols, formats for dtype variables."""

    signature: Signature
    sizes: Mapping[str, int]
    dtypes: Mapping[str, str]

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors with the sizes of the call, which may be zero."""
        return self.signature.shaped(self.sizes)


@dataclass(frozen=True)
class Signature(Serializable):
    """Parameters in the order of a call. `dtypes` gives each dtype variable its format in this operator."""

    params: tuple[Param, ...]
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [p.name for p in self.params]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadInput(f"two parameters are named {twice!r}", allowed="give each its own name")
        for param in self.params:
            dtype(self.dtype_of(param))

    def __getitem__(self, name: str) -> Param:
        for param in self.params:
            if param.name == name:
                return param
        raise BadInput(f"no parameter {name!r}", allowed="one of " + ", ".join(p.name for p in self.params))

    @property
    def tensors(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.is_tensor)

    @property
    def scalars(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if not p.is_tensor)

    @property
    def inputs(self) -> tuple[Param, ...]:
        """Tensors that are read and not written."""
        return tuple(p for p in self.params if p.role == INPUT)

    @property
    def outputs(self) -> tuple[Param, ...]:
        """Tensors that are written."""
        return tuple(p for p in self.params if p.written)

    def dtype_of(self, param: Param) -> str:
        return self.dtypes.get(param.dtype, param.dtype)

    def symbols(self) -> frozenset[str]:
        """The symbols that the shapes of inputs determine: those that are a size on their own."""
        return frozenset(s for p in self.params if p.read for s in _symbols(p.shape))

    def shaped(self, sizes: Mapping[str, int | float]) -> tuple[Tensor, ...]:
        """All tensors with numbers for their sizes. Raises BadInput if one would be negative."""
        return tuple(Tensor(p.name, _numbers(p, sizes), dtype(self.dtype_of(p)), p.role) for p in self.tensors)

    def solve(self, arrays: Mapping[str, TensorFacts], otherwise: Mapping[str, int]) -> Solved:
        """Solves the symbols from these arrays; `otherwise`: sizes that no shape determines. Errors name the array."""
        for name in arrays:
            self[name]
        sizes: dict[str, int] = {}
        origin: dict[str, str] = {}
        dtypes: dict[str, str] = {}
        stretched: dict[str, int] = {}  # symbols of broadcast dimensions: 1 unless another tensor determines them
        present = [(p, arrays[p.name]) for p in self.tensors if p.name in arrays]
        for param, facts in present:
            self._solve_dtype(param, facts, dtypes)
            pairs = _pairs(param, facts)
            if param.broadcast:
                stretched.update(dict.fromkeys(_symbols(param.shape), 1))
            for place, (size, actual) in enumerate(pairs):
                if not isinstance(size, str) or not size.isidentifier() or (actual == 1 and param.broadcast):
                    continue
                if sizes.setdefault(size, actual) != actual:
                    raise BadInput(
                        f"{param.name} has {size}={actual} (dimension {place} of {_shape(facts)}), but "
                        f"{origin[size]} has {size}={sizes[size]}",
                        allowed=f"the same {size} in both",
                    )
                origin.setdefault(size, param.name)
        sizes = {**otherwise, **stretched, **sizes}
        for param, facts in present:
            _check_shape(param, facts, sizes, origin)
        return Solved(self, sizes, {**self.dtypes, **dtypes})

    def _solve_dtype(self, param: Param, facts: TensorFacts, dtypes: dict[str, str]) -> None:
        if param.dtype in self.dtypes:
            if dtypes.setdefault(param.dtype, facts.dtype) != facts.dtype:
                raise BadInput(
                    f"{param.name} is {facts.dtype}", allowed=f"{dtypes[param.dtype]}, as the tensors before it"
                )
        elif stored(facts.dtype) != stored(param.dtype):
            raise BadInput(f"{param.name} is {facts.dtype} {_shape(facts)}", allowed=stored(param.dtype))


def number(size: Size | float, sizes: Mapping[str, int | float]) -> int:
    """A size of a shape as a number. Raises BadInput if a symbol has no value."""
    if not isinstance(size, str):
        return int(size)
    if size in sizes:
        return int(sizes[size])
    value = _parsed(size).evaluate(sizes)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"the size {size!r} is {value!r}", allowed="an integer")
    return value


def _numbers(param: Param, sizes: Mapping[str, int | float]) -> tuple[int, ...]:
    shape = tuple(number(size, sizes) for size in param.shape)
    for size, value in zip(param.shape, shape, strict=True):
        if value < 0:
            raise BadInput(f"{param.name} would have the size {value} ({size})", allowed="sizes of at least 0")
    return shape


def _symbols(shape: tuple[Size, ...]) -> list[str]:
    """The sizes that are a single name, which an array of a call determines."""
    return [size for size in shape if isinstance(size, str) and size.isidentifier()]


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def broadcast_strides(shape: tuple[int, ...], strides: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """The strides by which an array is read as one of the shape `whole`: 0 where an element is broadcast.

    Leading dimensions of size 1 may be missing from either.
    """
    missing = len(whole) - len(shape)
    if missing < 0:
        return broadcast_strides(shape[-missing:], strides[-missing:], whole)
    padded = (*(1,) * missing, *shape)
    steps = (*(0,) * missing, *strides)
    return tuple(0 if f == 1 and w > 1 else step for step, f, w in zip(steps, padded, whole, strict=True))


def stride_scalars(name: str, strides: tuple[int, ...]) -> dict[str, int]:
    """The names by which a launch plan refers to a tensor's strides: stride_NAME_0 is the outermost."""
    return {f"stride_{name}_{i}": stride for i, stride in enumerate(strides)}


def stored(name: str) -> str:
    """The storage format: tf32 is only rounded in the arithmetic, and stored as f32."""
    return "f32" if name == "tf32" else name


def _pairs(param: Param, facts: TensorFacts) -> list[tuple[Size, int]]:
    """Each size of a shape with the array's own size there."""
    shape, actual = param.shape, facts.shape
    if len(actual) > len(shape) or (len(actual) < len(shape) and not param.broadcast):
        words = " x ".join(map(str, shape)) or "none"
        raise BadInput(f"{param.name} has {len(actual)} dimensions, {_shape(facts)}", allowed=f"{len(shape)}: {words}")
    return list(zip(shape[len(shape) - len(actual) :], actual, strict=True))


def _check_shape(param: Param, facts: TensorFacts, sizes: Mapping[str, int], origin: Mapping[str, str]) -> None:
    """Raises BadInput if an array's size contradicts the others; `origin`: the array that determined it."""
    shape, missing = _numbers(param, sizes), len(param.shape) - len(facts.shape)
    for size, wanted, actual in zip(param.shape[missing:], shape[missing:], facts.shape, strict=True):
        if wanted == actual or (param.broadcast and actual == 1):
            continue
        numbers, words = "x".join(map(str, shape)), " x ".join(map(str, param.shape))
        meant = "" if words.replace(" ", "") == numbers else f": {words}"
        read = sorted(_parsed(size).knobs()) if isinstance(size, str) else ()
        others = "".join(f", and {origin[name]} has {name}={sizes[name]}" for name in read if name in origin)
        raise BadInput(f"{param.name} has the shape {_shape(facts)}{others}", allowed=f"{numbers}{meant}")


def _shape(facts: TensorFacts) -> str:
    return "x".join(map(str, facts.shape)) or "a single number"
