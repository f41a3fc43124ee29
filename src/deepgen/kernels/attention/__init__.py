"""Kernels of attention, and what they share: how options come to a kernel."""

from __future__ import annotations

from deepgen.operators import Attention
from deepgen.vocabulary import Arg, ScalarArg, TensorArg


def option_macros(attention: Attention) -> dict[str, int]:
    return {word.upper(): int(getattr(attention, word)) for word in ("bias", "alibi", "sinks", "lse")}


def option_arguments(attention: Attention) -> tuple[Arg, ...]:
    """The bias and its strides, slopes, sinks, and where log-sum-exps go: zeros for those that are not read."""
    named = {"bias": attention.bias, "slopes": attention.alibi, "sinks": attention.sinks, "lse": attention.lse}
    bias, *rest = (TensorArg(name) if holds else ScalarArg("i64", 0) for name, holds in named.items())
    strides = (ScalarArg("i64", f"stride_bias_{place}" if attention.bias else 0) for place in range(4))
    return (bias, *strides, *rest)


def strides_of(attention: Attention, name: str) -> tuple[str, str, str]:
    """Of rows, heads and batches."""
    row, head = (2, 1) if attention.layout == "bhsd" else (1, 2)
    return f"stride_{name}_{row}", f"stride_{name}_{head}", f"stride_{name}_0"


def rows_of(attention: Attention) -> int:
    """Queries of all heads that share a head of K."""
    return attention.queries * attention.heads // attention.kv_heads
