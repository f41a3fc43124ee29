"""The operator that a user's own kernel computes, defined by its arguments, sizes and reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from deepgen.kernels.own import arguments
from deepgen.kernels.own.arguments import Array, TensorArgument
from deepgen.kernels.own.description import Description, Reference
from deepgen.kernels.own.family import NAME, KernelFamily
from deepgen.kernels.own.scales import Scales, tolerance
from deepgen.operators import Answer, Operator, Param, Signature, Tolerance, Word, Work, filling, least_work
from deepgen.operators.base import typical
from deepgen.operators.signature import INPUT, OUTPUT, SCALAR
from deepgen.operators.signature import number as size_number
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, JsonObject, Kernel, dtype
from deepgen.vocabulary.dtypes import widen


@dataclass(frozen=True)
class KernelOperator(Operator):
    """One shape of it. `class_of` creates the class for a description."""

    name: ClassVar[str] = NAME  # the kernel's own name, in the class for one
    described: ClassVar[Description]
    compared_with: ClassVar[Reference] = None
    find_family: ClassVar[Callable[[], KernelFamily]]

    numbers: tuple[tuple[str, int], ...]
    scalar_values: tuple[tuple[str, int | float], ...] = ()  # run-time scalars

    def signature(self) -> Signature:
        tensors = [
            Param(t.name, t.role, t.dtype, t.shape, range=bounds, align=t.align, checked=t.checked)
            for t, bounds in ((t, arguments.declared_range(t)) for t in self.described.tensors)
        ]
        scalars = [Param(s.name, SCALAR, s.ctype, range=s.range) for s in self.described.scalars]
        return Signature((*tensors, *scalars))

    @property
    def family(self) -> KernelFamily:
        """The only family for this operator."""
        return type(self).find_family()

    def sizes(self) -> Mapping[str, int]:
        return dict(self.numbers)

    def values(self) -> Mapping[str, int | float]:
        return dict(self.scalar_values)

    def work(self) -> Work:
        numbers = {**self.sizes(), **self.values()}
        operations = {of: size_number(count, numbers) for of, count in self.described.flops.items()}
        least = least_work(self, operations)
        if self.described.bytes is None:
            return least
        total = size_number(self.described.bytes, numbers)
        written = min(least.written, total)
        return Work(operations, read=total - written, written=written)

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        signature = self.signature()
        formats = {name: dtype(signature.dtype_of(signature[name])) for name in inputs}
        wide = {name: widen(array, formats[name]) for name, array in inputs.items()}
        with np.errstate(all="ignore"):  # some inputs have special numbers
            scales = Scales(self._compared, wide, formats, self._terms) if callable(self.compared_with) else None
            results = self._compared(wide) if scales is None else scales.results
            return {t.name: self._answer(t.name, t.shape, results, scales) for t in self.tensors() if t.role != INPUT}

    @property
    def _terms(self) -> float:
        """The number of terms of an element, from the declared operations."""
        elements = sum(int(np.prod(t.shape, dtype=np.int64)) for t in self.tensors() if t.role != INPUT)
        return self.work().flops / max(1, elements)

    def judge(self) -> str | None:
        if self.compared_with is None:
            return "config 0"
        other = getattr(self.compared_with, "description", None)
        return None if other is None else f"the kernel {other.name}"

    def judge_kernel(self, target: Target) -> Kernel | None:
        """The first config of this kernel, or of the kernel that is given as the reference."""
        if self.judge() is None:
            return None
        other: Any = self.compared_with
        judge = self if other is None else other.operator(**self.parameters())
        family = judge.family
        if (reason := family.refuses(judge, target)) is not None:
            raise BadInput(f"{judge.describe()} cannot be the reference on {target.name}", allowed=reason)
        return family.emit(judge, target, family.default(judge, target))

    def answer_of(self, output: str, stored: Array) -> Answer:
        answer = super().answer_of(output, stored)
        return Answer(answer.values) if output in self.described.tolerance else answer

    def _compared(self, wide: Mapping[str, Array]) -> Mapping[str, Any]:
        """The reference's results, by output."""
        reference, outputs = self.compared_with, [t.name for t in self.described.tensors if _judged(t)]
        result = _called(reference, {**self.sizes(), **self.values(), **wide}) if callable(reference) else reference
        if isinstance(result, Mapping):
            return result
        several = isinstance(result, (tuple, list))
        results = list(result) if several and result is not None else [result]
        if len(results) != len(outputs):
            what = f"the reference of {self.described.name} gave {len(results)} results"
            raise BadInput(what, allowed=f"{len(outputs)}: {', '.join(outputs)}")
        return dict(zip(outputs, results, strict=True))

    def _answer(self, name: str, shape: tuple[int, ...], results: Mapping[str, Any], scales: Scales | None) -> Answer:
        param = self.signature()[name]
        of = dtype(self.signature().dtype_of(param))
        if not param.checked:
            return Answer(np.zeros(shape, np.int64 if of.integer else np.float64))
        if name not in results or results[name] is None:
            raise BadInput(f"the reference of {self.described.name} gave no {name}", allowed="an array for each output")
        values = np.asarray(results[name])
        if values.shape != shape:
            what = f"the reference of {self.described.name} returned {name} with shape {_shape(values.shape)}"
            raise BadInput(what, allowed=f"{_shape(shape)}, the shape of the output")
        if values.dtype != of.numpy() or of.name in ("f16", "f32"):
            values = values.astype(np.int64 if of.integer else np.float64, copy=False)
        else:
            values = widen(values, of)  # expected arrays in the output's own storage
        if of.integer or name in self.described.tolerance:
            return Answer(values)
        return Answer(values, typical(values) if scales is None else scales.of(name, values, of))

    def tolerance(self, output: str, probe: str = "normal") -> Tolerance:
        """The error allowed for each element is its answer's scale, if the reference is a function (`scales.py`)."""
        if output in self.described.tolerance:
            return self.described.tolerance[output]
        of = dtype(self.signature().dtype_of(self.signature()[output]))
        return tolerance(of, carried=callable(self.compared_with) and self.judge() is None, terms=self._terms)

    def probes(self) -> tuple[str, ...]:
        if not self._free:
            return ("normal", *self.described.probes)
        wide = () if self.described.tolerance or not any(self._floats(t) for t in self._free) else (filling.WIDE,)
        return (*super().probes(), *wide, *self.described.probes)

    def float_probes(self) -> tuple[str, ...]:
        floats = {t.name for t in self._free if self._floats(t)}
        return filling.float_probes(self.signature(), [t for t in self.tensors() if t.name in floats])

    def changeable(self) -> frozenset[str]:
        free = {t.name for t in self._free}
        return frozenset(t.name for t in self.tensors() if t.role == INPUT and (t.name in free or not t.dtype.integer))

    @property
    def _free(self) -> list[TensorArgument]:
        """The tensors that may be filled with other numbers."""
        return [t for t in self.described.tensors if t.role != OUTPUT and arguments.free(t)]

    @staticmethod
    def _floats(argument: TensorArgument) -> bool:
        return not dtype(argument.dtype).integer and arguments.declared_range(argument) is None

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        sizes, signature = self.sizes(), self.signature()
        named = self.described.probes.get(probe)
        arrays = {}
        for argument, tensor in zip(self.described.tensors, self.tensors(), strict=True):
            if tensor.role == OUTPUT:
                continue
            filled = replace(argument, fill=named[tensor.name]) if named and tensor.name in named else argument
            kind = "normal" if named is not None else filling.drawn_as(probe)
            param = replace(signature[tensor.name], range=arguments.declared_range(filled))
            arrays[tensor.name] = arguments.filled(filled, param, tensor, sizes, seed, kind)
        floats = {t.name for t in self._free if self._floats(t)}
        return filling.special(arrays, signature, [t for t in self.tensors() if t.name in floats], probe)

    def describe(self) -> str:
        return " ".join([self.described.name, *(f"{name}={value}" for name, value in self.numbers)])

    def slug(self) -> str:
        return "-".join([self.described.name, *(f"{name}{value}" for name, value in self.numbers)])[:80]

    def resized(
        self, sizes: Mapping[str, int], dtypes: Mapping[str, str], values: Mapping[str, int | float]
    ) -> KernelOperator:
        numbers = tuple((name, sizes.get(name, value)) for name, value in self.numbers)
        scalars = tuple((name, values.get(name, value)) for name, value in self.scalar_values)
        return type(self)(numbers, scalars)

    def neighbours(self) -> tuple[KernelOperator, ...]:
        # Given arrays and expected answers have a fixed shape.
        fixed = any(isinstance(t.fill, np.ndarray) for t in self.described.tensors)
        return () if fixed or isinstance(self.compared_with, Mapping) else super().neighbours()

    def judged_by(self) -> Mapping[str, Any]:
        other: Any = self.compared_with
        judge = getattr(other, "description", None)
        reference = other if judge is None else [other.family.recipe, other.operator().judged_by()]
        fills = {t.name: t.fill for t in self.described.tensors}
        return {"reference": reference, "inputs": fills, "probes": self.described.probes}

    def variants(self) -> tuple[KernelOperator, ...]:
        answers = self.compared_with is None or callable(self.compared_with) or self.judge() is not None
        return super().variants() if answers else ()

    def to_json(self) -> JsonObject:
        return {"name": NAME, "kernel": self.described.name, "sizes": self.sizes(), "values": self.values()}  # type: ignore[dict-item]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelOperator:
        if data.get("kernel") != cls.described.name:
            raise BadInput(f"the study is of the kernel {data.get('kernel')!r}", allowed=f"not {cls.described.name!r}")
        return cls.make({**data["sizes"], **data["values"]})

    @classmethod
    def make(cls, words: Mapping[str, Any]) -> KernelOperator:
        numbers = tuple((name, int(words.get(name, value))) for name, value in cls.described.sizes.items())
        scalars = tuple((s.name, words.get(s.name, s.value)) for s in cls.described.scalars)
        return cls(numbers, scalars)

    def parameters(self) -> Mapping[str, Any]:
        return {**self.sizes(), **self.values()}


def class_of(
    described: Description,
    reference: Reference,
    family: Callable[[], KernelFamily],
    module: str,
    attribute: str,
    *,
    baseline: Callable[..., Any] | None = None,
) -> type[KernelOperator]:
    """The class of a description's operators, which is located as `attribute` of `module`."""
    words = [Word(name, f"a size; default: {value}", default=value) for name, value in described.sizes.items()]
    for scalar in described.scalars:
        kind = "number" if scalar.ctype.startswith("f") else "size"
        words.append(Word(scalar.name, f"a number; default: {scalar.value}", kind, scalar.value, least=0))
    body = {
        "name": described.name,
        "words": tuple(words),
        "described": described,
        "compared_with": staticmethod(reference) if callable(reference) else reference,
        "find_family": staticmethod(family),
        "baseline": None if baseline is None else staticmethod(baseline),
        "__module__": module,
        "__qualname__": attribute,
        "__doc__": f"What the kernel {described.name} computes.",
    }
    operators: type[KernelOperator] = type(described.name, (KernelOperator,), body)
    return operators


def _judged(argument: TensorArgument) -> bool:
    return argument.role != INPUT and argument.checked


def _called(function: Any, values: Mapping[str, Any]) -> Any:
    """Calls a function with the values of its parameters' names; one without a signature gets the arrays in order."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        parameters = None
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if parameters is None or any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in parameters):
        return function(*(v for v in values.values() if isinstance(v, np.ndarray)))
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return function(**values)
    wanted = [p for p in parameters if p.kind in plain]
    missing = [p.name for p in wanted if p.name not in values and p.default is inspect.Parameter.empty]
    if missing:
        raise BadInput(f"the reference takes {missing[0]!r}", allowed="arguments and sizes: " + ", ".join(values))
    return function(**{p.name: values[p.name] for p in wanted if p.name in values})


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "of a single number"
