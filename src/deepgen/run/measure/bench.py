"""The operator's tensors between guard pages, filled from a seed, with the correct result."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from deepgen.operators import Answer, Array, Operator, Recorded, Tensor, Tolerance
from deepgen.operators.compare import Comparison, compare, explain
from deepgen.run.measure import handed
from deepgen.run.measure.guarded import Guarded, Placement
from deepgen.run.measure.harness import BLOCK, PARTS, StepKind, Steps, in_python
from deepgen.vocabulary import DType, Verdict

if TYPE_CHECKING:
    from deepgen.run.measure.host_reference import HostReferences

S = TypeVar("S")
COMPILED, NUMPY = "compiled", "numpy"  # where a reference was computed
_FEW = 5  # elements of a tensor that differ between runs on nearly equal inputs
_MOST_RIGHT = 16  # correct outputs kept per set of inputs: comparing bits takes 1% of the time of a full check
_RIGHT_BYTES = 64 << 20  # and the most bytes of them
_EXCHANGED = range((1 << 20) + 1, 1 << 30)  # bytes of inputs whose pages are exchanged instead of being rewritten
_IN_PARTS = 1 << 20  # bytes of an output above which it is compared in parts, if that is enough
_NAN_BYTE = 0xFF  # a NaN in every floating-point format, and not one that arithmetic produces
_INTEGER_BYTES = (0xAA, 0x55)  # alternating after two runs each, so that an integer cannot stay correct by chance
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
STALE = "; it is the result for the previous inputs, which were overwritten in place"
REWRITTEN = "; its inputs were overwritten in place"


class Rejected(Exception):
    """A kernel is rejected, with this verdict."""

    def __init__(self, verdict: Verdict, detail: str, error: float | None = None) -> None:
        super().__init__(detail)
        self.verdict, self.detail, self.error = verdict, detail, error


@contextmanager
def on_call(number: int, since: Callable[[], str] = str) -> Iterator[None]:
    """Adds the call number to a fault that appears on a later call. `since` describes what had changed."""
    try:
        yield
    except Rejected as rejected:
        if number <= 1:
            raise
        detail = f"correct at first but not on call {number}: {rejected.detail}{since()}"
        raise Rejected(rejected.verdict, detail, rejected.error) from None


def holds_old_data(runs: int) -> bool:
    """Whether outputs keep the previous run's results, which are for other inputs. Half of the runs do, because users'
    arrays contain old results; the first two runs find poison, which reveals elements that are never written."""
    return (runs - 1) // 2 % 2 == 1


def poison(dtype: DType, runs: int) -> int:
    """The byte that outputs are filled with before a run."""
    return _INTEGER_BYTES[runs // 2 % 2] if dtype.integer else _NAN_BYTE


def few_places(size: int, seed: int) -> tuple[Array, Array]:
    """Some places of a tensor, and other places to copy their new values from. For every second seed it is one place: a
    kernel that looks at half of the elements finds one of several, and one that looks at few may not see a change."""
    rng = np.random.default_rng([seed, size])
    count = 1 if seed % 2 else max(1, min(_FEW, size // 64))
    return rng.choice(size, count, replace=False), rng.integers(0, size, count)


class AlternatingInputs(Generic[S]):
    """Sets of inputs that alternate at the same addresses, as a user's arrays change in place.

    This catches a kernel that caches a result or packed data and validates it only by address. Tensors that it declares
    constant stay the same: such kernels get their own second set, a mixture of both.
    """

    def __init__(self, usual: Sequence[S], inputs: Iterable[str], mix: Callable[[frozenset[str]], S] | None) -> None:
        """`mix` creates the second set if some inputs are constant. None: there are no answers to mixtures, and a
        kernel has to prepare again for the usual sets."""
        self._usual, self._inputs, self._mix = tuple(usual), frozenset(inputs), mix
        self._mixed: dict[frozenset[str], S] = {}

    def under(self, constant: frozenset[str]) -> Sequence[S]:
        """The sets for a kernel that declares these tensors constant."""
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
    """Outputs that were found correct, as bits, and their largest error as a share of the tolerance."""

    outputs: Mapping[str, Array]
    error: float


@dataclass(frozen=True)
class InputSet:
    """Inputs, the correct answers, and the latest outputs that were found correct."""

    inputs: Mapping[str, Array]
    answers: dict[str, Answer]
    right: list[Right] = field(default_factory=list)


class Bench:
    """The tensors: inputs that kernels may only read, and outputs that hold poison or old results before a run."""

    def __init__(
        self,
        operator: Operator,
        seed: int,
        probe: str,
        references: Path,
        *,
        placed: Placement,
        compiled: HostReferences | None = None,
        same: Bench | None = None,
        do: Callable[[Steps], int] = in_python,
    ) -> None:
        """`compiled` computes references and compares; `same` is another bench with the same inputs; `do` carries out
        steps on memory, which a harness does faster."""
        self.operator, self._do = operator, do
        self._seed, self._probe, self._references, self._compiled = seed, probe, references, compiled
        self.reference: str = ""  # where it was computed, and why not elsewhere
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
        self._last: InputSet | None = None  # of the previous run
        self.buffers: dict[str, Guarded] = {}
        self.arrays: dict[str, Array] = {}
        self._poison: Mapping[str, int] = {}
        self._disturbed: list[tuple[str, Array, Array]] = []
        self._runs = 0
        self._contender: object = None
        self._doubtful = False  # whether another contender has used the inputs
        self._rewriting: dict[tuple[int, tuple[str, ...]], Steps] = {}  # by the set, which lives as long as this
        self._resetting: dict[tuple[int, int, int | None], tuple[Steps, Mapping[str, int]]] = {}
        self.part: int | None = None  # of large outputs, which this run is judged by; None: all of them
        signature = operator.signature()
        for number, tensor in enumerate(operator.tensors()):
            promised = signature[tensor.name].align or tensor.dtype.bytes
            buffer = Guarded(tensor.name, tensor.bytes, *placed.border(promised, number))
            self.buffers[tensor.name] = buffer
            self.arrays[tensor.name] = buffer.array(tensor.shape, tensor.dtype.numpy())
            if tensor.role != "output":
                self.arrays[tensor.name][...] = self._present.inputs[tensor.name]
            buffer.protect(read_only=tensor.role == "input")
        self._outputs = [t for t in operator.tensors() if t.role != "input"]
        self._judged = [t for t in self._outputs if signature[t.name].checked]
        self._changeable = operator.changeable()
        self._read_only = [t.name for t in operator.tensors() if t.role == "input"]
        self.input_bytes = sum(self.buffers[name].bytes for name in self._read_only)
        held = [array for one in self._sets for array in one.inputs.values()]
        if self.reference == COMPILED:  # otherwise they are mapped from a file
            held += [a for one in self._sets for answer in one.answers.values() for a in (answer.values, answer.scale)]
        # For each input whose pages are exchanged: its array that lies in those not in use now.
        timed = placed.timed and len(self._sets) > 1
        large = [n for n in self._read_only if timed and self.buffers[n].bytes in _EXCHANGED]
        for name in large:
            self.buffers[name].make_exchangeable()
        self._aside: dict[str, Array | None] = dict.fromkeys(large)
        self.bytes = sum(array.nbytes for array in held) + sum(t.bytes for t in operator.tensors())
        self.bytes += sum(self.buffers[name].bytes for name in large)

    @property
    def accumulates(self) -> bool:
        """Whether a run reads what the previous one wrote."""
        return any(tensor.role == "inout" for tensor in self._outputs)

    @property
    def unanswered(self) -> list[InputSet]:
        """The sets whose answers come from another kernel."""
        return [one for one in self._sets if not one.answers]

    def take(self, chosen: InputSet) -> None:
        """Use the current outputs as the answers to a set of inputs."""
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
        """Write the inputs that differ in this set, in place. Tensors that are read and written follow in `reset`."""
        present, self._present = self._present, chosen
        if chosen is present and not self._doubtful:
            return
        other = [n for n in self._read_only if self._doubtful or chosen.inputs[n] is not present.inputs[n]]
        key = id(chosen), tuple(name for name in other if not self._exchange(name, present, chosen))
        if key not in self._rewriting:
            self._rewriting[key] = self._writing(key[1], chosen)
        self._carry_out(self._rewriting[key])
        self._doubtful = False

    def _exchange(self, name: str, present: InputSet, chosen: InputSet) -> bool:
        """Whether an input of another set appears by exchanging pages; those that another contender may have changed do
        not count."""
        if name not in self._aside:
            return False
        there, self._aside[name] = self._aside[name], None if self._doubtful else present.inputs[name]
        if not self._doubtful and not self.buffers[name].exchange():
            del self._aside[name]
            return False
        return not self._doubtful and there is chosen.inputs[name]

    def look_at_inputs(self) -> None:
        """Check that inputs are unchanged: a kernel may write despite the protection, and its rivals read them next."""
        for name in self._read_only:
            kept, buffer = np.ascontiguousarray(self._present.inputs[name], self.arrays[name].dtype), self.buffers[name]
            if _memcmp(buffer.start, kept.ctypes.data, kept.nbytes):
                place = int(np.flatnonzero(buffer.all != kept.reshape(-1).view(np.uint8))[0])
                self._carry_out(self._writing(self._read_only, self._present))
                raise Rejected(Verdict.WRONG, f"wrote to its input {name} (at byte {place})")

    def _writing(self, names: Iterable[str], chosen: InputSet, poisoned: Mapping[str, int] | None = None) -> Steps:
        """Steps that copy a set's inputs, and then fill outputs, or the part that is judged, with poison."""
        rows: list[tuple[StepKind, int, int, int]] = []
        kept = []
        for name in names:
            buffer, array = self.buffers[name], np.ascontiguousarray(chosen.inputs[name], self.arrays[name].dtype)
            copy = (StepKind.COPY, buffer.start, array.ctypes.data, array.nbytes)
            locked = buffer.protecting(read_only=False), copy, buffer.protecting(read_only=True)
            rows += locked if buffer.read_only else (copy,)
            kept.append(array)
        for name, byte in (poisoned or {}).items():
            kind, skipped = self._judged_part(name, StepKind.FILL, StepKind.FILL_PART)
            rows.append((kind, self.buffers[name].start + skipped, byte, self.buffers[name].bytes - skipped))
        return Steps(rows, *kept)

    def _judged_part(self, name: str, whole: StepKind, part: StepKind) -> tuple[StepKind, int]:
        """The kind of a step on what this run is judged by, and its first byte."""
        if self.part is None or self.buffers[name].bytes <= _IN_PARTS:
            return whole, 0
        return part, self.part * BLOCK

    def _carry_out(self, steps: Steps) -> None:
        if self._do(steps) >= 0:
            raise MemoryError(f"the memory of {self.operator.describe()} cannot be written")

    def begin(self) -> None:
        """Prepare for another contender."""
        self._runs = 0

    def taken_by(self, contender: object) -> None:
        """Register the contender, so that inputs another one may have changed are rewritten before it uses them."""
        self._doubtful = self._doubtful or (self._contender is not contender and self._contender is not None)
        self._contender = contender

    def reset(self, *, partly: bool = False) -> None:
        """Before each run: poison the outputs or keep old results in them; restore what is read and written.

        `partly`: this run of many is judged by a part of large outputs, the next one by another. All of it would take
        longer than most kernels.
        """
        self._runs += 1
        self.part = self._runs % PARTS if partly else None
        old = holds_old_data(self._runs) and self._last is not None and self._last is not self._present
        self._last = self._present
        key = (id(self._present), 2 if old else self._runs // 2 % 2, self.part)
        if key not in self._resetting:
            spoilt = {t.name: poison(t.dtype, self._runs) for t in self._outputs if t.role != "inout" and not old}
            restored = [t.name for t in self._outputs if t.role == "inout"]
            self._resetting[key] = self._writing(restored, self._present, spoilt), spoilt
        steps, self._poison = self._resetting[key]
        self._carry_out(steps)

    def disturb(self, constant: frozenset[str], seed: int) -> bool:
        """Change a few elements of the inputs in place, until `settle`. Returns whether any could be changed.

        A kernel that compares only some elements takes such inputs for unchanged. Integers that may be interdependent
        indices stay.
        """
        self._disturbed = []
        for tensor in self.operator.tensors():
            if tensor.name in self._changeable - constant and tensor.bytes:
                flat = self.arrays[tensor.name].reshape(-1)
                places, other = few_places(flat.size, seed)
                self._disturbed.append((tensor.name, places, flat[places].copy()))
                self._poke(tensor.name, places, flat[other].copy())
        return bool(self._disturbed)

    def settle(self) -> None:
        """Restore what `disturb` changed."""
        for name, places, values in self._disturbed:
            self._poke(name, places, values)
        self._disturbed = []

    def _poke(self, name: str, places: Array, values: Array) -> None:
        self.buffers[name].protect(read_only=False)
        self.arrays[name].reshape(-1)[places] = values
        self.buffers[name].protect(read_only=True)

    def judge(self) -> Right:
        """The outputs, if all are correct. Kernels that sum in the same order give the same, known bits."""
        correct = self._present.right
        for right in correct:
            if self.same_as(right):
                return right
        worst = 0.0
        for tensor in self._judged:
            tolerance = self.operator.tolerance_on(tensor.name, self._probe)
            answer, poisoned = self._present.answers[tensor.name], self._poison.get(tensor.name)
            judged = (self._compiled and self._compiled.compare) or compare
            worst = max(worst, error_of(self.arrays[tensor.name], answer, tensor, tolerance, poisoned, judged))
        fresh = self.outputs(worst)
        correct.append(fresh)
        if len(correct) > min(_MOST_RIGHT, _RIGHT_BYTES // sum(t.bytes for t in self._judged)):
            correct.pop(0)
        return fresh

    def outputs(self, error: float) -> Right:
        return Right({t.name: self.buffers[t.name].all.copy() for t in self._judged}, error)

    def flaw(self, chosen: InputSet, arrays: Mapping[str, Array]) -> str | None:
        """What is wrong with results in other arrays, for the inputs of a set; None if they are correct."""
        for right in chosen.right:
            kept = right.outputs.items()
            if all(_memcmp(arrays[name].ctypes.data, bits.ctypes.data, bits.nbytes) == 0 for name, bits in kept):
                return None
        for tensor in self._judged:
            tolerance = self.operator.tolerance(tensor.name, self._probe)
            try:
                error_of(arrays[tensor.name], chosen.answers[tensor.name], tensor, tolerance, None)
            except Rejected as rejected:
                return rejected.detail
        return None

    def same_as(self, right: Right, *, partly: bool = False) -> bool:
        """Whether the outputs are equal, bit for bit, to some that were found correct. `partly`: as far as this run is
        judged."""
        rows = []
        for name, kept in right.outputs.items():
            kind, skipped = self._judged_part(name, StepKind.SAME, StepKind.SAME_PART) if partly else (StepKind.SAME, 0)
            rows.append((kind, self.buffers[name].start + skipped, kept.ctypes.data + skipped, kept.nbytes - skipped))
        return self._do(Steps(rows)) < 0

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
    """The largest error of a result as a share of the tolerance. Raises Rejected if it exceeds it."""
    result = judged(got, want, tensor.dtype, tolerance)
    if not result.ok:
        sentence = explain(tensor.name, got, want.values, tensor.dtype, result, poison)
        raise Rejected(Verdict.WRONG, sentence, result.error if np.isfinite(result.error) else None)
    return result.error


def look_for_damage(buffers: Iterable[Guarded]) -> None:
    for buffer in buffers:
        if damage := buffer.damage():
            raise Rejected(Verdict.WRONG, damage)
