"""PyTorch on a GPU, and libraries it can be made to call: cuDNN, rocBLAS, hipBLASLt. Imported only in the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from deepgen.baselines import expression_calls, torch_named
from deepgen.baselines.base import NewResult, PackedAhead
from deepgen.baselines.products import factors, product
from deepgen.baselines.torch_cpu import bound, imported, shared_array, unfit, uninstalled
from deepgen.operators import Attention, AttentionBackward, Gemm, Operator, Softmax
from deepgen.operators.expr.operator import Expressed
from deepgen.operators.words import NONE
from deepgen.targets import Target
from deepgen.vocabulary import Missing


class TorchGpu:
    """torch.matmul, or addmm if something is added, with an output argument; f32 is never rounded to tf32."""

    name = "torch-gpu"
    imports = ("torch",)

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "gpu":
            return f"torch on a GPU does not run on {target.name}"
        if operator.name in torch_named.CONVOLUTIONS and operator.parameters().get("epilogue", NONE) == NONE:
            return "torch calls cuDNN, which is compared separately"
        if isinstance(operator, Attention):
            return "torch chooses among kernels that are compared separately"
        return unfit(operator)

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        if isinstance(operator, Softmax):
            return partial(torch.softmax, t["x"], 1, out=t["y"])
        if not isinstance(operator, Gemm):
            torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
            return torch_named.call_of(torch, operator, t)
        torch.backends.cuda.matmul.allow_tf32 = operator.a == "tf32"
        return bound(torch, operator, t)


def gpu_torch() -> Any:
    torch = imported()
    if not torch.cuda.is_available():
        raise Missing("a torch built for GPUs", blocks="its baseline cannot run", remedy="See pytorch.org.")
    return torch


def shared(torch: Any, tensor: Any) -> Any:
    """The same memory as a torch tensor; the array interface has no bf16, so it is passed as integers."""
    if tensor.dtype.name != "bf16":
        return torch.as_tensor(tensor, device="cuda")
    return device_view(torch, {**tensor.__cuda_array_interface__, "typestr": "<i2"}).view(torch.bfloat16)


def device_view(torch: Any, interface: Mapping[str, Any]) -> Any:
    """The memory that a CUDA array interface describes."""
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=dict(interface)), device="cuda")


class Cudnn:
    """Convolutions with channels first (nchw), like its filters. f32 is never rounded to tf32."""

    name = "cudnn"
    imports = ("torch",)
    first = True  # channels

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "cuda" not in target.languages:
            return f"cuDNN does not run on {target.name}"
        if operator.name not in torch_named.CONVOLUTIONS:
            return f"cuDNN is compared on convolutions, not on {operator.name}"
        if why := torch_named.unfit(operator):
            return why
        words = operator.parameters()
        if words["layout"].endswith("c") is self.first or words.get("epilogue", "none") != "none":
            order = "first" if self.first else "last"
            return f"{self.name} is compared on convolutions with channels {order}, without an epilogue"
        return None if find_spec("torch") else "torch, which calls cuDNN, is not installed (pip install torch)"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        if not torch.backends.cudnn.is_available():
            raise Missing("cuDNN", blocks="its baseline cannot run", remedy="pip install nvidia-cudnn-cu13")
        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        words = operator.parameters()
        weight = torch_named.filters(operator.name, words, t["weight"])
        call: Callable[[], None] = self._call(torch, operator.name, words, t, weight)
        return call

    def _call(self, torch: Any, name: str, words: Mapping[str, Any], t: Mapping[str, Any], weight: Any) -> Any:
        x, y = (torch_named.channels_second(words, t[one]) for one in ("x", "y"))
        options = torch_named.options_of(name, words, x)
        if x.dim() == 3:  # cuDNN requires at least two image dimensions
            x, y, weight = (one.unsqueeze(2) for one in (x, y, weight))
            options = options.flat()
        transposed = name in torch_named.TRANSPOSED
        run = torch.ops.aten.cudnn_convolution_transpose if transposed else torch.ops.aten.cudnn_convolution
        pads = [options.pad, options.out_pad] if transposed else [options.pad]
        order = (*pads, options.stride, options.dilation, options.groups)
        return partial(run.out, x, weight, *order, True, False, False, out=y)  # benchmark, not deterministic, no tf32


class CudnnNhwc(Cudnn):
    """Channels last, for which cuDNN has its own filter layout: the weights are packed into it before the calls."""

    name = "cudnn-nhwc"
    first = False

    @staticmethod
    def ahead(operator: Operator) -> bool:
        return True

    def _call(self, torch: Any, name: str, words: Mapping[str, Any], t: Mapping[str, Any], weight: Any) -> Any:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        source = weight.unsqueeze(2) if weight.dim() == 3 else weight
        packed = source.contiguous(memory_format=formats[source.dim()])
        own = packed.squeeze(2) if weight.dim() == 3 else packed
        call, places = super()._call(torch, name, words, t, own), ((packed.data_ptr(), packed.nbytes),)
        # If the weights are already in cuDNN's order, as with `weight_layout=ohwi`, nothing is copied.
        return call if packed is source else PackedAhead(call, partial(packed.copy_, source), lambda: places)


class Sdpa:
    """torch's attention with a fixed backend, here cuDNN."""

    name, backend = "sdpa-cudnn", "cudnn"
    imports = ("torch",)

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "cuda" not in target.languages:
            return f"{self.name} does not run on {target.name}"
        return unfit(operator) if isinstance(operator, Attention) else f"{self.name} computes attention only"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> NewResult:
        torch = gpu_torch()
        run = torch_named.call_of(torch, operator, {name: shared(torch, tensor) for name, tensor in tensors.items()})
        assert isinstance(run, NewResult)
        of = torch.backends.cuda
        switches = {
            "cudnn": of.enable_cudnn_sdp, "flash": of.enable_flash_sdp, "efficient": of.enable_mem_efficient_sdp,
            "math": of.enable_math_sdp,
        }  # fmt: skip

        def call() -> Any:
            # Process-wide settings, which other contenders may have changed.
            for backend, enable in switches.items():
                enable(backend == self.backend)
            return run.call()

        try:
            call()
        except RuntimeError as error:
            what = f"{self.backend} attention of these tensors ({str(error).partition(chr(10))[0]})"
            raise Missing(what, blocks="its baseline cannot run", remedy="Compare with another backend.") from error
        return NewResult(call, run.keep)


class SdpaFlash(Sdpa):
    """FlashAttention as bundled with torch."""

    name, backend = "sdpa-flash", "flash"


class SdpaEfficient(Sdpa):
    """CUTLASS's memory-efficient kernels."""

    name, backend = "sdpa-efficient", "efficient"


class SdpaMath(Sdpa):
    """Products and a softmax, with all scores in memory; only when requested by name."""

    name, backend = "sdpa-math", "math"
    on_request = True


class SdpaBackward:
    """The backward pass of torch's attention by a fixed backend, here cuDNN: torch's operator, not autograd, so that it
    takes the log-sum-exps that everyone is timed with."""

    name, backend = "sdpa-backward-cudnn", "cudnn"
    imports = ("torch",)

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "cuda" not in target.languages:
            return f"{self.name} does not run on {target.name}"
        if not isinstance(operator, AttentionBackward):
            return f"{self.name} computes attention's backward pass only"
        if operator.dtype not in ("bf16", "f16") or operator.width != operator.v_width:
            return f"{self.name} computes bf16 and f16, of heads of q and v that are equally wide"
        if operator.window or operator.softcap:
            return "torch has no single call for attention with a window or a soft cap"
        return "torch aligns the causal mask to the first key, not the last" if _aligned_apart(operator) else None

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> NewResult:
        torch = gpu_torch()
        assert isinstance(operator, AttentionBackward), "ask missing() first"
        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        heads_first = operator.layout == "bhsd"
        q, k, v, o, dout, *results = (
            t[name] if heads_first else t[name].transpose(1, 2)
            for name in ("q", "k", "v", "o", "dout", "dq", "dk", "dv")
        )
        call = partial(self._call, torch, operator, (dout, q, k, v, o), t["lse"])
        try:
            call()
        except (RuntimeError, TypeError) as error:
            what = f"{self.backend} attention of these tensors ({str(error).partition(chr(10))[0]})"
            raise Missing(what, blocks="its baseline cannot run", remedy="Compare with another backend.") from error

        def keep(gradients: Any) -> None:
            for to, one in zip(results, gradients, strict=True):
                to.copy_(one)

        return NewResult(call, keep)

    def _call(self, torch: Any, operator: AttentionBackward, tensors: tuple[Any, ...], lse: Any) -> Any:
        seed = torch.empty((), dtype=torch.int64, device=lse.device)  # of dropout, of which there is none
        sizes = (operator.queries, operator.keys, 0.0, operator.causal)
        run = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
        scale = operator.forward.factor
        return run(*tensors, lse.unsqueeze(-1), seed, seed, None, None, None, *sizes, scale=scale)


def _aligned_apart(operator: AttentionBackward) -> bool:
    return operator.causal and operator.queries != operator.keys


class SdpaBackwardFlash(SdpaBackward):
    """FlashAttention as bundled with torch."""

    name, backend = "sdpa-backward-flash", "flash"

    def _call(self, torch: Any, operator: AttentionBackward, tensors: tuple[Any, ...], lse: Any) -> Any:
        state, unused = (torch.empty(n, dtype=torch.uint64, device=lse.device) for n in (2, 0))
        sizes = (operator.queries, operator.keys, 0.0, operator.causal)
        run = torch.ops.aten._scaled_dot_product_flash_attention_backward
        return run(*tensors, lse, None, None, *sizes, state, unused, scale=operator.forward.factor)


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
            # A process-wide setting, which other contenders may have changed.
            torch.backends.cuda.preferred_blas_library(self.preferred)
            run()

        return call


class RocBlas(_Rocm):
    """rocBLAS, with its own heuristic."""

    name, called, preferred = "rocblas", "rocBLAS", "hipblas"


class HipBlasLt(_Rocm):
    """hipBLASLt, with its own heuristic."""

    name, called, preferred = "hipblaslt", "hipBLASLt", "hipblaslt"


class TorchCompile:
    """The operator compiled by Inductor: one of its templates, fused with what follows, or a library call.

    It takes up to minutes to start, so it takes part only when requested by name.
    """

    name = "torch-compile"
    on_request = True

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner not in ("cpu", "gpu"):
            return f"torch does not run on {target.name}"
        if isinstance(operator, (Gemm, Softmax)):
            return unfit(operator)
        if not isinstance(operator, Expressed):
            return f"torch has no {operator.name} here"
        return expression_calls.unfit(operator.expression()) or uninstalled()

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        of = {tensor.name: tensor.dtype.name for tensor in operator.tensors()}
        on_gpu = any(hasattr(tensor, "__cuda_array_interface__") for tensor in tensors.values())
        if on_gpu:
            torch = gpu_torch()
            torch.backends.cuda.matmul.allow_tf32 = "tf32" in of.values()
            t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        else:
            torch = imported(threads)
            t = {name: shared_array(torch, array, of[name]) for name, array in tensors.items()}
        if isinstance(operator, Expressed):
            compute = expression_calls.of_torch(torch, operator.expression(), t).__call__
        else:
            plain = isinstance(operator, Softmax)
            compute = _softmax(torch, t) if plain else _product(torch, product(operator, "torch"), t)
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
