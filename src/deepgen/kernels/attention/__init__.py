"""Kernels of attention, and what they share: how options come to a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from deepgen.kernels.shared import resolved
from deepgen.operators import Attention
from deepgen.vocabulary import Arg, ScalarArg, Source, TensorArg


def option_macros(attention: Attention) -> dict[str, int]:
    return {word.upper(): int(getattr(attention, word)) for word in ("bias", "alibi", "sinks", "lse")}


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


def strides_of(attention: Attention, name: str) -> tuple[str, str, str]:
    """Of rows, heads and batches."""
    row, head = (2, 1) if attention.layout == "bhsd" else (1, 2)
    return f"stride_{name}_{row}", f"stride_{name}_{head}", f"stride_{name}_0"


def rows_of(attention: Attention) -> int:
    """Queries of all heads that share a head of K."""
    return attention.queries * attention.heads // attention.kv_heads
