"""An expression as an operator: its signature, reference, tolerance, work and probes are derived from it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from deepgen.operators import filling
from deepgen.operators.base import REFERENCE_ROWS, Answer, Array, Operator, Tolerance, Work
from deepgen.operators.expr.builder import expression as expression_of
from deepgen.operators.expr.contraction import Contraction, plain_contraction
from deepgen.operators.expr.elements import Operand
from deepgen.operators.expr.facts import integer_ranges
from deepgen.operators.expr.nodes import Expression, Stage
from deepgen.operators.expr.serial import expression_digest, from_json, to_json
from deepgen.operators.products import EXACT_SHARE, tiny_floor
from deepgen.operators.signature import INPUT, OUTPUT, Param, Signature
from deepgen.vocabulary.dtypes import dtype, widen
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject
from deepgen.vocabulary.kernel import Kernel


class Expressed(Operator):
    """An operator that is defined by an expression. Its kernels are made for one shape."""

    reference_rows: ClassVar[int | None] = REFERENCE_ROWS

    @abstractmethod
    def expression(self) -> Expression: ...

    def signature(self) -> Signature:
        return _signature(self.expression())

    def work(self) -> Work:
        return _work(self.expression())

    def neighbours(self) -> tuple[Any, ...]:
        return ()

    def probes(self) -> tuple[str, ...]:
        from deepgen.operators.expr import probes

        return probes.probes(self.expression())

    def float_probes(self) -> tuple[str, ...]:
        own = "special" in self.probes()  # these must then be preserved
        return () if own else filling.float_probes(self.signature(), self.tensors())

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        from deepgen.operators.expr import probes

        return probes.inputs(self, self.expression(), seed, probe, super().inputs)

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Answer]:
        from deepgen.operators.expr.interpret import answers

        expression = self.expression()
        return answers(expression, {t.name: widen(inputs[t.name], dtype(t.dtype)) for t in expression.tensors})

    def reference_at(self, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
        from deepgen.operators.expr.interpret_at import answer_at

        return answer_at(self.expression(), inputs, output, places)

    def reference_kernel(self, language: str) -> Kernel | None:
        from deepgen.operators.expr.reference_kernels import reference_kernel

        return reference_kernel(self.expression(), language)

    def tolerance(self, output: str, probe: str = "normal") -> Tolerance:
        """If an output is a sum of products, that of a GEMM. Otherwise the answer's scale is the whole error bound,
        which is propagated through every operation (`rounding.py`)."""
        expression = self.expression()
        of = dtype(expression.dtype_of(output))
        if of.integer:
            return Tolerance(0.0, 0.0)
        product = plain_contraction(expression, output)
        if product is None:
            # Nothing is more exact than f64: the reference may be as far off as a kernel, in the other direction.
            return Tolerance(2.0 if of.name == "f64" else 1.0, 0.5 * of.epsilon)
        if probe == "exact":
            return Tolerance(EXACT_SHARE, 0.0)
        return _of_products(product, output, expression)


@dataclass(frozen=True)
class ExpressionOperator(Expressed):
    """An expression that is given as data."""

    name: ClassVar[str] = "expression"

    definition: Expression

    def __post_init__(self) -> None:
        integer_ranges(self.definition)

    def expression(self) -> Expression:
        return self.definition

    def sizes(self) -> Mapping[str, int]:
        return {}

    def describe(self) -> str:
        shapes = ", ".join(f"{n} {'x'.join(map(str, self.definition.shape_of(n)))}" for n in self.definition.outputs)
        return f"{self.definition.name} {self._formats()} to {shapes} ({expression_digest(self.definition, 8)})"

    def slug(self) -> str:
        shape = "x".join(map(str, self.definition.shape_of(self.definition.outputs[0])))
        return f"{self.definition.name}-{self._formats()}-{shape}-{expression_digest(self.definition, 8)}"

    def to_json(self) -> JsonObject:
        return {"name": self.name, "expression": to_json(self.definition)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExpressionOperator:
        return cls(from_json(data["expression"]))

    @classmethod
    def make(cls, parameters: Mapping[str, Any]) -> ExpressionOperator:
        raise BadInput(
            "an expression has no command-line parameters",
            allowed="use deepgen tune FILE.py:NAME, or dg.tune(...) in Python",
        )

    def parameters(self) -> Mapping[str, Any]:
        raise BadInput(
            f"{self.describe()} has no command-line parameters", allowed="it is written in Python, by dg.compute"
        )


def is_expression(value: Any) -> bool:
    """Whether `as_operator` makes an operator of it: an input tensor alone is not an expression."""
    return isinstance(value, Expression) or (isinstance(value, Operand) and isinstance(value.definition, Stage))


def as_operator(value: Any) -> Any:
    """The operator of an expression, or of the result of dg.compute; anything else is returned unchanged."""
    if isinstance(value, Operand):
        value = expression_of(value)
    return ExpressionOperator(value) if isinstance(value, Expression) else value


@lru_cache(maxsize=256)
def _signature(expression: Expression) -> Signature:
    ranges = integer_ranges(expression)
    params = [Param(t.name, INPUT, t.dtype, t.shape, range=ranges.get(t.name)) for t in expression.tensors]
    return Signature(
        (*params, *(Param(n, OUTPUT, expression.dtype_of(n), expression.shape_of(n)) for n in expression.outputs))
    )


@lru_cache(maxsize=256)
def _work(expression: Expression) -> Work:
    from deepgen.operators.expr.work import work

    return work(expression)


def _of_products(product: Contraction, output: str, expression: Expression) -> Tolerance:
    from deepgen.operators.expr.rounding import sum_share

    left, right = map(dtype, product.formats)
    sums, result = dtype(product.stage.dtype), dtype(expression.dtype_of(output))
    absolute, relative = sum_share(product.products, sums, (left, right))
    floor = tiny_floor(product.products, 1.0, (left, right), sums, result)
    return Tolerance(absolute, 2.0 * result.epsilon + relative, floor)
