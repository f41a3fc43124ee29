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
    from deepgen.api import tune
    from deepgen.engines import LocalEngine
    from deepgen.generators.kernels import constant, inout, input, kernel, launch, output, scalar, texture, workspace
    from deepgen.operators import Conv2d, Gemm, Softmax, conv2d, gemm, softmax
    from deepgen.space import Space
    from deepgen.triton import autotune
    from deepgen.tuning import Progress, Study
    from deepgen.vocabulary import BadInput, DeepgenError, Measurement, Trial, Verdict

# Imported when first used: `import deepgen.space` alone stays fast.
_WHERE = {
    "tune": "deepgen.api",
    "autotune": "deepgen.triton",
    "LocalEngine": "deepgen.engines",
    "constant": "deepgen.generators.kernels",
    "inout": "deepgen.generators.kernels",
    "input": "deepgen.generators.kernels",
    "kernel": "deepgen.generators.kernels",
    "launch": "deepgen.generators.kernels",
    "output": "deepgen.generators.kernels",
    "scalar": "deepgen.generators.kernels",
    "texture": "deepgen.generators.kernels",
    "workspace": "deepgen.generators.kernels",
    "Conv2d": "deepgen.operators",
    "conv2d": "deepgen.operators",
    "Gemm": "deepgen.operators",
    "gemm": "deepgen.operators",
    "Softmax": "deepgen.operators",
    "softmax": "deepgen.operators",
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
    "Progress",
    "Softmax",
    "Space",
    "Study",
    "Trial",
    "Verdict",
    "autotune",
    "constant",
    "conv2d",
    "gemm",
    "inout",
    "input",
    "kernel",
    "launch",
    "output",
    "scalar",
    "softmax",
    "texture",
    "tune",
    "workspace",
]
