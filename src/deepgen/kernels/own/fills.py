"""The inputs of a user's own kernel, from seeds: the same on every machine."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from deepgen.kernels.own.arguments import Array, TensorArgument
from deepgen.operators.base import drawn
from deepgen.operators.signature import Param, Size, Tensor
from deepgen.vocabulary import BadInput, DType
from deepgen.vocabulary.dtypes import narrow

KINDS = {
    "normal": "a standard normal distribution",
    "uniform": '("uniform", low, high)',
    "integers": '("integers", low, high), both included',
    "permutation": "the numbers from 0 up, in an order by chance",
    "zeros": "all zero",
    "ones": "all one",
}


def check(argument: TensorArgument) -> None:
    """Raises BadInput for a fill that means nothing."""
    fill, name = argument.fill, argument.name
    if fill is None or callable(fill) or isinstance(fill, (np.ndarray, dict)):
        return
    kind, *rest = (fill,) if isinstance(fill, str) else tuple(fill) or ("nothing",)
    if kind not in KINDS or len(rest) != (2 if kind in ("uniform", "integers") else 0):
        raise BadInput(f"{name} is filled by {fill!r}", allowed="one of " + ", ".join(KINDS) + ", an array, a function")


def declared_range(argument: TensorArgument) -> tuple[Size | float, Size | float] | None:
    """The bounds that a fill states: probes at the ends of a range stay within them."""
    fill = argument.fill
    if isinstance(fill, tuple) and fill[0] in ("uniform", "integers"):
        low, high = fill[1:]
        return low, high
    return None


def free(argument: TensorArgument) -> bool:
    """Whether other numbers may stand in it: an index, a given array or a permutation means something."""
    fill = argument.fill
    return fill is None or (isinstance(fill, str) and fill == "normal") or declared_range(argument) is not None


def filled(
    argument: TensorArgument, param: Param, tensor: Tensor, sizes: Mapping[str, int], seed: int, probe: str
) -> Array:
    """One input in its storage's dtype."""
    fill, of = argument.fill, tensor.dtype
    if free(argument):
        return drawn(tensor, param, sizes, seed, probe)
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    if isinstance(fill, str) and fill == "permutation":
        count = int(np.prod(tensor.shape, dtype=np.int64))
        return narrow(rng.permutation(count).reshape(tensor.shape), of)
    if isinstance(fill, str):
        value = np.full(tensor.shape, fill == "ones", np.int64 if of.integer else np.float32)
        return narrow(value, of)
    made = fill if isinstance(fill, np.ndarray) else _called(argument, rng, tensor)
    if made.shape != tensor.shape:
        raise BadInput(f"{tensor.name} is filled with an array of shape {made.shape}", allowed=f"{tensor.shape}")
    return stored(made, of)


def stored(values: Array, of: DType) -> Array:
    """An array of numbers, or of a format's own storage, as that storage."""
    if values.dtype == of.numpy():
        return np.ascontiguousarray(values)
    return narrow(values if of.integer else values.astype(np.float64), of)


def _called(argument: TensorArgument, rng: np.random.Generator, tensor: Tensor) -> Array:
    if not callable(argument.fill):
        what = f"what {argument.name} was filled with is not here: a study keeps functions and arrays by name only"
        raise BadInput(what, allowed="the file that the kernel was described in")
    return np.asarray(argument.fill(rng, tensor.shape))
