"""Triton with its own autotuner: a standard matrix product, the fastest of a dozen configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from deepgen.baselines.products import factors, is_plain, product
from deepgen.baselines.torch_gpu import gpu_torch, shared
from deepgen.operators import Gemm, Operator
from deepgen.targets import Target

_DTYPES = ("f16", "bf16", "f32")


class TritonMatmul:
    """Its configs are compiled and timed before the race, which takes a minute, so only on request by name."""

    name = "triton"
    on_request = True

    def missing(self, operator: Operator, target: Target) -> str | None:
        if target.runner != "gpu":
            return f"Triton's autotuner does not run on {target.name}"
        if not isinstance(operator, Gemm) or operator.batch > 1:
            return "Triton is compared on single products"
        if operator.a not in _DTYPES or not operator.a == operator.b == operator.c:
            return "Triton is compared on matrices of one dtype: " + ", ".join(_DTYPES)
        if not is_plain(operator):
            return "Triton is compared on plain products only"
        lacking = [name for name in ("triton", "torch") if find_spec(name) is None]
        return f"{lacking[0]} is not installed (pip install {lacking[0]})" if lacking else None

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        operator = product(operator, "Triton")
        from deepgen.baselines import triton_kernel

        t = {name: shared(torch, tensor) for name, tensor in tensors.items()}
        a, b = factors(operator, t)
        run = partial(triton_kernel.launch, triton_kernel.tuned(), a, b, t["C"])
        run()
        return run
