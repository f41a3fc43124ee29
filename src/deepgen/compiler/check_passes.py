"""Whether passes keep what they lower: what is lowered is interpreted after each of them, and results are compared.

What comes first is compared with the meaning of the expression. Inputs are small whole numbers: their sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

import numpy as np

from deepgen.compiler.interpret import interpret
from deepgen.compiler.interpret_memory import Array, Finding
from deepgen.compiler.passes.ir import Lowered, Machine
from deepgen.compiler.passes.lower import passes
from deepgen.compiler.schedule.steps import Schedule
from deepgen.operators.compare import compare
from deepgen.operators.expr.facts import Facts
from deepgen.operators.expr.nodes import Expression, Stage, reads
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.dtypes import narrow

_BARRIERS = "barriers"  # the pass after which threads of a block no longer do each statement together
_MOST_POINTS = 1 << 21
_LARGEST = 4  # number of an input


@dataclass(frozen=True)
class PassCheck:
    """The passes that were checked, and where the last of them is wrong, how."""

    names: tuple[str, ...]
    wrong: str = ""

    @property
    def text(self) -> str:
        if self.wrong:
            return f"{self.names[-1]} changes a result: {self.wrong}"
        return f"all {len(self.names)} passes agree: {', '.join(self.names)}"


def check_passes(
    expression: Expression, lowered: Iterable[tuple[str, Lowered]], machine: Machine, seed: int = 0
) -> PassCheck:
    """Up to the first pass that changes a result, or after which something is done that no right kernel does."""
    inputs, names = whole_inputs(expression, seed), []
    operator = ExpressionOperator(expression)
    answers, first = operator.reference(inputs), dict[str, Array]()
    in_step, serial = True, set[str]()
    for name, one in lowered:
        names.append(name)
        in_step = in_step and name != _BARRIERS
        try:
            results = interpret(one, inputs, in_step=in_step, warp=machine.warp or 1, serial=serial)
        except Finding as finding:
            return PassCheck(tuple(names), str(finding))
        for output in expression.outputs:
            got, of = results[output].reshape(expression.shape_of(output)), dtype(expression.dtype_of(output))
            if output in first and np.array_equal(got, first[output], equal_nan=got.dtype.kind == "f"):
                continue
            compared = compare(got, answers[output], of, operator.tolerance(output))
            if not compared.ok:
                place = ", ".join(map(str, np.unravel_index(compared.first or 0, got.shape)))
                what = f"{output}[{place}], with {compared.wrong} of {compared.size} elements wrong"
                return PassCheck(tuple(names), what)
            first.setdefault(output, got)
    return PassCheck(tuple(names))


def whole_inputs(expression: Expression, seed: int) -> dict[str, Array]:
    numbers = np.random.default_rng(seed)
    inputs = {}
    for spec in expression.tensors:
        drawn, of = numbers.integers(-_LARGEST, _LARGEST + 1, spec.shape), dtype(spec.dtype)
        inputs[spec.name] = narrow(np.abs(drawn) if of.integer and of.whole[0] == 0 else drawn.astype(float), of)
    return inputs


def check_small(expression: Expression, schedule: Schedule, machine: Machine) -> tuple[str, PassCheck]:
    """The same for the smallest sizes on which a schedule is legal, which are returned as text."""
    refusal: BadInput | None = None
    for small in chain(smaller(expression), [expression]):
        if refusal is not None and _points(small) > _MOST_POINTS:
            raise refusal
        try:
            lowered = list(passes(small, schedule, machine))
        except BadInput as error:
            refusal = error
            continue
        names = (*(tensor.name for tensor in small.tensors), *small.outputs)
        shapes = [f"{name} {'x'.join(map(str, small.shape_of(name)))}" for name in names]
        return ", ".join(shapes), check_passes(small, lowered, machine)
    assert refusal is not None
    raise refusal


def _points(expression: Expression) -> int:
    return sum(prod(axis.extent for axis in (*stage.axes, *stage.reduced)) for stage in expression.stages)


def smaller(expression: Expression) -> Iterator[Expression]:
    """The expression with fewer elements, the smallest first: axes of results and of reductions are halved."""
    extents = {(s.name, a.name): a.extent for s in expression.stages for a in (*s.axes, *s.reduced)}
    steps: list[Expression] = []
    for least in (64, 48, 32, 24, 16, 8, 4):
        small = _shrunk(expression, {axis: _halved(extent, least) for axis, extent in extents.items()})
        if small not in (*steps, expression):
            steps.append(small)
    yield from reversed(steps)


def _halved(extent: int, most: int) -> int:
    return extent if extent <= most else _halved(-(-extent // 2), most)


def _shrunk(expression: Expression, extents: Mapping[tuple[str, str], int]) -> Expression:
    """With axes of these extents; stages and tensors that others read have as many elements as these reach."""
    needed: dict[str, Sequence[int]] = {}
    stages: list[Stage] = []
    for stage in reversed(expression.stages):
        own = [extents[stage.name, axis.name] if stage.name in expression.outputs else 1 for axis in stage.axes]
        if stage.name in needed:
            own = [max(pair) for pair in zip(needed[stage.name], own, strict=True)]
        axes = tuple(replace(axis, extent=min(axis.extent, e)) for axis, e in zip(stage.axes, own, strict=True))
        reduced = tuple(replace(axis, extent=extents[stage.name, axis.name]) for axis in stage.reduced)
        small = replace(stage, axes=axes, reduced=reduced)
        stages.insert(0, small)
        ranges = {axis.name: (0, axis.extent - 1) for axis in (*axes, *reduced)}
        for read in reads(stage.value):
            shape = expression.shape_of(read.tensor)
            reached = [min(size, Facts(ranges).bounds(i)[1] + 1) for i, size in zip(read.indices, shape, strict=True)]
            before = needed.get(read.tensor, [1] * len(shape))
            needed[read.tensor] = [max(1, a, b) for a, b in zip(before, reached, strict=True)]
    tensors = tuple(replace(t, shape=tuple(needed.get(t.name, t.shape))) for t in expression.tensors)
    return replace(expression, tensors=tensors, stages=tuple(stages))
