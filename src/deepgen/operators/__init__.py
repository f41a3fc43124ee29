"""What to compute. Pure: an operator does not depend on hardware and does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators.attention import Attention, attention
from deepgen.operators.attention_backward import AttentionBackward, attention_backward
from deepgen.operators.base import Answer, Array, Operator, Tolerance, Work, least_work
from deepgen.operators.conv2d import Conv2d, conv2d
from deepgen.operators.gemm import Gemm, gemm
from deepgen.operators.gemm_w4 import GemmW4, gemm_w4, pack_w4
from deepgen.operators.grouped_gemm import GroupedGemm, grouped_gemm
from deepgen.operators.recorded import RECORDED, Recorded, record
from deepgen.operators.signature import Param, Signature, Tensor, TensorFacts
from deepgen.operators.softmax import Softmax, softmax
from deepgen.operators.words import Word, words_of
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.registry import Registry

OPERATORS: Registry[type[Operator]] = Registry(
    "deepgen.operators",
    "operator",
    {
        "gemm": "deepgen.operators.gemm:Gemm",
        "gemm_w4": "deepgen.operators.gemm_w4:GemmW4",
        "softmax": "deepgen.operators.softmax:Softmax",
        "conv2d": "deepgen.operators.conv2d:Conv2d",
        "attention": "deepgen.operators.attention:Attention",
        "grouped_gemm": "deepgen.operators.grouped_gemm:GroupedGemm",
        "attention_backward": "deepgen.operators.attention_backward:AttentionBackward",
        "bmm": "deepgen.operators.named.products:Bmm",
        "gemv": "deepgen.operators.named.products:Gemv",
        "conv1d": "deepgen.operators.named.convolutions:Conv1d",
        "conv3d": "deepgen.operators.named.convolutions:Conv3d",
        "dilated_conv2d": "deepgen.operators.named.convolutions:DilatedConv2d",
        "depthwise_conv2d": "deepgen.operators.named.convolutions:DepthwiseConv2d",
        **{f"conv_transpose{n}d": f"deepgen.operators.named.convolutions:TransposedConv{n}d" for n in (1, 2, 3)},
        "scan": "deepgen.operators.named.rows:Scan",
        "mean": "deepgen.operators.named.rows:Mean",
        "var": "deepgen.operators.named.rows:Variance",
        "layer_norm": "deepgen.operators.named.rows:LayerNorm",
        "rms_norm": "deepgen.operators.named.rows:RmsNorm",
        "elementwise": "deepgen.operators.named.rows:Elementwise",
        "expression": "deepgen.operators.expr.operator:ExpressionOperator",
    },
    also={
        "matmul": "deepgen.operators.gemm:Gemm",
        "mm": "deepgen.operators.gemm:Gemm",
        "layernorm": "deepgen.operators.named.rows:LayerNorm",
        "rmsnorm": "deepgen.operators.named.rows:RmsNorm",
    },
)


def from_json(data: Mapping[str, Any]) -> Operator:
    """The operator that `to_json` described: a built-in one, or one from an installed package."""
    name = data.get("name")
    if not isinstance(name, str):
        raise BadInput("no operator was given", allowed="one of " + ", ".join(OPERATORS.names()))
    if name == RECORDED:
        return Recorded.from_json(data)
    return OPERATORS.get(name).from_json(data)


def is_built_in(operator: Operator) -> bool:
    """Whether every process with deepgen can create this operator from its JSON."""
    return operator.name in OPERATORS.own and isinstance(operator, OPERATORS.get(operator.name))


__all__ = [
    "OPERATORS",
    "Answer",
    "Array",
    "Attention",
    "AttentionBackward",
    "Conv2d",
    "Gemm",
    "GemmW4",
    "GroupedGemm",
    "Operator",
    "Param",
    "Recorded",
    "Signature",
    "Softmax",
    "Tensor",
    "TensorFacts",
    "Tolerance",
    "Word",
    "Work",
    "attention",
    "attention_backward",
    "conv2d",
    "from_json",
    "gemm",
    "gemm_w4",
    "grouped_gemm",
    "is_built_in",
    "least_work",
    "pack_w4",
    "record",
    "softmax",
    "words_of",
]
