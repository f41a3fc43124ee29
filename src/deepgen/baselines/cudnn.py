"""cuDNN's convolutions through torch, which times cuDNN's algorithms once for each shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from deepgen.baselines.torch_gpu import gpu_torch, shared
from deepgen.operators import Conv2d, Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Missing

_DTYPES = ("f32", "f16", "bf16", "f64")


class Cudnn:
    """In the order of dimensions that its filters have: nchw. f32 is never rounded to tf32."""

    name = "cudnn"

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "cuda" not in target.languages:
            return f"cuDNN does not run on {target.name}"
        if not isinstance(operator, Conv2d):
            return f"cuDNN is compared on convolutions, not on {operator.name}"
        if operator.dtype not in _DTYPES or operator.layout != "nchw":
            return "cuDNN is compared on floats in layout nchw"
        return None if find_spec("torch") else "torch, which calls cuDNN, is not installed (pip install torch)"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        if not isinstance(operator, Conv2d):
            raise BadInput(f"cuDNN has no {operator.name} here")
        if not torch.backends.cudnn.is_available():
            raise Missing("cuDNN", blocks="its baseline cannot run", remedy="pip install nvidia-cudnn-cu13")
        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        pad, stride = [operator.pad] * 2, [operator.stride] * 2
        # Without gradients; benchmark, not deterministic, no tf32.
        return partial(
            torch.ops.aten.cudnn_convolution.out, t["x"], t["weight"], pad, stride, [1, 1], 1, True, False, False,
            out=t["y"],
        )  # fmt: skip
