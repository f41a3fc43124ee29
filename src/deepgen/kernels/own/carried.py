"""Error bounds from a numpy reference: its own operations, with the error that each may add.

The reference is called with arrays that carry an error for each element (`operators/expr/rounding.py`), to first order.
Elementwise operations are rounded in the output's format; sums are added up in f32 or f64 in any order. Operations on
plain arrays inside the reference, such as filling an array element by element, cannot be traced: `Untraced`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from math import isqrt, prod, sqrt
from typing import Any

import numpy as np

from deepgen.operators.base import Array
from deepgen.operators.expr import rounding
from deepgen.operators.expr.rounding import NONE, REDUCTIONS, Numbers, scanned
from deepgen.vocabulary.dtypes import DType, dtype

_BINARY = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "power": "pow",
    "float_power": "pow", "maximum": "max", "fmax": "max", "minimum": "min", "fmin": "min",
}  # fmt: skip
_UNARY = {
    "negative": "neg", "absolute": "abs", "fabs": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh",
    "sin": "sin", "cos": "cos", "floor": "floor", "erf": "erf", "expit": "sigmoid",
}  # fmt: skip
_COMPARED = {"less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne"}
_SWAPPED = {"greater": "less", "greater_equal": "less_equal"}
_LOGIC = {"logical_and": "and", "bitwise_and": "and", "logical_or": "or", "bitwise_or": "or"}
_REDUCED = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod"}
_MOST_ARRAYS = 4096  # a loop over elements would take minutes
_STEPS = 4.0  # rounding steps of functions, as in rounding.py


class Untraced(Exception):
    """The reference does something through which errors cannot be propagated."""


@dataclass(frozen=True)
class OwnArithmetic:
    """The formats in which a correct kernel may compute."""

    elements: str  # the format of elementwise operations
    sums: str
    factors: tuple[DType, ...] = ()  # formats of factors, if tensor cores may multiply them
    arrays: list[None] = field(default_factory=list, compare=False)  # one for each array so far

    @staticmethod
    def of(output: DType, inputs: Sequence[DType]) -> OwnArithmetic:
        elements = output.name if output.bits >= 16 else "f32"
        floats = tuple(of for of in inputs if not of.integer)
        narrow = floats if floats and all(of.bits == 16 for of in floats) else ()
        return OwnArithmetic(elements, "f64" if elements == "f64" else "f32", narrow)


def errors_of(
    call: Callable[[Mapping[str, Any]], Mapping[str, Any]], inputs: Mapping[str, Array], arithmetic: OwnArithmetic
) -> dict[str, Numbers]:
    """The results of a reference with their errors. Raises Untraced."""
    wrapped = {name: Carried(Numbers(array.copy()), arithmetic) for name, array in inputs.items()}
    try:
        with np.errstate(all="ignore"):
            results = call(wrapped)
            return {name: _plain(value) for name, value in results.items() if value is not None}
    except Exception as error:  # a user's code may raise anything when it gets arrays that are not numpy's own
        raise Untraced(f"{type(error).__name__}: {error}") from error


def _plain(value: Any) -> Numbers:
    return value.numbers if isinstance(value, Carried) else Numbers(np.asarray(value))


class Carried(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers with errors, which a reference uses like an array."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: Numbers, arithmetic: OwnArithmetic) -> None:
        self.numbers, self.arithmetic = numbers, arithmetic
        arithmetic.arrays.append(None)
        if len(arithmetic.arrays) > _MOST_ARRAYS:
            raise Untraced("it goes element by element")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", (None,))[0]
        numbers = [_plain(x) for x in inputs]
        if method == "__call__" and not options:
            result = _applied(ufunc, numbers, self.arithmetic)
        elif method == "reduce" and ufunc.__name__ in _REDUCED and not options.get("initial"):
            return self._reduced(_REDUCED[ufunc.__name__], options.get("axis", 0), bool(options.get("keepdims")))
        elif method == "accumulate" and ufunc.__name__ in _REDUCED:
            axis = options.get("axis", 0) % self.ndim
            result = scanned(_REDUCED[ufunc.__name__], self.numbers, axis, self.arithmetic.sums)
        else:
            raise Untraced(f"{ufunc.__name__}.{method}")
        if out is None:
            return Carried(result, self.arithmetic)
        if not isinstance(out, Carried):
            raise Untraced("a plain array is written")
        out[...] = Carried(result, self.arithmetic)
        return out

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        name = function.__name__
        if name in _MOVES:
            return self._moved(function, args, options)
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*args, **options)
        raise Untraced(name)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Untraced("a plain array is made of it")

    def _moved(self, function: Any, args: Any, options: Any) -> Any:
        """Applies a function that only moves elements to both numbers and errors."""
        where = _replaced(args[1:], lambda n: n.values)  # an index or a repeat count
        values = function(*_replaced(args[:1], lambda n: n.values), *where, **_replaced(options, lambda n: n.values))
        errors = function(*_replaced(args[:1], _spread), *where, **_replaced(options, _spread))
        if isinstance(values, (list, tuple)):
            return [Carried(Numbers(v, e), self.arithmetic) for v, e in zip(values, errors, strict=True)]
        return Carried(Numbers(values, errors), self.arithmetic)

    def _reduced(self, op: str, axis: Any, keepdims: bool) -> Carried:
        axes = tuple(range(self.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        axes = tuple(a % self.ndim for a in axes)
        reducer = REDUCTIONS[op](self.arithmetic.sums)
        reducer.add(Numbers(self.numbers.values, _error(self.numbers)), axes)
        done: Numbers = reducer.finished(max(1, prod(self.shape[a] for a in axes)))
        values, error = np.asarray(done.values), np.broadcast_to(done.error, np.shape(done.values))
        if keepdims:
            values, error = np.expand_dims(values, axes), np.expand_dims(error, axes)
        return Carried(Numbers(values, error), self.arithmetic)

    @property
    def T(self) -> Any:
        return self.transpose()

    def __len__(self) -> int:
        return len(self.numbers.values)

    def __getitem__(self, key: Any) -> Carried:
        key = _key(key)
        error = self.numbers.error
        picked = error if not error.ndim else np.broadcast_to(error, self.shape)[key]
        return Carried(Numbers(np.asarray(self.numbers.values[key]), np.asarray(picked)), self.arithmetic)

    def __setitem__(self, key: Any, value: Any) -> None:
        key, numbers = _key(key), _plain(value)
        error = _error(self.numbers).copy()
        self.numbers.values[key], error[key] = numbers.values, numbers.error
        self.numbers = Numbers(self.numbers.values, error)

    def __bool__(self) -> bool:
        if self.numbers.error.any():
            raise Untraced("a branch depends on a rounded number")
        return bool(self.numbers.values)

    def _over(self, op: str, axis: Any = None, *, keepdims: bool = False, **_: Any) -> Carried:
        return self._reduced(op, axis, keepdims)

    sum, prod = partialmethod(_over, "sum"), partialmethod(_over, "prod")
    max, min = partialmethod(_over, "max"), partialmethod(_over, "min")

    def mean(self, axis: Any = None, *, keepdims: bool = False, **_: Any) -> Any:
        total = self._reduced("sum", axis, keepdims)
        return total / (self.size / max(1, total.size))

    def var(self, axis: Any = None, *, keepdims: bool = False, ddof: int = 0, **_: Any) -> Any:
        off = self - self.mean(axis, keepdims=True)
        total = (off * off).sum(axis, keepdims=keepdims)
        return total / (self.size / max(1, total.size) - ddof)

    def std(self, axis: Any = None, **options: Any) -> Any:
        return np.sqrt(self.var(axis, **options))

    def astype(self, kind: Any, **_: Any) -> Carried:
        to = np.dtype(kind)
        if to.kind != "f":
            raise Untraced(f"numbers are converted to {to}")
        if to.itemsize >= 8:
            return self.copy()
        added = float(np.finfo(to).eps) * np.abs(self.numbers.values)
        return Carried(Numbers(self.numbers.values, self.numbers.error + added), self.arithmetic)

    def copy(self, *_: Any) -> Carried:
        return Carried(Numbers(self.numbers.values.copy(), self.numbers.error), self.arithmetic)

    def reshape(self, *shape: Any, **_: Any) -> Any:
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        order = None if not axes else axes[0] if len(axes) == 1 else axes
        return np.transpose(self, order)

    def __getattr__(self, name: str) -> Any:
        """Attributes of an array, and methods that numpy also has as functions."""
        if name in ("shape", "ndim", "size", "dtype"):
            return getattr(self.numbers.values, name)
        if name in _METHODS:
            function = getattr(np, name)
            return lambda *args, **options: function(self, *args, **options)
        raise AttributeError(name)


_METHODS = ("ravel", "squeeze", "swapaxes", "repeat", "take", "clip", "cumsum", "cumprod", "dot", "diagonal", "trace")
_MOVES = (
    "transpose", "reshape", "ravel", "squeeze", "expand_dims", "swapaxes", "moveaxis", "rollaxis", "roll", "flip",
    "fliplr", "flipud", "rot90", "repeat", "tile", "broadcast_to", "take", "take_along_axis", "concatenate", "stack",
    "vstack", "hstack", "dstack", "column_stack", "split", "array_split", "pad", "triu", "tril", "diagonal",
    "atleast_1d", "atleast_2d", "zeros_like", "sliding_window_view",
)  # fmt: skip


def _error(numbers: Numbers) -> Array:
    return np.broadcast_to(numbers.error, numbers.values.shape)


def _spread(numbers: Numbers) -> Array:
    """The errors, broadcast to the shape of the numbers, so that both can be moved in the same way."""
    return np.array(_error(numbers), np.float64 if numbers.values.dtype.kind != "b" else bool)


def _replaced(value: Any, pick: Callable[[Numbers], Array]) -> Any:
    if isinstance(value, Carried):
        return pick(value.numbers)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":  # exact values among numbers with errors
        return pick(Numbers(value))
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(one, pick) for one in value)
    if isinstance(value, dict):
        return {name: _replaced(one, pick) for name, one in value.items()}
    return value


def _key(key: Any) -> Any:
    """An index, which must not depend on rounded numbers."""
    if isinstance(key, Carried):
        if key.numbers.error.any():
            raise Untraced("an index depends on rounded numbers")
        return key.numbers.values
    return tuple(map(_key, key)) if isinstance(key, tuple) else key


def _applied(ufunc: np.ufunc, numbers: Sequence[Numbers], arithmetic: OwnArithmetic) -> Numbers:
    name, of = ufunc.__name__, arithmetic.elements
    if name == "matmul":
        return _multiplied(np.matmul, numbers[0], numbers[1], arithmetic, numbers[0].values.shape[-1])
    if name in _SWAPPED:
        return _applied(getattr(np, _SWAPPED[name]), numbers[::-1], arithmetic)
    if name in _COMPARED:
        return rounding.compare(_COMPARED[name], *numbers)
    if name in _LOGIC and all(n.values.dtype.kind == "b" for n in numbers):
        return rounding.logic(_LOGIC[name], *(Numbers(n.values, n.error.astype(bool)) for n in numbers))
    if name in ("logical_not", "invert", "isnan", "isinf", "isfinite"):
        return Numbers(ufunc(numbers[0].values), numbers[0].error if name in ("logical_not", "invert") else NONE)
    if name == "positive":
        return numbers[0]
    if name == "square":
        return rounding.binary("mul", numbers[0], numbers[0], of)
    floats = [Numbers(n.values.astype(np.float64), n.error) for n in numbers]
    if name in _BINARY:
        return rounding.binary(_BINARY[name], floats[0], floats[1], of)
    if name in _UNARY:
        return rounding.unary(_UNARY[name], floats[0], of)
    if ufunc.nout != 1 or ufunc.nin > 2:
        raise Untraced(name)
    return _differences(ufunc, floats, of)


def _differences(ufunc: np.ufunc, numbers: Sequence[Numbers], of: str) -> Numbers:
    """Any other function: evaluated at both ends of its arguments."""
    values = ufunc(*(n.values for n in numbers))
    error = np.zeros(())
    if not all(n.exact for n in numbers):
        ends = [(n.values - n.error, n.values + n.error) for n in numbers]
        corners = ends[0] if len(ends) == 1 else None
        some = [(x,) for x in corners] if corners is not None else [(x, y) for x in ends[0] for y in ends[1]]
        for corner in some:
            error = np.maximum(error, np.abs(ufunc(*corner) - values))
    return rounding.rounded(values, error, of, _STEPS)


def _multiplied(
    function: Callable[[Array, Array], Array], x: Numbers, y: Numbers, arithmetic: OwnArithmetic, terms: int
) -> Numbers:
    """Sums of `terms` products, with one factor from each."""
    a, b = x.values.astype(np.float64), y.values.astype(np.float64)
    values, sums = function(a, b), dtype(arithmetic.sums)
    terms = max(1, terms)
    absolute, relative = rounding.sum_share(terms, sums, arithmetic.factors)
    if function is np.matmul and a.ndim > 1 and b.ndim > 1:
        norms = [np.sqrt(np.einsum("...ij,...ij->...i", m, m)) for m in (a, np.swapaxes(b, -1, -2))]
        size = norms[0][..., :, None] * norms[1][..., None, :]
    else:
        size = function(np.abs(a), np.abs(b))
    error = size * (absolute / terms) + np.abs(values) * relative
    if arithmetic.elements == "tf32":
        error = error + 8.0 * dtype("tf32").epsilon * size / sqrt(terms)
    if not x.exact:
        error = error + function(_error(x), np.abs(b))
    if not y.exact:
        error = error + function(np.abs(a), _error(y)) + (function(_error(x), _error(y)) if not x.exact else 0.0)
    tiny = sqrt(terms) * float(np.finfo(np.float64 if sums.name == "f64" else np.float32).tiny)
    return Numbers(values, error + tiny)


def _product(function: Callable[[Array, Array], Array], terms: Callable[[Array, Array, Array], int]) -> Any:
    def multiply(x: Any, y: Any) -> Carried:
        a, b, arithmetic = _plain(x), _plain(y), _arithmetic(x, y)
        count = terms(a.values, b.values, function(a.values, b.values))
        return Carried(_multiplied(function, a, b, arithmetic, count), arithmetic)

    return multiply


def _arithmetic(*values: Any) -> OwnArithmetic:
    return next(v.arithmetic for v in values if isinstance(v, Carried))


def _einsum(text: str, *operands: Any, **_: Any) -> Carried:
    if not isinstance(text, str) or len(operands) not in (1, 2) or "." in text:
        raise Untraced("einsum")
    arithmetic = _arithmetic(*operands)
    inputs, arrow, kept = text.replace(" ", "").partition("->")
    if not arrow:
        kept = "".join(sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1))
    numbers = [_plain(one) for one in operands]
    sizes = {
        c: n
        for part, one in zip(inputs.split(","), numbers, strict=True)
        for c, n in zip(part, one.values.shape)  # noqa: B905
    }
    terms = prod(n for c, n in sizes.items() if c not in kept)
    if len(numbers) == 1:
        numbers.append(Numbers(np.ones(())))
        inputs += ","

    def function(a: Array, b: Array) -> Array:
        result: Array = np.einsum(f"{inputs}->{kept}", a, b, optimize=True)
        return result

    return Carried(_multiplied(function, numbers[0], numbers[1], arithmetic, terms), arithmetic)


def _where(condition: Any, then: Any, otherwise: Any) -> Carried:
    chosen, x, y = (_plain(one) for one in (condition, then, otherwise))
    sure = Numbers(chosen.values.astype(bool), chosen.error.astype(bool))
    return Carried(rounding.select(sure, x, y), _arithmetic(condition, then, otherwise))


def _clip(x: Any, low: Any = None, high: Any = None, **_: Any) -> Any:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if ord not in (None, 2, "fro") or (ord == 2 and axis is None and x.ndim > 1):
        raise Untraced("norm")
    return np.sqrt((x * x).sum(axis, keepdims=keepdims))


def _method(name: str) -> Any:
    return lambda x, *args, **options: getattr(x, name)(*args, **options)


def _along(op: str) -> Any:
    def scan(x: Carried, axis: Any = None, **_: Any) -> Carried:
        flat = x.reshape(-1) if axis is None else x
        return Carried(scanned(op, flat.numbers, (axis or 0) % flat.ndim, x.arithmetic.sums), x.arithmetic)

    return scan


def _shorter(a: Array, b: Array, out: Array) -> int:
    return min(a.size, b.size) if a.ndim == 1 else int(a.shape[-1]) if a.ndim else 1


_FUNCTIONS: dict[str, Any] = {
    **{name: _method(name) for name in ("sum", "mean", "prod", "var", "std", "max", "min", "copy")},
    "amax": _method("max"), "amin": _method("min"), "cumsum": _along("sum"), "cumprod": _along("prod"),
    "einsum": _einsum, "where": _where, "clip": _clip, "norm": _norm,
    "dot": _product(np.dot, _shorter), "inner": _product(np.inner, _shorter), "vdot": _product(np.vdot, _shorter),
    "outer": _product(np.outer, lambda a, b, out: 1), "convolve": _product(np.convolve, _shorter),
    "correlate": _product(np.correlate, _shorter),
    "tensordot": lambda x, y, axes=2: _product(
        lambda a, b: np.tensordot(a, b, axes), lambda a, b, out: isqrt(a.size * b.size // max(1, out.size))
    )(x, y),
    "trace": lambda x, **_: np.diagonal(x).sum(-1),
    "ones_like": lambda x, *_, **__: np.ones(x.shape), "shape": lambda x: x.shape, "ndim": lambda x: x.ndim,
    "size": lambda x: x.size,
}  # fmt: skip
