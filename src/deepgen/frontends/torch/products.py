"""Maps torch calls to deepgen operators, and matrix products in any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch

from deepgen.operators import Gemm, GroupedGemm, Operator, gemm, grouped_gemm
from deepgen.operators.gemm import BLOCK_SCALES
from deepgen.operators.products import BLOCK
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import our_name

_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def linear(x: Any, weight: Any, bias: Any = None) -> Asked | None:
    """x W^T + bias: the leading dimensions of x are merged into rows."""
    rows = rows_of(x)
    if rows is None or weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return None
    return _product(rows, weight.t(), bias, (0, 1, 2), (*x.shape[:-1], weight.shape[0]))


def mm(a: Any, b: Any) -> Asked | None:
    return _product(a, b, None, (0, 1), (a.shape[0], b.shape[1])) if a.dim() == b.dim() == 2 else None


def int_mm(a: Any, b: Any) -> Asked | None:
    """8-bit integers, with sums of 32 bits."""
    if a.dim() != 2 or b.dim() != 2 or {a.dtype, b.dtype} != {torch.int8}:
        return None
    return _product(a, b, None, (0, 1), (a.shape[0], b.shape[1]), {}, torch.int32)


def addmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Asked | None:
    """Only if a vector is added, the same one to every row."""
    if (alpha, beta) != (1, 1) or a.dim() != 2 or b.dim() != 2 or bias.shape != b.shape[1:]:
        return None
    return _product(a, b, bias, (1, 2, 0), (a.shape[0], b.shape[1]))


def bmm(a: Any, b: Any) -> Asked | None:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0]:
        return None
    return _product(a, b, None, (0, 1), (*a.shape[:2], b.shape[2]))


def matmul(a: Any, b: Any) -> Asked | None:
    """Rows times a matrix, or batches of matrices."""
    if b.dim() == 2 and a.dim() >= 2:
        rows = rows_of(a)
        return None if rows is None else _product(rows, b, None, (0, 1), (*a.shape[:-1], b.shape[1]))
    if a.dim() < 3 or a.shape[:-2] != b.shape[:-2]:
        return None
    left, right = _matrices(a), _matrices(b)
    if left is None or right is None:
        return None
    return _product(left, right, None, (0, 1), (*a.shape[:-1], b.shape[-1]))


def scaled_mm(a: Any, b: Any, scale: Any, fast_sums: bool = False) -> Asked | None:
    """8-bit floats times one scale in f32, with result in bf16."""
    if not {a.dtype, b.dtype} <= {*_EIGHT_BITS} or scale.numel() != 1 or scale.dtype != torch.float32:
        return None
    extra = {"c": "bf16", "scales": "tensor", "fast_sums": fast_sums}
    product = _product(a, b, None, (0, 1), (a.shape[0], b.shape[1]), extra, torch.bfloat16)
    return product and replace(product, tensors=(*product.tensors, scale.view(1)), places=(0, 1, 2))


def block_scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Asked | None:
    """8-bit floats whose blocks have scales in f32, with result in bf16: which blocks, the scales' shapes tell."""
    kept = {a.dtype, b.dtype} <= {*_EIGHT_BITS} and scale_a.dtype == scale_b.dtype == torch.float32
    if not kept or {a.dim(), b.dim(), scale_a.dim(), scale_b.dim()} != {2} or a.shape[1] <= BLOCK:
        return None  # scales of rows and columns, if there is one block of K
    m, n, blocks = a.shape[0], b.shape[1], -(-a.shape[1] // BLOCK)
    shapes = (tuple(scale_a.shape), tuple(scale_b.shape))
    for name, (high, wide) in BLOCK_SCALES.items():
        if shapes == ((-(-m // high), blocks), (blocks, -(-n // wide))):
            product = _product(a, b, None, (0, 1), (m, n), {"c": "bf16", "scales": name}, torch.bfloat16)
            return product and replace(product, tensors=(*product.tensors, scale_a, scale_b.mT), places=(0, 1, 2, 3))
    return None


def torch_scaled_mm(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Asked | None:
    """torch has one scale for each of A and B, deepgen one for the product."""
    if bias is not None or scale_result is not None or out_dtype is not torch.bfloat16 or scale_b.numel() != 1:
        return None
    return scaled_mm(a, b, scale_a, bool(use_fast_accum))


def grouped_mm(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Asked | None:
    """Products of experts, or the gradients of their weights, with the offsets on the device."""
    if offs is None or bias is not None or out_dtype not in (None, a.dtype) or offs.dtype != torch.int32:
        return None
    if a.dim() != 2 or b.dim() not in (2, 3) or a.dtype != b.dtype or a.dtype not in FLOATS or offs.stride() != (1,):
        return None
    gradient = b.dim() == 2
    first, second = _letter(a), _letter(b)
    if first != ("t" if gradient else "n") or (second != "n" if gradient else second is None):
        return None
    experts, own = offs.shape[0], a.shape[1] if gradient else a.shape[0]
    if a.shape[1] != b.shape[-2] or not (gradient or b.shape[0] == experts):
        return None
    sizes = (experts, a.shape[0], b.shape[-1], own) if gradient else (experts, own, b.shape[-1], a.shape[1])
    layout = "tn" if gradient else f"n{second}"
    make = partial(grouped_gemm, *sizes, dtype=_factor(a), c=format_of(a), layout=layout)
    views = (a.mT if gradient else a, b.mT if second == "t" else b, offs)
    return asked(make, views, (0, 1, 2), (*offs.shape, *sizes[1:3])[not gradient :], a.dtype)


def kinds_of(operator: Operator) -> tuple[str, ...]:
    """The functions that an operator may serve; none if it is not a product."""
    if isinstance(operator, GroupedGemm):
        return ("grouped_mm",) if operator.scales == "none" and operator.a == operator.c else ()
    if not isinstance(operator, Gemm):
        return ()
    if operator.epilogue:
        return ()
    if operator.a == "i8":
        return ("int_mm",)
    return ("linear", "mm", "bmm", "matmul", "addmm") if operator.scales == "none" else ("scaled_mm",)


# As in `calls`, by name and by the dispatcher's name.
KINDS: Mapping[str, Reads] = {
    "linear": linear,
    "mm": mm,
    "int_mm": int_mm,
    "addmm": addmm,
    "bmm": bmm,
    "matmul": matmul,
    "scaled_mm": scaled_mm,
    "grouped_mm": grouped_mm,
}
_ATEN = torch.ops.aten
ATEN: Mapping[Any, Reads] = {
    _ATEN.linear.default: linear,
    _ATEN.mm.default: mm,
    _ATEN._int_mm.default: int_mm,
    _ATEN.addmm.default: addmm,
    _ATEN.bmm.default: bmm,
    _ATEN.matmul.default: matmul,
    _ATEN._scaled_mm.default: torch_scaled_mm,
    **({_ATEN._grouped_mm.default: grouped_mm} if hasattr(_ATEN, "_grouped_mm") else {}),  # of newer releases
}


def _product(
    a: Any,
    b: Any,
    bias: Any,
    places: tuple[int, ...],
    shape: tuple[int, ...],
    extra: Mapping[str, Any] | None = None,
    dtype: Any = None,
) -> Asked | None:
    """The product of matrices, or of batches of them, in whichever layout they have in memory."""
    plain = extra is None
    if a.dtype != b.dtype or a.shape[-1] != b.shape[-2] or (plain and a.dtype not in FLOATS):
        return None
    if bias is not None and (bias.dtype != a.dtype or bias.stride(0) != 1):
        return None
    first, second = _letter(a), _letter(b)
    if first is None or second is None:
        return None
    views = (a.mT if first == "t" else a, b.mT if second == "t" else b)
    batch = a.shape[0] if a.dim() == 3 else 1
    if a.dim() == 3 and batch == 1:
        views = tuple(one[0] for one in views)
    more = {"dtype": _factor(a), "layout": first + second, "batch": batch, "bias": bias is not None, **(extra or {})}
    make = partial(gemm, a.shape[-2], b.shape[-1], a.shape[-1], **more)
    operands = (*views, *(() if bias is None else (bias,)))
    return asked(make, operands, places[: len(operands)], shape, dtype or a.dtype)


def _factor(tensor: Any) -> str:
    """The format of a product's factor: tf32 if f32 on a GPU may be rounded to it."""
    name = format_of(tensor)
    rounded = name == "f32" and tensor.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if rounded else name


def _letter(matrix: Any) -> str | None:
    """`n` if rows are contiguous, `t` if columns are; None if neither are, or if matrices of a batch overlap."""
    if matrix.dim() == 3 and matrix.shape[0] > 1 and matrix.stride(0) < matrix.shape[1] * matrix.shape[2]:
        return None
    rows, columns = matrix.shape[-2:]
    down, along = matrix.stride()[-2:]
    if (along == 1 or columns == 1) and (down >= columns or rows == 1):
        return "n"
    if (down == 1 or rows == 1) and (along >= rows or columns == 1):
        return "t"
    return None


def _matrices(x: Any) -> Any:
    """All but the last two dimensions merged into one; None if that needs a copy."""
    if x.dim() == 3:
        return x
    shape = (prod(x.shape[:-2]), *x.shape[-2:])
    if x.is_contiguous():
        return x.view(shape)
    return x.mT.view(shape[0], shape[2], shape[1]).mT if x.mT.is_contiguous() else None


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
PAIRS_ON: tuple[object, ...] = ("cuda",)
Reads = Callable[..., "Asked | None"]


@dataclass(frozen=True)
class Asked:
    """What a call computes.

    `tensors` are those that the operator reads, in its order, as views of the call's own memory in the operator's
    shapes. `places` are their indices among the arguments of the call.
    """

    operator: Operator
    tensors: tuple[Any, ...]
    places: tuple[int, ...]
    shape: tuple[int, ...]  # of the result
    dtype: Any
    strides: tuple[int, ...] | None = None  # of the result, if it is not contiguous
    again: Reads | None = None  # how calls like it are read, where the first took more than a look at its tensors
    two: bool = False  # whether there are two results, one after the other in one tensor
    offsets: tuple[int, ...] = ()  # bytes from the argument to what is read, of each tensor; empty: none


def asked(
    make: Callable[[], Operator],
    tensors: tuple[Any, ...],
    places: tuple[int, ...],
    shape: Sequence[int],
    dtype: Any,
    strides: tuple[int, ...] | None = None,
) -> Asked | None:
    """What a call computes; None for symbolic sizes, which compilers use for dynamic shapes."""
    sizes = (*shape, *(size for tensor in tensors for size in tensor.shape))
    if not all(type(size) is int for size in sizes) or 0 in sizes:
        return None
    try:
        return Asked(make(), tensors, places, tuple(shape), dtype, strides)
    except BadInput:
        return None


def placed(
    operator: Operator,
    tensors: tuple[Any, ...],
    args: Sequence[Any],
    shape: Sequence[int],
    dtype: Any,
    strides: tuple[int, ...] | None = None,
    offsets: Sequence[int] = (),
) -> Asked | None:
    """What several calls compute together from `args`; None if a tensor does not begin where one of these does, or if
    two of these begin at one place: in the next call they may not. `offsets`: of each tensor, in elements, if some are
    later parts of an argument, such as one of two joined biases.
    """
    offsets = offsets or (0,) * len(tensors)
    begins: dict[tuple[int, int], int] = {}
    if any(args[begins.setdefault(_begin(arg), place)] is not arg for place, arg in enumerate(args)):
        return None
    places = [begins.get(_begin(tensor, offset)) for tensor, offset in zip(tensors, offsets, strict=True)]
    if any(place is None or args[place].dtype != one.dtype for place, one in zip(places, tensors, strict=True)):
        return None
    whole = asked(lambda: operator, tensors, tuple(p for p in places if p is not None), shape, dtype, strides)
    sizes = tuple(offset * tensor.element_size() for tensor, offset in zip(tensors, offsets, strict=True))
    return whole and replace(whole, offsets=sizes if any(sizes) else ())


def _begin(tensor: Any, offset: int = 0) -> tuple[int, int]:
    """A tensor's memory and its place there, or that before an offset, of a compiler's fake tensors too."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset() - offset


def has_pairs(tensor: Any) -> bool:
    """Whether a tensor's device has families for pairs of products. Elsewhere the second is an operand of the first."""
    return tensor.device.type in PAIRS_ON


def format_of(tensor: Any) -> str:
    return our_name(str(tensor.dtype).rpartition(".")[2])


def rows_of(x: Any) -> Any:
    """All but the last dimension merged into one; None if that needs a copy."""
    if x.dim() < 1:
        return None
    if x.dim() == 2:
        return x
    return x.view(prod(x.shape[:-1]), x.shape[-1]) if x.is_contiguous() else None
