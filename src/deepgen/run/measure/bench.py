"""The operator's tensors between guards, filled from a seed, with the right answer beside them.

A kernel that writes outside its tensors is detected, by a fault or by a canary. Each buffer is a mapping of its own.
Its end touches a guard region that nobody may read or write; where the alignment leaves a gap, and before the start
down to the lower guard, lie canary bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from deepgen.operators import Answer, Array, Operator, Recorded, Tensor, Tolerance
from deepgen.operators.compare import Comparison, compare, explain
from deepgen.run.measure import handed
from deepgen.run.measure.channel import GUARD, BufferPlace
from deepgen.run.measure.harness import StepKind, Steps, in_python
from deepgen.vocabulary import DType, Verdict

if TYPE_CHECKING:
    from deepgen.run.measure.host_reference import HostReferences

S = TypeVar("S")
COMPILED, NUMPY = "compiled", "numpy"  # who computed a reference
_MOST_RIGHT = 16  # correct outputs kept per set of inputs: comparing bits takes 1% of the time of a full check
_RIGHT_BYTES = 64 << 20  # and no more than this
_NAN_BYTE = 0xFF  # a NaN in every floating format, and not one that arithmetic gives
_INTEGER_BYTES = (0xAA, 0x55)  # alternating, two runs each: an integer that was right by chance cannot stay so
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


class AlternatingInputs(Generic[S]):
    """Sets of inputs that alternate at the same addresses, as a user's arrays change in place.

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

    def __init__(
        self,
        operator: Operator,
        seed: int,
        probe: str,
        references: Path,
        *,
        tight: bool,
        compiled: HostReferences | None = None,
        same: Bench | None = None,
        do: Callable[[Steps], int] = in_python,
    ) -> None:
        """`compiled`: what computes references and compares; `same`: another bench of the same inputs; `do`: carries
        out steps on memory, as a harness does more quickly."""
        self.operator, self._do = operator, do
        self._seed, self._probe, self._references, self._compiled = seed, probe, references, compiled
        self.reference: str = ""  # who computed it, and why, where it might be another
        self._sets: list[InputSet] = []
        self.alternating: AlternatingInputs[InputSet]
        if same is not None:
            self._sets, self.alternating, self.reference = same._sets, same.alternating, same.reference
        else:
            drawn = handed.arrays(operator, seed, probe, references, self._computed)
            self._sets += [InputSet(inputs, dict(answers())) for inputs, answers in drawn]
            mix = None if isinstance(operator, Recorded) else self._mixture
            self.alternating = AlternatingInputs(self._sets, self._sets[0].inputs, mix)
        self._present = self._sets[0]
        self.buffers: dict[str, Guarded] = {}
        self.arrays: dict[str, Array] = {}
        self._poison: Mapping[str, int] = {}
        self._runs = 0
        self._rewriting: dict[tuple[int, int], Steps] = {}  # by the sets before and after, which live as long
        self._resetting: dict[tuple[int, int], tuple[Steps, Mapping[str, int]]] = {}
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
        held = [array for one in self._sets for array in one.inputs.values()]
        if self.reference == COMPILED:  # otherwise it is a file's
            held += [a for one in self._sets for answer in one.answers.values() for a in (answer.values, answer.scale)]
        self.bytes = sum(array.nbytes for array in held) + sum(t.bytes for t in operator.tensors())

    @property
    def accumulates(self) -> bool:
        """Whether a run reads what the one before it wrote."""
        return any(tensor.role == "inout" for tensor in self._outputs)

    @property
    def unanswered(self) -> list[InputSet]:
        """The sets whose answers another kernel is to give."""
        return [one for one in self._sets if not one.answers]

    def take(self, chosen: InputSet) -> None:
        """Take the outputs as they are for the answers to a set of inputs."""
        for tensor in self._outputs:
            chosen.answers[tensor.name] = self.operator.answer_of(tensor.name, self.arrays[tensor.name].copy())

    def _mixture(self, constant: frozenset[str]) -> InputSet:
        drawn = [one.inputs for one in self._sets]
        inputs, answers = handed.mixed(
            self.operator, self._seed, self._probe, self._references, constant, drawn, self._computed
        )
        return InputSet(inputs, dict(answers()))

    def _computed(self, operator: Operator, inputs: Mapping[str, Array], probe: str) -> dict[str, Answer] | None:
        if self._compiled is None:
            return None
        computed = self._compiled.answers(operator, inputs, probe)
        if isinstance(computed, str):
            self.reference = f"{NUMPY}: {computed}" if computed else NUMPY
            return None
        self.reference = COMPILED
        return computed

    def use(self, chosen: InputSet) -> None:
        """Rewrite in place the inputs that are not of this set. Those that are read and written follow in `reset`."""
        present, self._present = self._present, chosen
        if chosen is present:
            return
        key = (id(present), id(chosen))
        if key not in self._rewriting:
            other = [n for n, array in chosen.inputs.items() if array is not present.inputs[n]]
            self._rewriting[key] = self._writing([n for n in other if self.buffers[n].read_only], chosen)
        self._carry_out(self._rewriting[key])

    def _writing(self, names: Iterable[str], chosen: InputSet, poisoned: Mapping[str, int] | None = None) -> Steps:
        """The steps that write numbers of a set, and then bytes."""
        rows: list[tuple[StepKind, int, int, int]] = []
        kept = []
        for name in names:
            buffer, array = self.buffers[name], np.ascontiguousarray(chosen.inputs[name], self.arrays[name].dtype)
            copy = (StepKind.COPY, buffer.start, array.ctypes.data, array.nbytes)
            locked = buffer.protecting(read_only=False), copy, buffer.protecting(read_only=True)
            rows += locked if buffer.read_only else (copy,)
            kept.append(array)
        for name, byte in (poisoned or {}).items():
            rows.append((StepKind.FILL, self.buffers[name].start, byte, self.buffers[name].bytes))
        return Steps(rows, *kept)

    def _carry_out(self, steps: Steps) -> None:
        if self._do(steps) >= 0:
            raise MemoryError(f"the memory of {self.operator.describe()} cannot be written")

    def reset(self) -> None:
        """Before each run: spoil the outputs, restore what is read and written."""
        self._runs += 1
        key = (id(self._present), self._runs // 2 % 2)
        if key not in self._resetting:
            spoilt = {t.name: poison(t.dtype, self._runs) for t in self._outputs if t.role != "inout"}
            restored = [t.name for t in self._outputs if t.role == "inout"]
            self._resetting[key] = self._writing(restored, self._present, spoilt), spoilt
        steps, self._poison = self._resetting[key]
        self._carry_out(steps)

    def judge(self) -> Right:
        """The outputs, when all are right. Kernels that add up in the same order give the same bits: they are known."""
        correct = self._present.right
        for right in correct:
            if self.same_as(right):
                return right
        worst = 0.0
        for tensor in self._judged:
            tolerance = self.operator.tolerance(tensor.name, self._probe)
            answer, poisoned = self._present.answers[tensor.name], self._poison.get(tensor.name)
            judged = (self._compiled and self._compiled.compare) or compare
            worst = max(worst, error_of(self.arrays[tensor.name], answer, tensor, tolerance, poisoned, judged))
        fresh = Right({t.name: self.buffers[t.name].all.copy() for t in self._judged}, worst)
        correct.append(fresh)
        if len(correct) > min(_MOST_RIGHT, _RIGHT_BYTES // sum(t.bytes for t in self._judged)):
            correct.pop(0)
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


def error_of(
    got: Array,
    want: Answer,
    tensor: Tensor,
    tolerance: Tolerance,
    poison: int | None,
    judged: Callable[[Array, Answer, DType, Tolerance], Comparison] = compare,
) -> float:
    """The largest error of a result as a share of the tolerance. Raises Rejected where that is too large."""
    result = judged(got, want, tensor.dtype, tolerance)
    if not result.ok:
        sentence = explain(tensor.name, got, want.values, tensor.dtype, result, poison)
        raise Rejected(Verdict.WRONG, sentence, result.error if np.isfinite(result.error) else None)
    return result.error


def look_for_damage(buffers: Iterable[Guarded]) -> None:
    for buffer in buffers:
        if damage := buffer.damage():
            raise Rejected(Verdict.WRONG, damage)


CANARY = 0xC5
_HUGE = 2 << 20
_HUGE_FROM = 4 << 20  # numpy asks for huge pages from this size on, and so should what we compare with it
_AROUND = 64 << 10  # bytes on each side that timed runs may read: a page, whatever its size
_NONE, _READ, _WRITE = 0, 1, 2
_PRIVATE, _ANONYMOUS, _NORESERVE = 0x02, 0x20, 0x4000
_MADV_HUGEPAGE = 14
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """One buffer with guards on both sides."""

    def __init__(self, name: str, size: int, align: int = 64) -> None:
        self.name, self.bytes = name, size
        page = mmap.PAGESIZE
        if align > page:
            raise MemoryError(f"{name}: an alignment of {align} bytes is more than a page")
        self._body = max(page, -(-(size + -size % align) // page) * page)
        whole = self._body + 2 * GUARD + _HUGE
        base = _libc.mmap(None, whole, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"no memory for the {size} bytes of {name}: {os.strerror(ctypes.get_errno())}")
        self._mapping = (base, whole)
        # Ending large buffers on a huge page's border gives them the same pages in every worker.
        end = base + GUARD + self._body
        end = -(-end // _HUGE) * _HUGE if self._body >= _HUGE_FROM else end
        self._first, self._end = end - self._body, end
        self.protect(read_only=False)
        if self._body >= _HUGE_FROM:
            _libc.madvise(self._first, self._body, _MADV_HUGEPAGE)
        self.start = (end - size) // align * align
        self.all: Array = _bytes_at(self.start, size)
        past = self.start + size
        self._canaries = (_bytes_at(self._first, self.start - self._first), _bytes_at(past, end - past))
        for canary in self._canaries:
            canary.fill(CANARY)
        self.read_only = self._around = False

    def allow_reads(self, allowed: bool) -> None:
        """Whether what lies just outside may be read, as it may be around a user's arrays; writing there traps.

        Libraries prefetch beyond what they read. Where nobody may read, each prefetch searches the tables of pages in
        vain: numpy takes twice as long for a product of 16x19x35. Pages that were touched are in the tables.
        """
        if allowed == self._around:
            return
        self._around = allowed
        for at in (self._first - _AROUND, self._end):
            if _libc.mprotect(at, _AROUND, _READ if allowed else _NONE) == 0 and allowed:
                for page in range(at, at + _AROUND, mmap.PAGESIZE):
                    ctypes.c_uint8.from_address(page).value  # noqa: B018 (it is read)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.all.view(dtype).reshape(shape)

    def protecting(self, *, read_only: bool) -> tuple[StepKind, int, int, int]:
        """The step that `protect` is."""
        return StepKind.PROTECT, self._first, _READ if read_only else _READ | _WRITE, self._body

    def intact(self) -> list[tuple[StepKind, int, int, int]]:
        """The steps that fail where something was written outside."""
        return [(StepKind.INTACT, c.ctypes.data, CANARY, len(c)) for c in self._canaries]

    def protect(self, *, read_only: bool) -> None:
        """Inputs are made read-only once filled: a kernel that writes to one traps."""
        if _libc.mprotect(self._first, self._body, _READ if read_only else _READ | _WRITE) != 0:
            raise MemoryError(f"no memory for the {self.bytes} bytes of {self.name}: {os.strerror(ctypes.get_errno())}")
        self.read_only = read_only

    def place(self) -> BufferPlace:
        return BufferPlace(self.name, self.start, self.bytes, self.read_only)

    def damage(self) -> str | None:
        """What was written outside, as a sentence; the canaries are restored."""
        before, after = self._canaries
        damage = None
        if len(before) and not (before == CANARY).all():
            distance = len(before) - int(np.flatnonzero(before != CANARY)[-1])
            damage = f"wrote before the start of {self.name} (at byte -{distance})"
        elif len(after) and not (after == CANARY).all():
            distance = int(np.flatnonzero(after != CANARY)[0])
            damage = f"wrote past the end of {self.name} (at byte {self.bytes + distance} of {self.bytes})"
        if damage:
            before.fill(CANARY)
            after.fill(CANARY)
        return damage

    def close(self) -> None:
        """Give the memory back. No array over it may be used any more."""
        _libc.munmap(*self._mapping)


def _bytes_at(address: int, size: int) -> Array:
    raw = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(raw).cast("b"), np.uint8) if size else np.empty(0, np.uint8)
