"""`run_kernel` with Kernel Tuner's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deepgen.extend import INPUT, BadInput, TensorArgument, load, targets
from deepgen_formats.kernel_tuner.kernel import TARGETS, kernel_of


def run_kernel(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Any,
    arguments: Sequence[Any],
    params: Mapping[str, Any],
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    lang: str | None = None,
    device: int = 0,
    platform: int = 0,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    texmem_args: Mapping[str, Any] | None = None,
    compiler: str | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    block_size_names: Sequence[str] | None = None,
    quiet: bool = False,
    log: Any = None,
) -> list[Any]:
    """Build a kernel with these parameters, run it once in this process, and return its arguments afterwards."""
    kernel = kernel_of(
        kernel_name, kernel_source, problem_size, arguments, {name: [value] for name, value in params.items()},
        grid_div=(grid_div_x, grid_div_y, grid_div_z), lang=lang, smem_args=smem_args, cmem_args=cmem_args,
        texmem_args=texmem_args, compiler_options=compiler_options, defines=defines, block_size_names=block_size_names,
    )  # fmt: skip
    if kernel.description.language != "c++":
        raise BadInput("run_kernel is given a kernel for a GPU", allowed="lang C: tune_kernel runs kernels on GPUs")
    target, operator = targets.resolve(TARGETS["c++"]), kernel.operator()
    config = kernel.family.default(operator, target)
    called = load(kernel.family.emit(operator, target, config), operator, target)
    tensors = [a for a in kernel.description.arguments if isinstance(a, TensorArgument)]
    held = {a.name: a.fill.copy() for a in tensors}
    called(**held)
    changed = {a.name: held[a.name] for a in tensors if a.role != INPUT}
    after = []
    for argument, given in zip(kernel.description.arguments, arguments, strict=False):
        written = changed.get(argument.name)
        after.append(given if written is None else written.view(np.asarray(given).dtype).reshape(np.shape(given)))
    return after
