"""The examples in Triton, called as torch code calls Triton kernels: with tensors, numbers and a grid.

Run as a program, it calls each in Triton's interpreter on small sizes, and compares with the example's reference:

    TRITON_INTERPRET=1 python benchmarks/triton_calls.py

With `--build TARGET ...` it compiles each for these targets instead, without a GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepgen import targets
from deepgen.kernels.own import OwnKernel
from deepgen.kernels.own.arguments import ScalarArgument, TensorArgument
from deepgen.kernels.own.family import KernelFamily
from deepgen.kernels.own.operator import KernelOperator
from deepgen.kernels.own.triton_family import ALL_OPTIONS
from deepgen.operators.compare import compare, explain
from deepgen.space import parse
from deepgen.toolchains import BuildError, build_once
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.finding import module_at
from harness import ROOT, parser, run_main

EXAMPLES = ROOT / "examples" / "triton"
NAMES = (
    "matmul", "softmax", "layer_norm", "cross_entropy", "attention", "fused_moe", "rope", "dropout", "jacobi",
    "correlation",
)  # fmt: skip
# Sizes that are not multiples of any block size, and small blocks.
SMALL: Mapping[str, Mapping[str, int]] = {
    "matmul": {"M": 70, "N": 100, "K": 72},
    "softmax": {"rows": 5, "columns": 37},
    "layer_norm": {"rows": 3, "columns": 300},
    "cross_entropy": {"rows": 4, "vocabulary": 700},
    "attention": {"heads": 2, "length": 70, "depth": 16},
    "fused_moe": {"blocks": 2, "tokens": 9, "all_experts": 3, "N": 40, "K": 48},
    "rope": {"positions": 3, "heads": 5, "half": 8},
    "dropout": {"n": 1000},
    "jacobi": {"rows": 9, "columns": 70},
    "correlation": {"points": 50, "variables": 20},
}
_TORCH = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i8": "int8", "u8": "uint8",
    "i32": "int32", "i64": "int64",
}  # fmt: skip


def example(name: str) -> tuple[OwnKernel, Any]:
    """An example's kernel and its `@triton.jit` function."""
    module = module_at(EXAMPLES / f"{name}.py")
    own: OwnKernel = module.kernel
    return own, getattr(module, own.description.launches[0].entry)


@dataclass(frozen=True)
class Call:
    """The arguments of one call as torch code passes them, with outputs by name."""

    operator: KernelOperator
    arguments: tuple[Any, ...]
    outputs: Mapping[str, Any]
    inputs: Mapping[str, Any]

    def grid(self, options: Mapping[str, Any]) -> tuple[int, ...]:
        numbers = {**self.operator.scalars(), **options}
        sizes = self.operator.described.launches[0].grid
        return tuple(size if isinstance(size, int) else int(parse(size).evaluate(numbers)) for size in sizes)  # type: ignore[arg-type]

    def constants(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The `tl.constexpr` parameters of a config."""
        numbers = {**self.operator.sizes(), **config}
        defines = {n: parse(str(v)).evaluate(numbers) for n, v in self.operator.described.defines.items()}
        return {**defines, **{name: value for name, value in config.items() if name not in ALL_OPTIONS}}


def call(operator: KernelOperator, device: str, seed: int = 0) -> Call:
    import torch

    numbers, arrays = operator.scalars(), operator.inputs(seed)
    shapes = {tensor.name: tensor.shape for tensor in operator.tensors()}
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    arguments: list[Any] = []
    for argument in operator.described.arguments:
        if isinstance(argument, TensorArgument):
            of = getattr(torch, _TORCH[argument.dtype])
            created = torch.empty(shapes[argument.name], dtype=of, device=device)
            if argument.name in arrays:
                created = torch.from_numpy(np.ascontiguousarray(arrays[argument.name])).view(of).to(device)
                inputs[argument.name] = created
            if argument.role != "input":
                outputs[argument.name] = created
            arguments.append(created)
        elif isinstance(argument, ScalarArgument):
            text = argument.value if isinstance(argument.value, str) else argument.name
            arguments.append(numbers[text] if text in numbers else parse(text).evaluate(numbers))
        else:
            raise ValueError(f"{argument.name}: examples have no workspaces")
    return Call(operator, tuple(arguments), outputs, inputs)


def interpreted(name: str) -> str:
    """What is wrong with an example's result in Triton's interpreter; empty if nothing is."""
    own, function = example(name)
    operator = own.operator(**SMALL[name])
    config = KernelFamily(own.description).default(operator, targets.resolve("cuda:sm_90"))
    created = call(operator, "cpu")
    function[created.grid(config)](*created.arguments, **created.constants(config))
    for output, answer in operator.reference(operator.inputs(0)).items():
        of = dtype(operator.signature().dtype_of(operator.signature()[output]))
        results = created.outputs[output].numpy()
        judged = compare(results, answer, of, operator.tolerance(output))
        if not judged.ok:
            return explain(output, results, answer.values, of, judged, None)
    return ""


def built(name: str, target: str) -> str:
    """Why an example's default config cannot be built; empty if it can."""
    own, _ = example(name)
    operator, chosen = own.operator(), targets.resolve(target)
    try:
        build_once(own.family.emit(operator, chosen, own.family.default(operator, chosen)), chosen)
    except BuildError as error:
        return str(error)
    return ""


def main(argv: list[str] | None = None) -> int:
    words = parser(__doc__)
    words.add_argument("names", nargs="*", choices=[[], *NAMES], help="these examples [all]")
    words.add_argument("--build", nargs="+", default=[], metavar="TARGET", help="compile for these")
    options = words.options(argv)
    if not options.build and os.environ.get("TRITON_INTERPRET") != "1":
        raise BadInput("Triton's interpreter is off", allowed="TRITON_INTERPRET=1, or --build TARGET")
    wrong = 0
    for name in options.names or NAMES:
        for target in options.build or [""]:
            started = time.perf_counter()
            message = built(name, target) if target else interpreted(name)
            wrong += bool(message)
            where = target or "interpreted"
            print(f"{name:14}  {where:12}  {time.perf_counter() - started:6.2f} s  {message or 'right'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    run_main(main)
