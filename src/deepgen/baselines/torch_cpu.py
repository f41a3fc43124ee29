"""PyTorch on the CPU, with the library that it chooses or with oneDNN. Imported in the worker only, when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from deepgen.baselines import torch_named
from deepgen.baselines.products import factors, product
from deepgen.operators import Array, Gemm, Operator, Softmax
from deepgen.targets import Target
from deepgen.vocabulary import Missing

_DTYPES = ("f64", "f32", "f16", "bf16")
_INTEGERS = ("i8", "u8")


def imported(threads: int | None = None) -> Any:
    """torch, with that many threads. Tensors made of arrays need no gradients: the process keeps its own setting."""
    try:
        import torch
    except ImportError as error:
        raise Missing("torch", blocks="its baseline cannot run", remedy="pip install torch") from error
    if threads is not None:
        torch.set_num_threads(threads)
    return torch


class TorchCpu:
    """The quickest call that torch has: into the given output, or with a new result where it has no such form."""

    name = "torch"
    imports = ("torch",)

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "cpu":
            return f"torch on the CPU does not run on {target.name}"
        if isinstance(operator, Gemm) and operator.a in _INTEGERS:
            return _unfit_integers(operator)
        if not isinstance(operator, (Gemm, Softmax)):
            return torch_named.unfit(operator) or _uninstalled()
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
    """In bf16, one row by rows of weights: mv takes half the time of mm. In f32 they are equal, in f16 mv is slow."""
    plain = (operator.alpha, operator.beta, operator.bias, operator.activation) == (1.0, 0.0, False, "none")
    return plain and operator.a == "bf16" and operator.m == operator.batch == 1 and operator.layout == "nt"


def _vector_product(torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
    return partial(torch.mv, t["B"], t["A"][0], out=t["C"][0])


def _unfit_integers(operator: Gemm) -> str | None:
    if operator.b != "i8" or operator.c != "i32":
        return "torch._int_mm multiplies i8 or u8 by i8 into i32"
    if operator.batch > 1:
        return "torch._int_mm takes no batch"
    if operator.alpha != 1.0 or operator.beta != 0.0 or operator.bias or operator.activation != "none":
        return "torch._int_mm has no alpha, beta, bias or activation"
    return _uninstalled()


def _integer_product(torch: Any, operator: Gemm, t: Mapping[str, Any]) -> Callable[[], Any]:
    a, b = factors(operator, t)
    return partial(torch._int_mm, a, b, out=t["C"])


def unfit(operator: Operator) -> str | None:
    """Why torch cannot compute this, wherever it runs; None when it can."""
    if isinstance(operator, Softmax):
        return _uninstalled()
    if not isinstance(operator, Gemm):
        return f"torch is compared on products and softmax, not on {operator.name}"
    if operator.a not in _DTYPES or not operator.a == operator.b == operator.c:
        return "torch multiplies matrices of one floating dtype (" + ", ".join(_DTYPES) + ")"
    if operator.scales != "none":
        return "torch's matmul has no scales"
    if operator.bias and (operator.beta != 0.0 or operator.alpha != 1.0):
        return "torch has no single call for bias together with alpha or beta"
    if (operator.bias or operator.beta != 0.0) and operator.batch > 1:
        return "torch has no single call for a batch with bias or beta"
    return _uninstalled()


def _uninstalled() -> str | None:
    return None if find_spec("torch") else "torch is not installed (pip install torch)"


def bound(torch: Any, operator: Gemm, t: Mapping[str, Any]) -> Callable[[], Any]:
    """The call on these tensors."""
    a, b = factors(operator, t)
    return _with_activation(torch, operator.activation, _product(torch, operator, a, b, t), t["C"])


def _product(torch: Any, operator: Gemm, a: Any, b: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
    c = t["C"]
    multiply = torch.bmm if operator.batch > 1 else torch.mm  # what matmul would look up
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
    """The array as a tensor over the same memory; numpy stores bf16 as integers."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bf16" else tensor


_ONEDNN_DTYPES = ("f32", "bf16", "f16")


class OneDnn:
    """x W^T, with bias and activation as one primitive. torch has it with a new result only, which is copied."""

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
        if (operator.alpha, operator.beta, operator.scales) != (1.0, 0.0, "none"):
            return "oneDNN is compared without alpha, beta and scales"
        return None if find_spec("torch") else "torch, which brings oneDNN along, is not installed (pip install torch)"

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
