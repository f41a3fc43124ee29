"""deepgen: the fastest verified kernel for an operator on your own hardware.

import deepgen as dg
study = dg.tune(dg.gemm(1024, 1024, 1024, dtype="f32"), target="x86:native", trials=200)
kernel = study.best().load()
c = kernel(a, b)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from deepgen.frontends.api import tune
    from deepgen.kernels.own import constant, inout, input, kernel, launch, output, scalar, texture, workspace
    from deepgen.libraries import NotServed, library
    from deepgen.operators import Conv2d, Gemm, Softmax, conv2d, gemm, softmax
    from deepgen.operators.expr.builder import compute, expression, reduce_axis, scan, tensor
    from deepgen.operators.expr.functions import (
        abs,
        cos,
        erf,
        exp,
        floor,
        log,
        max,
        maximum,
        min,
        minimum,
        prod,
        rsqrt,
        sigmoid,
        sin,
        sqrt,
        sum,
        tanh,
        where,
    )
    from deepgen.operators.expr.serial import text
    from deepgen.operators.named.base import operator
    from deepgen.space import Space
    from deepgen.triton import autotune
    from deepgen.tuning import Progress, Study
    from deepgen.tuning.engines import LocalEngine
    from deepgen.vocabulary import BadInput, DeepgenError, Measurement, Trial, Verdict

# Imported when first used: `import deepgen.space` alone stays fast.
_WHERE = {
    "tune": "deepgen.frontends.api",
    "autotune": "deepgen.triton",
    "LocalEngine": "deepgen.tuning.engines",
    "constant": "deepgen.kernels.own",
    "inout": "deepgen.kernels.own",
    "input": "deepgen.kernels.own",
    "kernel": "deepgen.kernels.own",
    "launch": "deepgen.kernels.own",
    "output": "deepgen.kernels.own",
    "scalar": "deepgen.kernels.own",
    "texture": "deepgen.kernels.own",
    "workspace": "deepgen.kernels.own",
    "NotServed": "deepgen.libraries",
    "library": "deepgen.libraries",
    "Conv2d": "deepgen.operators",
    "conv2d": "deepgen.operators",
    "Gemm": "deepgen.operators",
    "gemm": "deepgen.operators",
    "Softmax": "deepgen.operators",
    "softmax": "deepgen.operators",
    "compute": "deepgen.operators.expr.builder",
    "expression": "deepgen.operators.expr.builder",
    "reduce_axis": "deepgen.operators.expr.builder",
    "scan": "deepgen.operators.expr.builder",
    "tensor": "deepgen.operators.expr.builder",
    "operator": "deepgen.operators.named.base",
    "text": "deepgen.operators.expr.serial",
    "abs": "deepgen.operators.expr.functions",
    "cos": "deepgen.operators.expr.functions",
    "erf": "deepgen.operators.expr.functions",
    "exp": "deepgen.operators.expr.functions",
    "floor": "deepgen.operators.expr.functions",
    "log": "deepgen.operators.expr.functions",
    "max": "deepgen.operators.expr.functions",
    "maximum": "deepgen.operators.expr.functions",
    "min": "deepgen.operators.expr.functions",
    "minimum": "deepgen.operators.expr.functions",
    "prod": "deepgen.operators.expr.functions",
    "rsqrt": "deepgen.operators.expr.functions",
    "sigmoid": "deepgen.operators.expr.functions",
    "sin": "deepgen.operators.expr.functions",
    "sqrt": "deepgen.operators.expr.functions",
    "sum": "deepgen.operators.expr.functions",
    "tanh": "deepgen.operators.expr.functions",
    "where": "deepgen.operators.expr.functions",
    "Space": "deepgen.space",
    "Progress": "deepgen.tuning",
    "Study": "deepgen.tuning",
    "BadInput": "deepgen.vocabulary",
    "DeepgenError": "deepgen.vocabulary",
    "Measurement": "deepgen.vocabulary",
    "Trial": "deepgen.vocabulary",
    "Verdict": "deepgen.vocabulary",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'deepgen' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*_WHERE, "__version__"])


__all__ = [
    "BadInput",
    "Conv2d",
    "DeepgenError",
    "Gemm",
    "LocalEngine",
    "Measurement",
    "NotServed",
    "Progress",
    "Softmax",
    "Space",
    "Study",
    "Trial",
    "Verdict",
    "abs",
    "autotune",
    "compute",
    "constant",
    "conv2d",
    "cos",
    "erf",
    "exp",
    "expression",
    "floor",
    "gemm",
    "inout",
    "input",
    "kernel",
    "launch",
    "library",
    "log",
    "max",
    "maximum",
    "min",
    "minimum",
    "operator",
    "output",
    "prod",
    "reduce_axis",
    "rsqrt",
    "scalar",
    "scan",
    "sigmoid",
    "sin",
    "softmax",
    "sqrt",
    "sum",
    "tanh",
    "tensor",
    "text",
    "texture",
    "tune",
    "where",
    "workspace",
]
