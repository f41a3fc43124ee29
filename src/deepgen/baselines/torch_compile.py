"""torch.compile with every choice of its own timed (max-autotune). Imported in the worker only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deepgen.baselines.base import factors
from deepgen.baselines.torch_cpu import imported, shared_array, unfit
from deepgen.baselines.torch_gpu import gpu_torch, shared
from deepgen.operators import Gemm, Operator, Softmax
from deepgen.targets import Target
from deepgen.vocabulary import BadInput


class TorchCompile:
    """What Inductor makes of the operator: a template of its own, fused with what follows, or a library's call.

    It takes up to minutes to start, so it takes part by its name only.
    """

    name = "torch-compile"
    on_request = True

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner not in ("cpu", "gpu"):
            return f"torch does not run on {target.name}"
        return unfit(operator)

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        if not isinstance(operator, (Gemm, Softmax)):
            raise BadInput(f"torch has no {operator.name} here")
        of = operator.a if isinstance(operator, Gemm) else operator.dtype
        on_gpu = any(hasattr(tensor, "__cuda_array_interface__") for tensor in tensors.values())
        if on_gpu:
            torch = gpu_torch()
            torch.backends.cuda.matmul.allow_tf32 = of == "tf32"
            t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        else:
            torch = imported(threads)
            t = {name: shared_array(torch, array, of) for name, array in tensors.items()}
        compute = _softmax(torch, t) if isinstance(operator, Softmax) else _product(torch, operator, t)
        compiled = torch.compile(compute, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False)
        compiled()
        run: Callable[[], None] = compiled
        return run


def _softmax(torch: Any, t: Mapping[str, Any]) -> Callable[[], None]:
    x, y = t["x"], t["y"]

    def compute() -> None:
        y.copy_(torch.softmax(x, 1))

    return compute


def _product(torch: Any, operator: Gemm, t: Mapping[str, Any]) -> Callable[[], None]:
    a, b = factors(operator, t)
    c, bias = t["C"], t.get("bias")
    functions = torch.nn.functional
    activation = {
        "none": lambda value: value,
        "relu": functions.relu,
        "gelu": lambda value: functions.gelu(value, approximate="tanh"),
        "silu": functions.silu,
    }[operator.activation]

    def compute() -> None:
        value = a @ b
        if operator.alpha != 1.0:
            value = value * operator.alpha
        if operator.beta != 0.0:
            value = value + operator.beta * c
        if bias is not None:
            value = value + bias
        c.copy_(activation(value))

    return compute
