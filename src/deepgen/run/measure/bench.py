"""The operator's tensors between guards, filled from a seed, with the right answer beside them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from deepgen.operators import Answer, Array, Operator, Recorded
from deepgen.operators.compare import compare, explain
from deepgen.run.measure import handed
from deepgen.run.measure.buffers import Guarded
from deepgen.vocabulary import DType, Verdict

S = TypeVar("S")

_MOST_RIGHT = 16  # correct outputs kept per set of inputs: comparing bits takes 1% of the time of a full check
_RIGHT_BYTES = 64 << 20  # and no more than this
_NAN_BYTE = 0xFF  # a NaN in every floating format, and not one that arithmetic gives
_INTEGER_BYTES = (0xAA, 0x55)  # in turn, two runs each: an integer that was right by chance cannot stay so

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


STALE = "; it is the result of the inputs before, which had been rewritten in place"
REWRITTEN = "; its inputs had been rewritten in place"


class Rejected(Exception):
    """A kernel is rejected, with its verdict."""

    def __init__(self, verdict: Verdict, detail: str, error: float | None = None) -> None:
        super().__init__(detail)
        self.verdict, self.detail, self.error = verdict, detail, error


@contextmanager
def on_call(number: int, since: Callable[[], str] = str) -> Iterator[None]:
    """Adds the number of the call to a fault that appears on a later call. `since` says what had changed."""
    try:
        yield
    except Rejected as rejected:
        if number <= 1:
            raise
        detail = f"right at first but not on call {number}: {rejected.detail}{since()}"
        raise Rejected(rejected.verdict, detail, rejected.error) from None


def poison(dtype: DType, runs: int) -> int:
    """The byte that outputs are filled with before a run."""
    return _INTEGER_BYTES[runs // 2 % 2] if dtype.integer else _NAN_BYTE


class Turns(Generic[S]):
    """Sets of inputs that take turns at the same addresses, as a user's arrays change in place.

    A kernel that caches a result or packed data, and only compares addresses to see if it is still valid, is wrong.
    What it declares constant stays: such kernels have a second set of their own, a mixture of both.
    """

    def __init__(self, usual: Sequence[S], inputs: Iterable[str], mix: Callable[[frozenset[str]], S] | None) -> None:
        """`mix` makes the second set where some inputs are constant. None: there are no answers to mixtures, and a
        kernel has to prepare again for the usual sets."""
        self._usual, self._inputs, self._mix = tuple(usual), frozenset(inputs), mix
        self._mixed: dict[frozenset[str], S] = {}

    def under(self, constant: frozenset[str]) -> Sequence[S]:
        """Those for a kernel that declares these tensors constant."""
        held = constant & self._inputs
        if len(self._usual) == 1 or not held or self._mix is None:
            return self._usual
        if held == self._inputs:
            return self._usual[:1]
        if held not in self._mixed:
            self._mixed[held] = self._mix(held)
        return self._usual[0], self._mixed[held]


@dataclass(frozen=True)
class Right:
    """Outputs, bit for bit, that were found right, and their largest error as a share of the tolerance."""

    outputs: Mapping[str, Array]
    error: float


@dataclass(frozen=True)
class InputSet:
    """Inputs, the right answers to them, and the latest outputs of kernels that were found right."""

    inputs: Mapping[str, Array]
    answers: dict[str, Answer]
    right: list[Right] = field(default_factory=list)


class Bench:
    """Inputs that kernels may only read, outputs that are poisoned before every run.

    A tight bench aligns tensors to their element only, as a user's arrays may be, so that not one byte lies between
    the end of a tensor and the guard; a roomy one, on which kernels are timed, aligns them to cache lines.
    """

    def __init__(self, operator: Operator, seed: int, probe: str, references: Path, *, tight: bool) -> None:
        self.operator = operator
        self._seed, self._probe, self._references = seed, probe, references
        self._sets = [
            InputSet(inputs, dict(answers())) for inputs, answers in handed.arrays(operator, seed, probe, references)
        ]
        self._present = self._sets[0]
        mix = None if isinstance(operator, Recorded) else self._mixture
        self.turns = Turns(self._sets, self._present.inputs, mix)
        self.buffers: dict[str, Guarded] = {}
        self.arrays: dict[str, Array] = {}
        self._poison: dict[str, int] = {}
        self._runs = 0
        for tensor in operator.tensors():
            buffer = Guarded(tensor.name, tensor.bytes, tensor.dtype.bytes if tight else 64)
            self.buffers[tensor.name] = buffer
            self.arrays[tensor.name] = buffer.array(tensor.shape, tensor.dtype.numpy())
            if tensor.role != "output":
                self.arrays[tensor.name][...] = self._present.inputs[tensor.name]
            buffer.protect(read_only=tensor.role == "input")
        self._outputs = [t for t in operator.tensors() if t.role != "input"]
        signature = operator.signature()
        self._judged = [t for t in self._outputs if signature[t.name].checked]
        held = sum(array.nbytes for one in self._sets for array in one.inputs.values())
        self.bytes = held + sum(t.bytes for t in operator.tensors())

    @property
    def unanswered(self) -> list[InputSet]:
        """The sets whose answers another kernel is to give."""
        return [one for one in self._sets if not one.answers]

    def take(self, chosen: InputSet) -> None:
        """Take the outputs as they are for the answers to a set of inputs."""
        for tensor in self._outputs:
            chosen.answers[tensor.name] = self.operator.answer_of(tensor.name, self.arrays[tensor.name].copy())

    def _mixture(self, constant: frozenset[str]) -> InputSet:
        first, second = self._sets
        _, answers = handed.mixed(self.operator, self._seed, self._probe, self._references, constant)
        return InputSet({**second.inputs, **{name: first.inputs[name] for name in constant}}, dict(answers()))

    def use(self, chosen: InputSet) -> None:
        """Rewrite in place the inputs that are not of this set. Those that are read and written follow in `reset`."""
        for name, array in chosen.inputs.items():
            buffer = self.buffers[name]
            if buffer.read_only and array is not self._present.inputs[name]:
                buffer.protect(read_only=False)
                np.copyto(self.arrays[name], array)
                buffer.protect(read_only=True)
        self._present = chosen

    def reset(self) -> None:
        """Before each run: spoil the outputs, restore what is read and written."""
        self._runs += 1
        for tensor in self._outputs:
            if tensor.role == "inout":
                np.copyto(self.arrays[tensor.name], self._present.inputs[tensor.name])
                continue
            self._poison[tensor.name] = poison(tensor.dtype, self._runs)
            self.buffers[tensor.name].all.fill(self._poison[tensor.name])

    def judge(self) -> Right:
        """The outputs, when all are right. Kernels that add up in the same order give the same bits: they are known."""
        known = self._present.right
        for right in known:
            if self.same_as(right):
                return right
        worst = 0.0
        for tensor in self._judged:
            got, want = self.arrays[tensor.name], self._present.answers[tensor.name]
            found = compare(got, want, tensor.dtype, self.operator.tolerance(tensor.name, self._probe))
            if not found.ok:
                sentence = explain(tensor.name, got, want.values, tensor.dtype, found, self._poison.get(tensor.name))
                raise Rejected(Verdict.WRONG, sentence, found.error if np.isfinite(found.error) else None)
            worst = max(worst, found.error)
        fresh = Right({t.name: self.buffers[t.name].all.copy() for t in self._judged}, worst)
        known.append(fresh)
        if len(known) > min(_MOST_RIGHT, _RIGHT_BYTES // sum(t.bytes for t in self._judged)):
            known.pop(0)
        return fresh

    def same_as(self, right: Right) -> bool:
        """Whether the outputs are, bit for bit, some that were found right."""
        return all(
            _memcmp(self.buffers[name].start, kept.ctypes.data, kept.nbytes) == 0
            for name, kept in right.outputs.items()
        )

    def close(self) -> None:
        self.arrays.clear()
        for buffer in self.buffers.values():
            buffer.close()


def look_for_damage(buffers: Iterable[Guarded]) -> None:
    for buffer in buffers:
        if damage := buffer.damage():
            raise Rejected(Verdict.WRONG, damage)
