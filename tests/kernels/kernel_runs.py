"""Builds a C kernel and runs it between guard pages, on the sizes it was generated for or on others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from deepgen.operators import Array, Operator
from deepgen.operators.compare import compare
from deepgen.run.call.native import NativeKernel
from deepgen.run.measure.guarded import Guarded
from deepgen.targets import Target
from deepgen.toolchains import build_once
from deepgen.vocabulary import Kernel, WorkspaceArg

_NAN = 0xFF  # bytes that read as NaN, so that unwritten outputs and uninitialised reads show


class Runs:
    """One built kernel."""

    def __init__(self, kernel: Kernel, target: Target, *flags: str) -> None:
        """`flags`: added to the kernel's own; -O1 halves the compile time."""
        kernel = replace(kernel, flags=(*kernel.flags, *flags))
        self.native = NativeKernel(kernel, build_once(kernel, target).binary)

    def wrong(self, operator: Operator, probe: str = "normal") -> str:
        """A description of the errors in its results; empty if there are none."""
        inputs = operator.inputs(seed=7, probe=probe)
        guarded: dict[str, Guarded] = {}
        arrays: dict[str, Array] = {}
        for tensor in operator.tensors():
            memory = guarded[tensor.name] = Guarded(tensor.name, tensor.bytes)
            memory.all.fill(_NAN)
            arrays[tensor.name] = memory.array(tensor.shape, tensor.dtype.numpy())
            if tensor.name in inputs:
                arrays[tensor.name][...] = inputs[tensor.name]
            if tensor.role == "input":
                memory.protect(read_only=True)

        def workspace(arg: WorkspaceArg, size: int) -> Array:
            memory = guarded[f"workspace {arg.name}"] = Guarded(arg.name, max(size, 1), arg.align)
            memory.all.fill(_NAN)
            return memory.all

        bound = self.native.bind(arrays, operator.scalars(), workspace)
        bound.prepare()
        bound.run()
        dtypes, answers = {t.name: t.dtype for t in operator.tensors()}, operator.reference(inputs)
        compared = {
            name: compare(arrays[name].copy(), want, dtypes[name], operator.tolerance(name, probe))
            for name, want in answers.items()
        }
        damage = [words for memory in guarded.values() if (words := memory.damage())]
        for memory in guarded.values():
            memory.close()
        wrong = damage + [f"{name}: {found}" for name, found in compared.items() if not found.ok]
        return f"{operator.describe()} ({probe}): {'; '.join(wrong)}" if wrong else ""


def inside_larger(array: Array) -> Array:
    """The same numbers among others: more of each dimension but the last."""
    larger = np.empty((*(size + 3 for size in array.shape[:-1]), array.shape[-1]), array.dtype)
    larger.view(np.uint8)[...] = _NAN
    inside = larger[tuple(slice(1, 1 + size) for size in array.shape[:-1])]
    inside[...] = array
    return inside
