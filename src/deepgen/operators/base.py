"""The interface of operators: signature, work, inputs, reference and tolerance.

numpy is imported where it is used, here and in the built-in operators: commands that only read studies do not wait for
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from deepgen.operators import filling
from deepgen.operators.neighbours import neighbours, variants
from deepgen.operators.signature import (
    INPUT,
    OUTPUT,
    Signature,
    Solved,
    Tensor,
    TensorFacts,
    broadcast_strides,
    dense_strides,
    number,
    stride_scalars,
)
from deepgen.operators.words import Word, words_of
from deepgen.vocabulary.codec import Serializable
from deepgen.vocabulary.dtypes import DType, dtype, widen
from deepgen.vocabulary.json import JsonObject
from deepgen.vocabulary.kernel import Kernel

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
O = TypeVar("O", bound="Operator")  # noqa: E741

REFERENCE_ROWS = 16  # number of rows from which elements are drawn, if an element needs its whole row


@dataclass(frozen=True)
class Work(Serializable):
    """The least work: operations by the dtype of their arithmetic, and bytes across the memory bus."""

    operations: Mapping[str, int]  # dtype of the arithmetic -> operations, a multiply-add counts as two
    read: int
    written: int

    @property
    def flops(self) -> int:
        return sum(self.operations.values())

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class Tolerance:
    """A result x is correct when |x - want| <= absolute * scale + relative * |want| + floor, element by element.

    The scale belongs to the reference: see Answer. The floor allows tiny numbers to be flushed to zero. None:
    the smallest normal number of the format; in f16 and 8-bit formats, whose denormals all hardware supports, the step
    between denormals. An operator that promises denormal results sets a smaller one.
    """

    absolute: float
    relative: float
    floor: float | None = None


def _one() -> Array:
    """A scale of 1 for all elements."""
    import numpy as np

    return np.ones(())


@dataclass(frozen=True)
class Answer:
    """The correct result in float64 or int64, and the magnitude of its terms: an array that broadcasts.

    The rounding errors of a sum grow with its terms, which may be far larger than the sum itself.
    """

    values: Array
    scale: Array = field(default_factory=_one)


class Operator(ABC):
    """What to compute, as a frozen dataclass. It does not depend on hardware and does no I/O.

    An operator of your own defines `name`, `signature`, `sizes`, `work` and `reference`, and overrides other methods
    where the defaults do not fit.
    """

    name: ClassVar[str]
    reference_rows: ClassVar[int | None] = None  # rows to draw elements from, if an element needs its whole row
    weights: ClassVar[tuple[str, ...]] = ()  # tensors that are constant when a trained model is run
    strided_on_processors: ClassVar[bool] = False  # families in C take rows at any distance, and are verified so
    general_last: ClassVar[bool] = False  # families made for it are faster than general ones wherever they serve
    words: ClassVar[tuple[Word, ...]] = ()  # parameters on the command line and in config files; empty: the fields

    @abstractmethod
    def signature(self) -> Signature: ...

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Values for the symbols of the signature's shapes, and any other integers that launch plans name."""

    @abstractmethod
    def work(self) -> Work: ...

    @abstractmethod
    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        """The exact result of each output. Inputs are in their storage dtype: `widen` converts them to numbers."""

    def reference_kernel(self, language: str) -> Kernel | None:
        """The reference as a kernel in that language, where numpy would take too long; None: numpy computes it.

        Used for built-in operators only. Its steps read the operator's tensors and write, for each output NAME,
        `want_NAME` (f64, or i64 for integers) and, where elements have scales of their own, `scale_NAME` (f32; for
        f64, f64). Some elements are checked against `reference_at`. Shapes for which it has the same name share its
        binary. In C each step is a function of a range of its grid, so that threads can share it.
        """
        return None

    def judge(self) -> str | None:
        """Without a reference: a description of the kernel whose results the others are compared with.

        `judge_kernel` gives it. It runs in the worker, on the same inputs.
        """
        return None

    def verdict_text(self, verdict: str) -> str:
        """A verdict in words. A kernel that was only compared with another kernel is not called correct."""
        judge = self.judge()
        return verdict if verdict != "correct" or judge is None else f"agrees with {judge}"

    def judge_kernel(self, target: Any) -> Kernel | None:
        """The kernel that results are compared with; None: there is a reference."""
        return None

    def answer_of(self, output: str, stored: Array) -> Answer:
        """The answer for a kernel's output."""
        of = dtype(self.signature().dtype_of(self.signature()[output]))
        values = widen(stored, of)
        return Answer(values, typical(values))

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        """The reference at some elements of an output, given by their flat indices."""
        import numpy as np

        answer = self.reference(inputs)[output]
        scale = np.broadcast_to(answer.scale, answer.values.shape)
        return Answer(answer.values.reshape(-1)[places], scale.reshape(-1)[places])

    def describe(self) -> str:
        """One short line for people."""
        return " ".join([self.name, self._formats(), *(f"{name}={value}" for name, value in self.sizes().items())])

    def slug(self) -> str:
        """A short name, usable as a folder name."""
        return "-".join([self.name, self._formats(), *(f"{name}{value}" for name, value in self.sizes().items())])

    def _formats(self) -> str:
        return "_".join(dict.fromkeys(t.dtype.name for t in self.tensors()))

    def flops(self) -> int:
        return self._work.flops

    def least_bytes(self) -> int:
        """The bytes that must cross the memory bus at least once."""
        return self._work.bytes

    @cached_property
    def _work(self) -> Work:
        # Cached: limits of time are asked for with every request to a worker, over all shapes of a study.
        return self.work()

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors with their sizes."""
        return self._tensors

    @cached_property
    def _tensors(self) -> tuple[Tensor, ...]:
        # Cached: the model of a family reads them for each of thousands of configs.
        return self.signature().shaped(self.sizes())

    def values(self) -> Mapping[str, int | float]:
        """The run-time scalars of the signature: fields of the same names, unless an operator says otherwise."""
        return {p.name: getattr(self, p.name) for p in self.signature().scalars}

    def scalars(self) -> Mapping[str, int | float]:
        """The numbers that a launch plan's expressions may name: sizes, strides, run-time scalars."""
        out: dict[str, int | float] = {**self.sizes(), **self.values()}
        for tensor in self.tensors():
            out.update(stride_scalars(tensor.name, dense_strides(tensor.shape)))
        return self._with_aliases(out)

    def aliases(self) -> Mapping[str, str]:
        """Other names of strides in `scalars`: each as an expression over sizes and the strides' own names."""
        return {}

    def strided(self, arrays: Mapping[str, TensorFacts]) -> Mapping[str, int | float]:
        """The scalars for arrays with given strides."""
        out = dict(self.scalars())
        for tensor in self.tensors():
            facts = arrays.get(tensor.name)
            if facts is not None and facts.strides is not None:
                out.update(stride_scalars(tensor.name, broadcast_strides(facts.shape, facts.strides, tensor.shape)))
        return self._with_aliases(out)

    def _with_aliases(self, scalars: dict[str, int | float]) -> Mapping[str, int | float]:
        return {**scalars, **{alias: number(meant, scalars) for alias, meant in self.aliases().items()}}

    def bind(self: O, arrays: Mapping[str, TensorFacts], values: Mapping[str, int | float] | None = None) -> O:
        """The operator that fits a call's arrays and run-time scalars; errors name what does not fit."""
        solved = self.solve(arrays)
        return self.resized(solved.sizes, solved.dtypes, values or {})

    def solve(self, arrays: Mapping[str, TensorFacts]) -> Solved:
        """The sizes and formats of a call's arrays. Sizes may be zero, although no operator has such sizes."""
        return self.signature().solve(arrays, self.sizes())

    def resized(self: O, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]) -> O:
        """The same operator with other sizes, formats and scalars: fields of the same names."""
        assert is_dataclass(self), "an operator is a frozen dataclass"
        names = {f.name for f in fields(self)}
        return replace(self, **{k: v for k, v in {**sizes, **dtypes, **values}.items() if k in names})

    def probes(self) -> tuple[str, ...]:
        """The kinds of input that finalists are verified on; "normal" is the first and the one that is timed."""
        return filling.probes(self.signature(), self.tensors())

    def float_probes(self) -> tuple[str, ...]:
        """Probes that show how a kernel handles NaN, infinities and denormals. It need not preserve them, unless
        requested. Empty if the operator defines its own inputs."""
        usual = type(self).inputs is Operator.inputs
        return filling.float_probes(self.signature(), self.tensors()) if usual else ()

    def changeable(self) -> frozenset[str]:
        """Inputs whose elements may be replaced by others of the same tensor. Integers from a user's own code may be
        indices that depend on each other."""
        ours = type(self).inputs.__module__.startswith(f"{__package__}.")
        return frozenset(t.name for t in self.tensors() if t.role == INPUT and (ours or not t.dtype.integer))

    def neighbours(self: O) -> tuple[O, ...]:
        """Other shapes at which a kernel for this one is tested, if it claims to support them."""
        return neighbours(self)

    def variants(self: O) -> tuple[O, ...]:
        """The same shape with other values of the run-time scalars: a kernel must be correct at them too."""
        return variants(self)

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        """New inputs (input and inout tensors), the same for the same seed on every machine.

        Floats are drawn from a standard normal distribution, or uniformly if a range is declared; integers uniformly
        from their range or that of their dtype. `filling.py` describes the other probes.
        """
        sizes, signature = self.sizes(), self.signature()
        tensors = [tensor for tensor in self.tensors() if tensor.role != OUTPUT]
        arrays = {t.name: filling.drawn(t, signature[t.name], sizes, seed, filling.drawn_as(probe)) for t in tensors}
        return filling.special(arrays, signature, tensors, probe)

    def tolerance(self, output: str, probe: str = "normal") -> Tolerance:
        """Allows one rounding of each output, and a few roundings of similar size before it."""
        of = dtype(self.signature().dtype_of(self.signature()[output]))
        return Tolerance(0.0, 0.0) if of.integer else Tolerance(4.0 * of.epsilon, 2.0 * of.epsilon)

    def tolerance_on(self, output: str, probe: str) -> Tolerance:
        """The tolerance on any probe's inputs. For denormal results little more than their magnitude is checked, and
        their answers have other scales (`strictly`)."""
        from deepgen.operators.products import tiny_step

        of = dtype(self.signature().dtype_of(self.signature()[output]))
        if probe != filling.DENORMALS or of.integer:
            return self.tolerance(output, probe)
        usual = self.tolerance(output)
        return Tolerance(usual.absolute, max(usual.relative, 0.5), 2.0 * tiny_step(of, kept=True))

    def judged_by(self) -> Mapping[str, Any]:
        """Functions and values that decide what is correct: if one of them changes, a study of a user's own operator
        starts again."""
        return {name: vars(kind)[name] for name in _JUDGING for kind in [_holder(type(self), name)] if kind is not None}

    def to_json(self) -> JsonObject:
        assert is_dataclass(self), "an operator is a frozen dataclass"
        return {"name": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}

    @classmethod
    def from_json(cls: type[O], data: Mapping[str, Any]) -> O:
        assert is_dataclass(cls), "an operator is a frozen dataclass"
        names = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in data.items() if k in names})

    @classmethod
    def examples(cls: type[O]) -> tuple[O, ...]:
        """Small problems for the conformance suites of plug-in operators and their families."""
        return ()

    @classmethod
    def make(cls: type[O], parameters: Mapping[str, Any]) -> O:
        """The operator described by the words of a command line or a config file."""
        return cls(**parameters)

    def parameters(self) -> Mapping[str, Any]:
        """The words that describe it, as `make` takes them: fields of the same names, unless an operator overrides
        this."""
        return {name: getattr(self, name) for name in words_of(type(self))}


class ReferenceApart(Operator):
    """An operator whose inputs and references are functions of a module of their own, imported when they are needed."""

    @staticmethod
    @abstractmethod
    def reference_module() -> Any:
        """It has `inputs`, `reference`, `reference_at` and `reference_kernel`."""

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        arrays: dict[str, Array] = self.reference_module().inputs(self, seed, probe)
        return arrays

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        answers: dict[str, Answer] = self.reference_module().reference(self, inputs)
        return answers

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        answer: Answer = self.reference_module().reference_at(self, inputs, output, places)
        return answer

    def reference_kernel(self, language: str) -> Kernel | None:
        kernel: Kernel | None = self.reference_module().reference_kernel(self, language)
        return kernel


# What may decide whether a result is correct; an operator that defines only an expression gets the others from it.
_JUDGING = (
    *("signature", "reference", "reference_at", "expression", "answer_of", "tolerance", "tolerance_on"),
    *("inputs", "changeable", "probes", "float_probes", "neighbours", "variants"),
)


def _holder(kind: type, name: str) -> type | None:
    """The class that defines it, unless it is deepgen's own."""
    holder = next((one for one in kind.__mro__ if name in vars(one)), None)
    return None if holder is None or holder.__module__.startswith("deepgen.") else holder


_FAR = 2.0**10  # the most by which a typical magnitude may exceed an element's own in its scale


def typical(values: Array) -> Array:
    """A scale for results of unknown origin: the root mean square of all finite ones, but at most about a thousand
    times each element's own magnitude. So a small result among large ones is not lost in its tolerance."""
    import numpy as np

    if values.dtype.kind in "iu":
        return np.ones(())
    own, finite = np.abs(values), values[np.isfinite(values)]
    usual = np.sqrt(np.mean(finite**2)) if finite.size else 0.0
    scale: Array = np.where(np.isfinite(own) & (own > 0.0), np.minimum(usual, _FAR * own), usual)
    return scale


def strictly(answer: Answer, of: DType) -> Answer:
    """The answer if denormals count: its scale does not allow for flushing them."""
    import numpy as np

    from deepgen.operators.products import tiny_step

    if of.integer:
        return answer
    flushed, kept = tiny_step(of, kept=False), tiny_step(of, kept=True)
    # A few operations may add up several flushed numbers, and later factors may enlarge the error.
    least = flushed * (2.0**36 if flushed > kept else 16.0)
    return Answer(answer.values, np.where(answer.scale < least, 0.0, answer.scale).astype(answer.scale.dtype))


def least_work(operator: Operator, operations: Mapping[str, int]) -> Work:
    """Work that reads every input once and writes every output once."""
    tensors = operator.tensors()
    return Work(
        operations,
        read=sum(t.bytes for t in tensors if t.role != OUTPUT),
        written=sum(t.bytes for t in tensors if t.role != INPUT),
    )
