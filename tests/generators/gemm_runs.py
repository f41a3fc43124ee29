"""Builds a GEMM kernel and runs it between guard pages, on the sizes it was made for or on any others."""

from __future__ import annotations

from deepgen.build import build_once
from deepgen.measure.buffers import Guarded
from deepgen.operators import Array, Gemm
from deepgen.operators.compare import compare
from deepgen.runtime.native import NativeKernel
from deepgen.targets import Target
from deepgen.vocabulary import Kernel, WorkspaceArg

_NAN = 0xFF  # bytes that read as NaN: what is never written, or read though nobody wrote it, shows


class Runs:
    """One built kernel."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.native = NativeKernel(kernel, build_once(kernel, target).binary)

    def wrong(self, operator: Gemm, probe: str = "normal") -> str:
        """What is wrong with its result, in words; empty when nothing is."""
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
        want, tolerance = operator.reference(inputs)["C"], operator.tolerance("C", probe)
        found = compare(arrays["C"].copy(), want, operator.dtypes[2], tolerance)
        damage = [words for memory in guarded.values() if (words := memory.damage())]
        for memory in guarded.values():
            memory.close()
        wrong = damage + ([] if found.ok else [f"{found}"])
        return f"{operator.describe()} ({probe}): {'; '.join(wrong)}" if wrong else ""
