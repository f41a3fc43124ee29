"""Calls of torch's functions as operators: which product, convolution or normalisation a call computes.

Only shapes, strides and dtypes are used, so a compiler's fake tensors work as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from deepgen.frontends.torch import elements, products
from deepgen.frontends.torch.ops import TORCHS
from deepgen.frontends.torch.products import FLOATS, Asked, Reads, asked, format_of, rows_of
from deepgen.libraries.entry import is_resized
from deepgen.libraries.predict import distance
from deepgen.operators import Operator, attention, softmax
from deepgen.operators.expr.builder import compute, tensor
from deepgen.operators.expr.check import check
from deepgen.operators.expr.nodes import Expression, HasExpression, Stage, TensorSpec
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.operators.named import operator as named
from deepgen.operators.named.convolutions import CHANNELS, IMAGES
from deepgen.vocabulary import BadInput

T = TypeVar("T")
_SIMILAR = 0.5  # octaves
_ATTENDED = (torch.bfloat16, torch.float16, torch.float32)


def softmax_of(x: Any, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Asked | None:
    """Softmax along the last dimension, in the format of x."""
    if dim is None or dim % max(1, x.dim()) != x.dim() - 1 or dtype not in (None, x.dtype):
        return None
    rows = rows_of(x)
    if rows is None or not rows.is_contiguous() or x.dtype not in FLOATS:
        return None
    return asked(lambda: softmax(*rows.shape, dtype=format_of(x)), (rows,), (0,), x.shape, x.dtype)


def layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Asked | None:
    """Layer norm of the last dimension, with weight and bias."""
    return None if bias is None else _normal("layer_norm", x, normalized_shape, (weight, bias), (0, 2, 3), eps)


def rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Asked | None:
    """RMS norm of the last dimension, with a weight."""
    if eps is None and x.dtype in FLOATS:
        eps = torch.finfo(x.dtype).eps
    return _normal("rms_norm", x, normalized_shape, (weight,), (0, 2), eps)


def normed_sum(kind: str, eps: float | None, x: Any, residual: Any, *vectors: Any) -> Asked | None:
    """x plus a tensor of its shape, and the norm of the sum. `vectors`: the norm's weight and bias."""
    norm = KINDS[kind](x, x.shape[-1:], *vectors, eps)
    other = rows_of(residual) if residual.shape == x.shape and residual.dtype == x.dtype else None
    if norm is None or other is None or not other.is_contiguous():
        return None
    tensors = (norm.tensors[0], other, *norm.tensors[1:])
    both = asked(lambda: _of_sum(norm.operator), tensors, tuple(range(len(tensors))), (2, *x.shape), x.dtype)
    return both and replace(both, two=True)


def _of_sum(norm: Operator) -> Operator:
    """The operator, from the norm's: what that reads is a stage, rounded as torch does."""
    assert isinstance(norm, HasExpression)
    inner = norm.expression()
    x, *rest = inner.tensors
    wide, shape = "f64" if x.dtype == "f64" else "f32", x.shape
    first, second = (tensor(name, shape, x.dtype) for name in ("first", "second"))
    total = compute(x.name, shape, lambda *at: (first[at].cast(wide) + second[at].cast(wide)).cast(x.dtype))
    assert isinstance(total.definition, Stage)
    specs = [TensorSpec(one.name, shape, x.dtype) for one in (first, second)]
    stages, outputs = (total.definition, *inner.stages), (x.name, *inner.outputs)
    return ExpressionOperator(check(Expression(f"sum_{norm.name}", (*specs, *rest), stages, outputs)))


def convolution(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Asked | None:
    """Convolution in one to three dimensions with channels first, in two also with channels last."""
    options = {"stride": stride, "pad": padding, "dilation": dilation}
    if isinstance(padding, str):
        space = [*weight.shape[2:]]
        reach = [step * (k - 1) for step, k in zip(_each(dilation, len(space)), space, strict=True)]
        # Asymmetric padding, as for k=2, is done in torch by a copy.
        if padding not in ("same", "valid") or (padding == "same" and any(one % 2 for one in reach)):
            return None
        options["pad"] = [one // 2 for one in reach] if padding == "same" else 0
    return _convolved(x, weight, bias, options, groups)


def transposed_convolution(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Asked | None:
    options = {"stride": stride, "pad": padding, "dilation": dilation, "out_pad": output_padding}
    return _convolved(x, weight, bias, options, groups)


def _aten_convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    out_pad: Any,
    groups: int,
) -> Asked | None:
    if transposed:
        return transposed_convolution(x, weight, bias, stride, padding, out_pad, groups, dilation)
    return convolution(x, weight, bias, stride, padding, dilation, groups)


def attention_of(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    by_position: bool | None = None,
) -> Asked | None:
    """Attention on four dimensions. torch aligns queries with keys at the start, deepgen at the end.

    `by_position`: whether the result has the heads of a position together in memory; None: where q has.
    """
    if any(x.dim() != 4 or x.dtype != q.dtype or x.stride(3) != 1 for x in (q, k, v)) or q.dtype not in _ATTENDED:
        return None
    (batch, heads, queries, width), (_, kv_heads, keys, _) = q.shape, k.shape
    same = k.shape[:3] == v.shape[:3] and (k.shape[0], k.shape[3]) == (batch, width)
    if not same or (kv_heads != heads and not enable_gqa) or dropout_p or (is_causal and queries != keys):
        return None
    if attn_mask is not None and (attn_mask.dtype != q.dtype or attn_mask.dim() > 4):
        return None
    shape = (*q.shape[:3], v.shape[3])
    layout, strides = "bhsd", None
    tensors: tuple[Any, ...] = (q, k, v)
    if q.transpose(1, 2).is_contiguous() if by_position is None else by_position:
        layout, tensors = "bshd", tuple(x.transpose(1, 2) for x in tensors)
        strides = (queries * heads * shape[3], shape[3], heads * shape[3], 1)
    if attn_mask is not None:
        tensors = (*tensors, attn_mask[(None,) * (4 - attn_mask.dim())])

    def make() -> Operator:
        return attention(
            batch, heads, queries, keys, width, kv_heads=kv_heads, v_width=v.shape[3], dtype=format_of(q),
            causal=is_causal, scale=scale or 0.0, bias=attn_mask is not None, layout=layout,
        )  # fmt: skip

    return asked(make, tensors, tuple(range(len(tensors))), shape, q.dtype, strides)


def attention_call(*args: Any) -> Asked | None:
    """Attention as `attend` is called. Its result has torch's layout, which depends on how torch computes it."""
    if attention_of(*args) is None:
        return None
    with torch.no_grad():
        laid = attend(*args)
    by_position = laid.transpose(1, 2).is_contiguous()
    if not by_position and not laid.is_contiguous():
        return None
    again = partial(attention_of, by_position=by_position)
    call = again(*args)
    return call and replace(call, again=again)


def attend(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> Any:
    """torch's attention, with all arguments by position."""
    return TORCHS["attention"](q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa)


def _attention_kernels() -> Iterator[tuple[Any, Reads]]:
    """The attention operators that torch dispatches to. Those with shared key heads only accept grouped heads."""
    plain = partial(attention_of, enable_gqa=True)
    yield _ATEN.scaled_dot_product_attention.default, attention_of
    yield (
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        lambda q, k, v, drop=0.0, causal=False, *, attn_mask=None, scale=None: plain(
            q, k, v, attn_mask, drop, causal, scale
        ),
    )
    yield (
        _ATEN._scaled_dot_product_flash_attention.default,
        lambda q, k, v, drop=0.0, causal=False, *_, scale=None: plain(q, k, v, None, drop, causal, scale),
    )
    for op in (_ATEN._scaled_dot_product_cudnn_attention, _ATEN._scaled_dot_product_efficient_attention):
        yield (
            op.default,
            lambda q, k, v, bias, _, drop=0.0, causal=False, *__, scale=None: plain(q, k, v, bias, drop, causal, scale),
        )


class Alike(Generic[T]):
    """Decisions at shapes that were never tuned, which hold for similar ones: a growing cache has a new shape in each
    step, and races at all of them would take longer than kernels save.

    Shapes are similar if a single size differs, by less than half an octave, that is no length of rows: rows of other
    lengths are aligned in another way.
    """

    def __init__(self) -> None:
        self._decided: list[tuple[Operator, Any, T]] = []

    def add(self, operator: Operator, tensors: Sequence[Any], decided: T) -> None:
        self._decided.append((operator, _order(tensors), decided))

    def find(self, operator: Operator, tensors: Sequence[Any]) -> T | None:
        order = _order(tensors)
        similar = (one for other, like, one in self._decided if like == order and _similar(other, operator))
        return next(similar, None)


def _order(tensors: Sequence[Any]) -> Any:
    """The device, and the order of each tensor's dimensions in memory."""
    return str(tensors[0].device), [sorted(range(t.dim()), key=lambda i, t=t: t.stride(i)) for t in tensors]  # type: ignore[misc]


def _similar(one: Operator, other: Operator) -> bool:
    return len(differing(one, other)) == 1 and distance(one, other) < _SIMILAR


def differing(one: Operator, other: Operator) -> list[str]:
    """The sizes in which two shapes of an operator differ; none if they differ otherwise, or in a length of rows."""
    if type(one) is not type(other):
        return []
    sizes, others = one.sizes(), other.sizes()
    differ = [name for name in sizes if sizes[name] != others.get(name)]
    rows = " ".join(str(param.shape[-1]) for param in one.signature().tensors if param.shape)
    inside = any(re.search(rf"\b{name}\b", rows) for name in differ)
    return [] if inside or not is_resized(one, other) else differ


# The supported functions, by the names of deepgen's own operators.
KINDS: Mapping[str, Reads] = {
    **products.KINDS,
    "attention": attention_call,
    "softmax": softmax_of,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), transposed_convolution),
    **elements.KINDS,
}


def kinds_of(operator: Operator) -> tuple[str, ...]:
    """The functions that an operator may serve."""
    if computed := products.kinds_of(operator):
        return computed
    if isinstance(operator, ExpressionOperator):
        return (operator.definition.name,) if elements.size_of(operator) else ()
    named_here = "conv2d" if operator.name in _IMAGES else operator.name
    return (named_here,) if named_here in KINDS else ()


# The same by the dispatcher's names, which run below autograd and are what compilers see.
_ATEN = torch.ops.aten
ATEN: Mapping[Any, Reads] = {
    **products.ATEN,
    _ATEN._softmax.default: lambda x, dim, half: None if half else softmax_of(x, dim),
    _ATEN.softmax.int: softmax_of,
    _ATEN.native_layer_norm.default: layer_norm,
    _ATEN.layer_norm.default: lambda x, shape, weight=None, bias=None, eps=1e-5, *_: layer_norm(
        x, shape, weight, bias, eps
    ),
    _ATEN.convolution.default: _aten_convolution,
    **dict(_attention_kernels()),
    **{
        op.default: rms_norm
        for op in (getattr(_ATEN, name, None) for name in ("rms_norm", "_fused_rms_norm"))
        if op is not None
    },
    **elements.ATEN,
}


def _normal(
    name: str, x: Any, shape: Sequence[int], vectors: tuple[Any, ...], places: tuple[int, ...], eps: float | None
) -> Asked | None:
    rows = rows_of(x)
    cols = x.shape[-1] if x.dim() else 0
    if rows is None or not rows.is_contiguous() or x.dtype not in FLOATS or [*shape] != [cols] or eps is None:
        return None
    if any(v is None or v.shape != (cols,) or v.stride(0) != 1 or v.dtype != x.dtype for v in vectors):
        return None
    make = partial(named, name, rows=rows.shape[0], cols=cols, dtype=format_of(x), eps=float(eps))
    return asked(make, (rows, *vectors), places, x.shape, x.dtype)


_IMAGES = ("dilated_conv2d", "depthwise_conv2d")  # these are calls of conv2d as well
_SPACE = {1: "L", 2: "HW", 3: "DHW"}


def _each(option: Any, dimensions: int) -> list[int]:
    values = [*option] if isinstance(option, (list, tuple)) else [option]
    return values * dimensions if len(values) == 1 else values


def _convolved(x: Any, weight: Any, bias: Any, options: Mapping[str, Any], groups: int) -> Asked | None:
    dimensions, transposed = x.dim() - 2, "out_pad" in options
    if dimensions not in _SPACE or weight.dim() != x.dim() or x.dtype not in FLOATS or weight.dtype != x.dtype:
        return None
    if bias is not None and (bias.dtype != x.dtype or bias.dim() != 1 or bias.stride(0) != 1):
        return None
    sizes, laid = (*x.shape, *weight.shape), _laid(x, weight, transposed=transposed)
    if laid is None or not all(type(size) is int for size in sizes) or 0 in sizes:
        return None
    image, filters, words = laid
    words |= {word: _each(value, dimensions) for word, value in options.items()}
    words |= {IMAGES: x.shape[0], "k": [*weight.shape[2:]], "dtype": format_of(x)}
    words |= dict(zip(_SPACE[dimensions], x.shape[2:], strict=True))
    words |= {"CI": x.shape[1], "CO": weight.shape[1] * groups if transposed else weight.shape[0]}
    words |= {"epilogue": "bias"} if bias is not None else {}
    name = _named(words, groups, dimensions, transposed=transposed)
    if x.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups):
        return None
    if name == "depthwise_conv2d":
        filters = weight.view(weight.shape[0], *weight.shape[2:])
    try:
        operator = named(name, **words)
    except BadInput:
        return None
    made_of, first = operator.tensors()[-1].shape, words["layout"].startswith("nc")
    shape = made_of if first else (made_of[0], made_of[-1], *made_of[1:-1])
    strides = None if first else torch.empty(made_of, device="meta").movedim(-1, 1).stride()
    tensors, places = ((image, filters, bias), (0, 1, 2)) if bias is not None else ((image, filters), (0, 1))
    return asked(lambda: operator, tensors, places, shape, x.dtype, strides)


def _laid(x: Any, weight: Any, *, transposed: bool) -> tuple[Any, Any, dict[str, Any]] | None:
    """Views of both in memory order, and the parameters that describe it. With channels last, a weight is read in its
    own memory layout.
    """
    dimensions = x.dim() - 2
    letters = _SPACE[dimensions].lower()
    if x.is_contiguous() and weight.is_contiguous():
        return x, weight, {"layout": f"nc{letters}"}
    form = torch.channels_last
    # In three dimensions torch's result has channels first or last, depending on size and format.
    if dimensions != 2 or x.is_contiguous() or not x.is_contiguous(memory_format=form):
        return None
    outer, inner = "io" if transposed else "oi"
    words = {"layout": f"n{letters}c", "weight_layout": f"{outer}{inner}{letters}"}
    if weight.is_contiguous():
        return x.movedim(1, -1), weight, words
    words["weight_layout"] = f"{outer}{letters}{inner}"
    return (x.movedim(1, -1), weight.movedim(1, -1), words) if weight.is_contiguous(memory_format=form) else None


def _named(words: dict[str, Any], groups: int, dimensions: int, *, transposed: bool) -> str:
    """The operator's name; parameters that it does not have are removed."""
    if transposed or dimensions != 2:
        words["groups"] = groups
        return f"conv_transpose{dimensions}d" if transposed else f"conv{dimensions}d"
    if groups == words["CI"] == words["CO"] and groups > 1 and words["layout"] == "nchw":
        words[CHANNELS] = words.pop("CI")
        del words["CO"]
        return "depthwise_conv2d"
    if groups == 1 and "epilogue" not in words and {*words["dilation"]} == {1}:
        del words["dilation"]
        return "conv2d"
    words["groups"] = groups
    return "dilated_conv2d"
