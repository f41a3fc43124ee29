"""PyTorch on a GPU, and what it can be told to call: cuDNN, rocBLAS, hipBLASLt. Imported in the worker only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from deepgen.baselines.products import factors, product
from deepgen.baselines.torch_cpu import bound, imported, shared_array, unfit
from deepgen.operators import Conv2d, Gemm, Operator, Softmax
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Missing


class TorchGpu:
    """torch.matmul, or addmm where there is something to add, into the given output; f32 is never rounded to tf32."""

    name = "torch-gpu"
    imports = ("torch",)

    def missing(self, operator: Operator, target: Target) -> str | None:
        return unfit(operator) if target.runner == "gpu" else f"torch on a GPU does not run on {target.name}"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        if isinstance(operator, Softmax):
            return partial(torch.softmax, t["x"], 1, out=t["y"])
        operator = product(operator, "torch")
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
    return device_view(torch, {**tensor.__cuda_array_interface__, "typestr": "<i2"}).view(torch.bfloat16)


def device_view(torch: Any, interface: Mapping[str, Any]) -> Any:
    """The memory that the CUDA array interface tells of."""
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=dict(interface)), device="cuda")


_DTYPES = ("f32", "f16", "bf16", "f64")


class Cudnn:
    """In the order of dimensions that its filters have: nchw. f32 is never rounded to tf32."""

    name = "cudnn"
    imports = ("torch",)

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


class _Rocm:
    name, called, preferred = "", "", ""
    imports = ("torch",)

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "hip" not in target.languages:
            return f"{self.called} does not run on {target.name}"
        return unfit(operator) if isinstance(operator, Gemm) else f"{self.called} has no {operator.name}"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        operator = product(operator, self.called)
        if torch.version.hip is None:
            raise Missing("a torch for ROCm", blocks=f"{self.called} cannot run", remedy="See pytorch.org.")
        run = bound(torch, operator, {name: shared(torch, tensor) for name, tensor in tensors.items()})

        def call() -> None:
            # A setting of the process, which other contenders have set to theirs.
            torch.backends.cuda.preferred_blas_library(self.preferred)
            run()

        return call


class RocBlas(_Rocm):
    """By the heuristic of the library."""

    name, called, preferred = "rocblas", "rocBLAS", "hipblas"


class HipBlasLt(_Rocm):
    """By the heuristic of the library."""

    name, called, preferred = "hipblaslt", "hipBLASLt", "hipblaslt"


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
