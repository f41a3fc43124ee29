"""PyTorch on the CPU, with the library that it chooses or with oneDNN. Imported only in the worker, when requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from deepgen.baselines import torch_named
from deepgen.baselines.base import PackedAhead
from deepgen.baselines.products import factors, is_plain, product
from deepgen.operators import Array, Gemm, Operator, Softmax
from deepgen.operators.expr.layouts import filter_layout
from deepgen.targets import Target
from deepgen.vocabulary import Missing

_DTYPES = ("f64", "f32", "f16", "bf16")
_INTEGERS = ("i8", "u8")


def imported(threads: int | None = None) -> Any:
    """torch with this many threads. Tensors made from arrays need no gradients, so the process's setting is left
    unchanged.
    """
    try:
        import torch
    except ImportError as error:
        raise Missing("torch", blocks="its baseline cannot run", remedy="pip install torch") from error
    if threads is not None:
        torch.set_num_threads(threads)
    return torch


class TorchCpu:
    """The fastest call that torch has: with an output argument, or with a new result if there is no such call."""

    name = "torch"
    imports = ("torch",)

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"torch on the CPU does not run on {target.name}"
        if isinstance(operator, Gemm) and operator.a in _INTEGERS:
            return _unfit_integers(operator)
        return unfit(operator)

    def prepare(self, operator: Operator, tensors: Mapping[str, Array], threads: int) -> Callable[[], Any]:
        torch = imported(threads)
        if isinstance(operator, Softmax):
            x, y = (shared_array(torch, tensors[name], operator.dtype) for name in ("x", "y"))
            return partial(torch.softmax, x, 1, out=y)
        if not isinstance(operator, Gemm):
            of = {tensor.name: tensor.dtype.name for tensor in operator.tensors()}
            t = {name: shared_array(torch, array, of[name]) for name, array in tensors.items()}
            return torch_named.call_of(torch, operator, t)
        if operator.a in _INTEGERS:
            return _integer_product(torch, operator, {name: torch.from_numpy(x) for name, x in tensors.items()})
        t = {name: shared_array(torch, array, operator.a) for name, array in tensors.items()}
        if _is_vector(operator):
            return _vector_product(torch, t)
        return bound(torch, operator, t)

    @staticmethod
    def called(operator: Gemm) -> str:
        """The operator that `prepare` calls."""
        if operator.a in _INTEGERS:
            return "torch._int_mm(out=)"
        if _is_vector(operator):
            return "torch.mv(out=)"
        if operator.bias or operator.beta != 0.0:
            return "torch.addmm(out=)"
        return "torch.bmm(out=)" if operator.batch > 1 else "torch.mm(out=)"


def _is_vector(operator: Gemm) -> bool:
    """In bf16, for a single row times rows of weights, mv takes half the time of mm. In f32 they are equal, in f16 mv
    is slow.
    """
    plain = (operator.alpha, operator.beta, operator.bias, operator.activation) == (1.0, 0.0, False, "none")
    return plain and operator.a == "bf16" and operator.m == operator.batch == 1 and operator.layout == "nt"


def _vector_product(torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
    return partial(torch.mv, t["B"], t["A"][0], out=t["C"][0])


def _unfit_integers(operator: Gemm) -> str | None:
    if operator.b != "i8" or operator.c != "i32":
        return "torch._int_mm multiplies i8 or u8 by i8 into i32"
    if operator.batch > 1:
        return "torch._int_mm takes no batch"
    if not is_plain(operator):
        return "torch._int_mm has no alpha, beta, bias or activation"
    return uninstalled()


def _integer_product(torch: Any, operator: Gemm, t: Mapping[str, Any]) -> Callable[[], Any]:
    a, b = factors(operator, t)
    return partial(torch._int_mm, a, b, out=t["C"])


def unfit(operator: Operator) -> str | None:
    """Why torch cannot compute this on any device; None if it can."""
    if isinstance(operator, Softmax):
        return uninstalled()
    if not isinstance(operator, Gemm):
        return torch_named.unfit(operator) or uninstalled()
    if operator.epilogue:
        return "torch has no single call for an epilogue as a text"
    if operator.a not in _DTYPES or not operator.a == operator.b == operator.c:
        return "torch multiplies matrices of one floating dtype (" + ", ".join(_DTYPES) + ")"
    if operator.scales != "none":
        return "torch's matmul has no scales"
    if operator.bias and (operator.beta != 0.0 or operator.alpha != 1.0):
        return "torch has no single call for bias together with alpha or beta"
    if (operator.bias or operator.beta != 0.0) and operator.batch > 1:
        return "torch has no single call for a batch with bias or beta"
    return uninstalled()


def uninstalled() -> str | None:
    return None if find_spec("torch") else "torch is not installed (pip install torch)"


def bound(torch: Any, operator: Gemm, t: Mapping[str, Any]) -> Callable[[], Any]:
    """The call for these tensors."""
    a, b = factors(operator, t)
    return _with_activation(torch, operator.activation, _product(torch, operator, a, b, t), t["C"])


def _product(torch: Any, operator: Gemm, a: Any, b: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
    c = t["C"]
    multiply = torch.bmm if operator.batch > 1 else torch.mm  # as matmul would dispatch
    if operator.beta != 0.0:
        return lambda: torch.addmm(c, a, b, beta=operator.beta, alpha=operator.alpha, out=c)
    if operator.bias:
        return lambda: torch.addmm(t["bias"], a, b, out=c)
    if operator.alpha != 1.0:
        return lambda: multiply(a, b, out=c).mul_(operator.alpha)
    return partial(multiply, a, b, out=c)


def _with_activation(torch: Any, activation: str, multiply: Callable[[], Any], c: Any) -> Callable[[], Any]:
    if activation == "none":
        return multiply
    apply: Callable[[], Any] = {
        "relu": c.relu_,
        "gelu": lambda: c.copy_(torch.nn.functional.gelu(c, approximate="tanh")),
        "silu": lambda: torch.nn.functional.silu(c, inplace=True),
    }[activation]

    def run() -> None:
        multiply()
        apply()

    return run


def shared_array(torch: Any, array: Array, dtype: str) -> Any:
    """The array as a tensor that shares its memory; numpy stores bf16 as integers."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bf16" else tensor


_ONEDNN_DTYPES = ("f32", "bf16", "f16")


class OneDnn:
    """x W^T, with bias and activation as one primitive. torch only offers it with a new result, which is copied."""

    name = "onednn"
    imports = ("torch",)
    on_request = True

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"oneDNN is compared on CPUs, not on {target.name}"
        if not isinstance(operator, Gemm) or operator.batch > 1 or operator.layout != "nt":
            return "oneDNN is compared on single products in layout nt"
        if operator.a not in _ONEDNN_DTYPES or not operator.a == operator.b == operator.c:
            return "oneDNN multiplies matrices of one dtype here: " + ", ".join(_ONEDNN_DTYPES)
        if (operator.alpha, operator.beta, operator.scales, operator.epilogue) != (1.0, 0.0, "none", ""):
            return "oneDNN is compared without alpha, beta, scales and epilogues as formulas"
        return None if find_spec("torch") else "torch, which includes oneDNN, is not installed (pip install torch)"

    def prepare(self, operator: Operator, tensors: Mapping[str, Array], threads: int) -> Callable[[], None]:
        torch = imported(threads)
        operator = product(operator, "oneDNN")
        call = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
        if call is None or not torch.backends.mkldnn.is_available():
            raise Missing("a torch with oneDNN", blocks="its baseline cannot run", remedy="See pytorch.org.")
        t: dict[str, Any] = {name: shared_array(torch, array, operator.a) for name, array in tensors.items()}
        activation, form = {"gelu": ("gelu", "tanh"), "silu": ("swish", "")}.get(
            operator.activation, (operator.activation, "")
        )

        def run() -> None:
            t["C"].copy_(call(t["A"], t["B"], t.get("bias"), activation, [], form))

        return run


# Activations as oneDNN's primitives name them: a name and an algorithm.
_FUSED = {"relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", ""),
          "tanh": ("tanh", ""), "sigmoid": ("sigmoid", "")}  # fmt: skip
_FORMS = {"i8": "weights packed ahead, x as u8, sums as f32"}


class OneDnnPacked:
    """Convolutions with prepacked weights, in whichever order oneDNN chooses.

    8-bit ones are those of quantized models: torch supports them for u8, so each call converts x to u8, and returns
    f32.
    """

    name = "onednn-packed"
    imports = ("torch",)

    @staticmethod
    def ahead(operator: Operator) -> bool:
        """Shown for kernels that also take packed weights, and for i8, which no other baseline supports."""
        words = operator.parameters()
        return torch_named.is_packed(words) or words.get("dtype") == "i8"

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"oneDNN is compared on CPUs, not on {target.name}"
        if operator.name not in torch_named.CONVOLUTIONS or operator.name == "depthwise_conv2d":
            return f"oneDNN has packed weights of convolutions here, not of {operator.name}"
        if why := torch_named.unfit(operator, packed=True):
            return why
        words = operator.parameters()
        able = _ONEDNN_DTYPES if operator.name in torch_named.TRANSPOSED else (*_ONEDNN_DTYPES, "i8")
        if words["dtype"] not in able or (words["dtype"] == "i8" and words.get("epilogue", "none") != "none"):
            return f"oneDNN has no {operator.name} of {words['dtype']} here"
        steps = torch_named.epilogue_of(words)[1]
        if len(steps) > 1 or any(step not in _FUSED for step in steps):
            return "oneDNN is compared with a bias and one activation"
        return None if find_spec("torch") else "torch, which includes oneDNN, is not installed (pip install torch)"

    def prepare(self, operator: Operator, tensors: Mapping[str, Array], threads: int) -> PackedAhead:
        torch = imported(threads)
        if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_convolution_weight"):
            raise Missing("a torch with oneDNN", blocks="its baseline cannot run", remedy="See pytorch.org.")
        name, words = operator.name, operator.parameters()
        of = {tensor.name: tensor.dtype.name for tensor in operator.tensors()}
        t = {name: shared_array(torch, array, of[name]) for name, array in tensors.items() if name != "weight"}
        x = torch_named.channels_second(words, t["x"])
        options = torch_named.options_of(name, words, x)
        line = x.dim() == 3  # treated as an image with one row
        if line:
            x, options = x.unsqueeze(2), options.flat()
        packed: list[Any] = []

        def pack() -> None:
            weight = _plain_weight(torch, operator, tensors["weight"])
            packed[:] = [convolution.pack(weight.unsqueeze(2) if line else weight)]

        kind = _QuantizedConvolution if words["dtype"] == "i8" else _FloatConvolution
        fused = [_FUSED[step] for step in torch_named.epilogue_of(words)[1]]
        convolution = kind(torch, name, x, t.get("bias"), options, fused[0] if fused else ("none", ""))
        try:
            pack()
            convolution.run(packed[0])
        except RuntimeError as error:  # for example bf16 on a CPU without support for it
            what = f"a torch and a CPU that support it ({str(error).partition(chr(10))[0]})"
            raise Missing(what, blocks="oneDNN cannot run", remedy="Compare with torch instead.") from error

        def keep(result: Any) -> None:
            result = result.squeeze(2) if line else result
            t["y"].copy_(result.movedim(1, -1) if words["layout"].endswith("c") else result)

        mkldnn = torch.ops.mkldnn

        def places() -> list[tuple[int, int]]:
            return [(mkldnn.data_ptr(packed[0]), mkldnn._nbytes(packed[0]))] if packed[0].is_mkldnn else []

        form = _FORMS.get(words["dtype"], PackedAhead.form)
        return PackedAhead(lambda: convolution.run(packed[0]), pack, places, keep, form)


def _plain_weight(torch: Any, operator: Operator, weight: Array) -> Any:
    """The weight with torch's order of dimensions."""
    words = operator.parameters()
    layout = filter_layout(words["weight_layout"], len(words["layout"]) - 2)
    if layout is None or not layout.blocks:
        return torch_named.filters(operator.name, words, shared_array(torch, weight, words["dtype"]))
    k, dimensions = words["k"], layout.dimensions - 2
    shape = (words["CO"], words["CI"] // words.get("groups", 1), *(k if isinstance(k, tuple) else (k,) * dimensions))
    plain = shared_array(torch, layout.unpacked(weight, shape), words["dtype"])
    return plain.movedim(1, 0) if operator.name in torch_named.TRANSPOSED else plain


class _FloatConvolution:
    def __init__(
        self,
        torch: Any,
        name: str,
        x: Any,
        bias: Any,
        options: torch_named.ConvolutionOptions,
        activation: tuple[str, str],
    ) -> None:
        own, each = torch.ops.mkldnn, (options.stride, options.dilation, options.groups)
        transposed = name in torch_named.TRANSPOSED
        suffix, pads = ("_transpose", (options.pad, options.out_pad)) if transposed else ("", (options.pad,))
        reorder, run = (
            getattr(own, f"_reorder_convolution{suffix}_weight"),
            getattr(own, f"_convolution{suffix}_pointwise"),
        )
        self.pack = lambda weight: reorder(weight.contiguous(), *pads, *each, [*x.shape])
        self.run = lambda packed: run(x, packed, bias, *pads, *each, activation[0], [], activation[1])


class _QuantizedConvolution:
    """Sums of (u8 - 128) times i8; f32 holds them exactly up to 2**24."""

    def __init__(
        self, torch: Any, name: str, x: Any, bias: Any, options: torch_named.ConvolutionOptions, activation: Any
    ) -> None:
        own, each = torch.ops.onednn, (options.stride, options.pad, options.dilation, options.groups)
        shifted = torch.empty_like(x, dtype=torch.uint8)
        call = getattr(own, "qconv_pointwise", None) or own.qconv2d_pointwise

        def pack(weight: Any) -> Any:
            self.ones = torch.ones(weight.shape[0]), torch.zeros(weight.shape[0], dtype=torch.int32)
            return own.qconv_prepack(weight.contiguous(), self.ones[0], 1.0, 128, *each, [*x.shape])

        def run(packed: Any) -> Any:
            torch.bitwise_xor(x.view(torch.uint8), 128, out=shifted)
            rest: tuple[Any, ...] = (*self.ones, None, *each, 1.0, 0, torch.float32, "none", [], "")
            return call(shifted, 1.0, 128, packed, *rest)

        self.pack, self.run = pack, run
