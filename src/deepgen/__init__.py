"""deepgen: the fastest verified kernel for an operator on your own hardware.

import deepgen as dg
study = dg.tune(dg.gemm(1024, 1024, 1024, dtype="f32"), target="x86:native", trials=200)
kernel = study.best().load()
c = kernel(a, b)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepgen.vocabulary.registry import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from deepgen.frontends.api import judge, tune
    from deepgen.kernels.own import constant, inout, input, kernel, launch, output, scalar, texture, workspace
    from deepgen.libraries import NotServed, library
    from deepgen.operators import (
        Attention,
        AttentionBackward,
        Conv2d,
        Gemm,
        GemmW4,
        GroupedGemm,
        Softmax,
        attention,
        attention_backward,
        conv2d,
        gemm,
        gemm_w4,
        grouped_gemm,
        pack_w4,
        softmax,
    )
    from deepgen.operators.expr.builder import (
        abs,
        compute,
        cos,
        erf,
        exp,
        expression,
        floor,
        log,
        max,
        maximum,
        min,
        minimum,
        prod,
        reduce_axis,
        rsqrt,
        scan,
        sigmoid,
        sin,
        sqrt,
        sum,
        tanh,
        tensor,
        where,
    )
    from deepgen.operators.expr.layouts import packed_layout
    from deepgen.operators.expr.serial import text
    from deepgen.operators.named import operator
    from deepgen.space import Space
    from deepgen.triton import autotune
    from deepgen.tuning import Progress, Study
    from deepgen.tuning.engines import LocalEngine
    from deepgen.vocabulary import BadInput, DeepgenError, Measurement, Trial, Verdict

# Imported when first used: `import deepgen.space` alone stays fast.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "deepgen.frontends.api": "judge tune",
        "deepgen.triton": "autotune",
        "deepgen.tuning.engines": "LocalEngine",
        "deepgen.kernels.own": "constant inout input kernel launch output scalar texture workspace",
        "deepgen.libraries": "NotServed library",
        "deepgen.operators": "Attention attention AttentionBackward attention_backward Conv2d conv2d Gemm gemm "
        "GroupedGemm grouped_gemm Softmax softmax GemmW4 gemm_w4 pack_w4",
        "deepgen.operators.expr.builder": "abs compute cos erf exp expression floor log max maximum min minimum prod "
        "reduce_axis rsqrt scan sigmoid sin sqrt sum tanh tensor where",
        "deepgen.operators.named": "operator",
        "deepgen.operators.expr.serial": "text",
        "deepgen.operators.expr.layouts": "packed_layout",
        "deepgen.space": "Space",
        "deepgen.tuning": "Progress Study",
        "deepgen.vocabulary": "BadInput DeepgenError Measurement Trial Verdict",
    },
)

__all__ = [
    "Attention", "AttentionBackward", "BadInput", "Conv2d", "DeepgenError", "Gemm", "GemmW4", "GroupedGemm",
    "LocalEngine", "Measurement", "NotServed", "Progress", "Softmax", "Space", "Study", "Trial", "Verdict", "abs",
    "attention", "attention_backward", "autotune", "compute", "constant", "conv2d", "cos", "erf", "exp", "expression",
    "floor", "gemm", "gemm_w4", "grouped_gemm", "inout", "input", "judge", "kernel", "launch", "library", "log", "max",
    "maximum", "min", "minimum", "operator", "output", "pack_w4", "packed_layout", "prod", "reduce_axis", "rsqrt",
    "scalar", "scan", "sigmoid", "sin", "softmax", "sqrt", "sum", "tanh", "tensor", "text", "texture", "tune", "where",
    "workspace",
]  # fmt: skip
