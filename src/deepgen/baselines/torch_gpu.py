"""PyTorch on a GPU (cuBLAS or rocBLAS underneath). Imported in the worker only, and only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deepgen.baselines.torch_cpu import bound, imported, unfit
from deepgen.operators import Gemm, Operator, Softmax
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Missing


class TorchGpu:
    """torch.matmul, or addmm where there is something to add, into the given output; f32 is never rounded to tf32."""

    name = "torch-gpu"

    def missing(self, operator: Operator, target: Target) -> str | None:
        return unfit(operator) if target.runner == "gpu" else f"torch on a GPU does not run on {target.name}"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        if isinstance(operator, Softmax):
            return partial(torch.softmax, t["x"], 1, out=t["y"])
        if not isinstance(operator, Gemm):
            raise BadInput(f"torch has no {operator.name} here")
        torch.backends.cuda.matmul.allow_tf32 = operator.a == "tf32"
        return bound(torch, operator, t)


def gpu_torch() -> Any:
    torch = imported()
    if not torch.cuda.is_available():
        raise Missing("a torch built for GPUs", blocks="its baseline cannot run", remedy="See pytorch.org.")
    return torch


def shared(torch: Any, tensor: Any) -> Any:
    """The same memory as a tensor of torch's; the array interface has no bf16, so it travels as integers."""
    if tensor.dtype.name != "bf16":
        return torch.as_tensor(tensor, device="cuda")
    return torch.as_tensor(_Words(tensor.__cuda_array_interface__), device="cuda").view(torch.bfloat16)


class _Words:
    """Two-byte words as torch knows them."""

    def __init__(self, interface: Mapping[str, Any]) -> None:
        self.__cuda_array_interface__ = {**interface, "typestr": "<i2"}
