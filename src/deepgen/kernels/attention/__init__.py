"""Kernels of attention, and what they share: how options come to a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from deepgen.kernels.shared import resolved
from deepgen.operators import Attention, AttentionBackward, Operator
from deepgen.vocabulary import Arg, ScalarArg, Source, Step, TensorArg, WorkspaceArg

_WIDEST, _LONG = 128, 1 << 30


def masks(operator: Attention | AttentionBackward) -> dict[str, int]:
    words = {"CAUSAL": operator.causal, "WINDOW": operator.window > 0, "SOFTCAP": operator.softcap > 0}
    return {word: int(holds) for word, holds in words.items()}


def option_macros(attention: Attention) -> dict[str, int]:
    options = {word.upper(): int(getattr(attention, word)) for word in ("bias", "alibi", "sinks", "lse")}
    return {**masks(attention), **options}


def widths_required(attention: Attention) -> tuple[tuple[str, str], ...]:
    return (
        (f"D == {attention.width}", f"a width of {attention.width}"),
        (f"DV == {attention.v_width}", f"values of width {attention.v_width}"),
    )


def option_arguments(attention: Attention) -> tuple[Arg, ...]:
    """The bias and its strides, slopes, sinks, and where log-sum-exps go: zeros for those that are not read."""
    named = {"bias": attention.bias, "slopes": attention.alibi, "sinks": attention.sinks, "lse": attention.lse}
    bias, *rest = (TensorArg(name) if holds else ScalarArg("i64", 0) for name, holds in named.items())
    strides = (ScalarArg("i64", f"stride_bias_{place}" if attention.bias else 0) for place in range(4))
    return (bias, *strides, *rest)


def length_arguments(attention: Attention) -> tuple[Arg, ...]:
    """Lengths of batches, the table of pages and its rows' stride: after all others, where there are lengths."""
    if not attention.lengths:
        return ()
    stride = ScalarArg("i64", "stride_pages_0" if attention.page else 0)
    return (TensorArg("lengths"), TensorArg("pages") if attention.page else ScalarArg("i64", 0), stride)


def resolved_for(attention: Attention, files: Iterable[Source]) -> tuple[Source, ...]:
    """Sources with what lengths and pages need, or without."""
    words = {"LENGTHS": attention.lengths, "PAGE": attention.page > 0}
    return tuple(replace(file, text=resolved(file.text, words)) for file in files)


def backward_refused(operator: Operator) -> str | None:
    """What families on products of matrices refuse."""
    if not isinstance(operator, AttentionBackward):
        return "it supports attention's backward pass only"
    if operator.dtype not in ("bf16", "f16"):
        return "it multiplies f16 and bf16"
    if operator.width != operator.v_width or operator.width % 16 or operator.width > _WIDEST:
        return f"it supports heads of q and v that are equally wide: a multiple of 16, up to {_WIDEST}"
    if max(operator.queries, operator.keys) > _LONG:
        return "it has 32-bit indices of queries and keys"
    return None


def backward_macros(backward: AttentionBackward) -> dict[str, int]:
    return {"D": backward.width, **masks(backward)}


def backward_requires(backward: AttentionBackward, *, aligned: bool = False) -> tuple[tuple[str, str], ...]:
    widths = tuple((f"{size} == {backward.width}", f"a width of {backward.width}") for size in ("D", "DV"))
    if not aligned:
        return widths
    apart = "rows, heads and batches of {} that lie multiples of 16 bytes apart"
    names = ("q", "k", "v", "o", "dout", "dq", "dk", "dv")
    every = ((f"{stride} % 8 == 0", apart.format(name)) for name in names for stride in strides_of(backward, name))
    return (*widths, *every)


def backward_sums(backward: AttentionBackward) -> Step:
    """The launch that leaves of each query its log-sum-exp in binary and the sum of dout * o."""
    args = (
        *(arg for name in ("o", "dout") for arg in strided(backward, name)),
        TensorArg("lse"),
        _sums(),
        *(ScalarArg("i32", size) for size in ("B", "H", "SQ")),
    )
    return Step("sums", args, grid=("ceil_div(B * H * SQ, 32)", 1, 1), block=(256, 1, 1))


def _sums() -> WorkspaceArg:
    return WorkspaceArg("sums", "B * H * SQ * 8")


def backward_arguments(backward: AttentionBackward, results: Iterable[str]) -> tuple[Arg, ...]:
    return (
        *(arg for name in ("q", "k", "v", "dout") for arg in strided(backward, name)),
        _sums(),
        *(ScalarArg("i32", size) for size in ("H", "H // HK", "SQ", "SK", "window")),
        *(ScalarArg("f32", number) for number in ("scale", "softcap")),
        *(arg for name in results for arg in strided(backward, name)),
    )


def strided(operator: Attention | AttentionBackward, name: str) -> tuple[Arg, ...]:
    """A tensor and its strides."""
    return TensorArg(name), *(ScalarArg("i64", stride) for stride in strides_of(operator, name))


def strides_of(attention: Attention | AttentionBackward, name: str) -> tuple[str, str, str]:
    """Of rows, heads and batches."""
    row, head = (2, 1) if attention.layout == "bhsd" else (1, 2)
    return f"stride_{name}_{row}", f"stride_{name}_{head}", f"stride_{name}_0"


def rows_of(attention: Attention) -> int:
    """Queries of all heads that share a head of K."""
    return attention.queries * attention.heads // attention.kv_heads
