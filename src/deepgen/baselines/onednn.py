"""oneDNN through torch, whichever library torch itself would choose. Imported in the worker only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from deepgen.baselines.torch_cpu import imported, shared_array
from deepgen.operators import Array, Gemm, Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Missing

_ONEDNN_DTYPES = ("f32", "bf16", "f16")


class OneDnn:
    """x W^T, with bias and activation as one primitive. torch has it with a new result only, which is copied."""

    name = "onednn"
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
        if not isinstance(operator, Gemm):
            raise BadInput(f"oneDNN has no {operator.name} here")
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
