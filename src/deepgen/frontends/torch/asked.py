"""What a call of torch's computes, as an operator of deepgen's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from deepgen.operators import Operator
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import our_name

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Reads = Callable[..., "Asked | None"]


@dataclass(frozen=True)
class Asked:
    """What a call computes.

    `tensors` are those that the operator reads, in its order, as views of the call's own memory in the operator's
    shapes. `places` says which arguments of the call they are.
    """

    operator: Operator
    tensors: tuple[Any, ...]
    places: tuple[int, ...]
    shape: tuple[int, ...]  # of the result
    dtype: Any
    strides: tuple[int, ...] | None = None  # of the result, where it is not contiguous


def asked(
    make: Callable[[], Operator],
    tensors: tuple[Any, ...],
    places: tuple[int, ...],
    shape: Sequence[int],
    dtype: Any,
    strides: tuple[int, ...] | None = None,
) -> Asked | None:
    """Sizes that are not numbers, as compilers have them for shapes that may change, are no operator's."""
    sizes = (*shape, *(size for tensor in tensors for size in tensor.shape))
    if not all(type(size) is int for size in sizes) or 0 in sizes:
        return None
    try:
        return Asked(make(), tensors, places, tuple(shape), dtype, strides)
    except BadInput:
        return None


def format_of(tensor: Any) -> str:
    return our_name(str(tensor.dtype).rpartition(".")[2])


def rows_of(x: Any) -> Any:
    """All but the last dimension as one; None where that needs a copy."""
    if x.dim() < 1:
        return None
    if x.dim() == 2:
        return x
    return x.view(prod(x.shape[:-1]), x.shape[-1]) if x.is_contiguous() else None
