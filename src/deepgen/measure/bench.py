"""The operator's tensors between guards, filled from a seed, with the right answer beside them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from deepgen.measure import handed
from deepgen.measure.buffers import Guarded
from deepgen.operators import Array, Operator
from deepgen.operators.compare import compare, explain
from deepgen.vocabulary import Verdict

_NAN_BYTE = 0xFF  # a NaN in every floating format, and not one that arithmetic gives
_INTEGER_BYTES = (0xAA, 0x55)  # in turn: an integer that was right by chance cannot be so twice

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Rejected(Exception):
    """A kernel is out, with its verdict."""

    def __init__(self, verdict: Verdict, detail: str, error: float | None = None) -> None:
        super().__init__(detail)
        self.verdict, self.detail, self.error = verdict, detail, error


class Bench:
    """Inputs that kernels may only read, outputs that are poisoned before every run.

    A tight bench aligns tensors to their element only, as a user's arrays may be, so that not one byte lies between
    the end of a tensor and the guard; a roomy one, on which kernels are timed, aligns them to cache lines.
    """

    def __init__(self, operator: Operator, seed: int, probe: str, references: Path, *, tight: bool) -> None:
        self.operator = operator
        self._probe = probe
        inputs, answers = handed.arrays(operator, seed, probe, references)
        self.reference = answers()
        self.buffers: dict[str, Guarded] = {}
        self.arrays: dict[str, Array] = {}
        self._before: dict[str, Array] = {}  # of tensors that are read and written
        self._poison: dict[str, int] = {}
        self._runs = 0
        for tensor in operator.tensors():
            buffer = Guarded(tensor.name, tensor.bytes, tensor.dtype.bytes if tight else 64)
            array = buffer.array(tensor.shape, tensor.dtype.numpy())
            if tensor.role != "output":
                array[...] = inputs[tensor.name]
            if tensor.role == "inout":
                self._before[tensor.name] = np.ascontiguousarray(inputs[tensor.name])
            buffer.protect(read_only=tensor.role == "input")
            self.buffers[tensor.name] = buffer
            self.arrays[tensor.name] = array
        self._outputs = [t for t in operator.tensors() if t.role != "input"]
        self.bytes = sum(t.bytes for t in operator.tensors())

    def reset(self) -> None:
        """Before each run: spoil the outputs, restore what is read and written."""
        self._runs += 1
        for tensor in self._outputs:
            if tensor.role == "inout":
                np.copyto(self.arrays[tensor.name], self._before[tensor.name])
                continue
            byte = _INTEGER_BYTES[self._runs % 2] if tensor.dtype.integer else _NAN_BYTE
            self._poison[tensor.name] = byte
            self.buffers[tensor.name].all.fill(byte)

    def judge(self) -> float:
        """The largest error of the outputs as a share of the tolerance, when all are right."""
        worst = 0.0
        for tensor in self._outputs:
            got, want = self.arrays[tensor.name], self.reference[tensor.name]
            found = compare(got, want, tensor.dtype, self.operator.tolerance(tensor.name, self._probe))
            if not found.ok:
                sentence = explain(tensor.name, got, want.values, tensor.dtype, found, self._poison.get(tensor.name))
                raise Rejected(Verdict.WRONG, sentence, found.error if np.isfinite(found.error) else None)
            worst = max(worst, found.error)
        return worst

    def answer(self) -> dict[str, Array]:
        """A copy of the outputs as they are now."""
        return {t.name: self.buffers[t.name].all.copy() for t in self._outputs}

    def same_as(self, answer: dict[str, Array]) -> bool:
        """Whether the outputs are, bit for bit, an answer that was found right."""
        return all(
            _memcmp(self.buffers[name].start, kept.ctypes.data, kept.nbytes) == 0 for name, kept in answer.items()
        )

    def close(self) -> None:
        self.arrays.clear()
        for buffer in self.buffers.values():
            buffer.close()


def look_for_damage(buffers: Iterable[Guarded]) -> None:
    for buffer in buffers:
        if damage := buffer.damage():
            raise Rejected(Verdict.WRONG, damage)
