"""Checks that passes preserve semantics: the loop IR is interpreted after each pass, and results are compared.

The result after the first pass is compared with the expression itself. Inputs are small integers, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from deepgen.vocabulary import BadInput, DeepgenError, dtype
from deepgen.vocabulary.dtypes import narrow

_BARRIERS = "barriers"  # the pass after which the threads of a block no longer execute each statement in lockstep
_ENOUGH_POINTS, _MOST_POINTS = 1 << 16, 1 << 23
_FEW = 7  # loops with few iterations, such as those over the taps of a filter, are left alone
_LARGEST = 4  # absolute value of an input


@dataclass(frozen=True)
class PassCheck:
    """The passes that were checked and, if the last of them is wrong, what is wrong."""

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
    """Checks up to the first pass that changes a result, or whose output does something that no correct kernel does."""
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
    """The same check on smaller sizes, which are returned as text: axes are halved while the schedule remains legal."""
    small, lowered, refusal = expression, list(passes(expression, schedule, machine)), "nothing"
    refused: set[tuple[tuple[str, str], ...]] = set()
    while _points(small) > _ENOUGH_POINTS:
        for axes in _halves(small):
            if axes in refused:
                continue
            less = _shrunk(small, {axis: -(-extent // 2) for axis, extent in _extents(small).items() if axis in axes})
            try:
                small, lowered = less, list(passes(less, schedule, machine))
                break
            except BadInput as error:
                refusal = str(error)
                refused.add(axes)
        else:
            break
    if _points(small) > _MOST_POINTS:
        raise DeepgenError(f"this config is not legal at any small size, so it was not checked: {refusal}")
    names = (*(tensor.name for tensor in small.tensors), *small.outputs)
    shapes = [f"{name} {'x'.join(map(str, small.shape_of(name)))}" for name in names]
    return ", ".join(shapes), check_passes(small, lowered, machine)


def _points(expression: Expression) -> int:
    return sum(prod(axis.extent for axis in (*stage.axes, *stage.reduced)) for stage in expression.stages)


def _extents(expression: Expression) -> dict[tuple[str, str], int]:
    """The extents of axes that determine all others: those of results, and reduced axes."""
    stages = [(s, (*(s.axes if s.name in expression.outputs else ()), *s.reduced)) for s in expression.stages]
    return {(stage.name, axis.name): axis.extent for stage, axes in stages for axis in axes}


def _halves(expression: Expression) -> Iterator[tuple[tuple[str, str], ...]]:
    """Axes to halve, the longest first: all axes of one extent together, as they may have to stay equal, then each
    alone."""
    extents = _extents(expression)
    for extent in sorted({e for e in extents.values() if e > _FEW}, reverse=True):
        alike = tuple(axis for axis, e in extents.items() if e == extent)
        yield alike
        yield from ((axis,) for axis in alike if len(alike) > 1)


def _shrunk(expression: Expression, extents: Mapping[tuple[str, str], int]) -> Expression:
    """The expression with new extents for some axes; tensors and stages that are read shrink to what is accessed."""
    needed: dict[str, list[int]] = {}
    stages: list[Stage] = []
    for stage in reversed(expression.stages):
        shape = needed.get(stage.name, [1] * len(stage.axes))
        if stage.name in expression.outputs:
            own = (extents.get((stage.name, axis.name), axis.extent) for axis in stage.axes)
            shape = [max(pair) for pair in zip(shape, own, strict=True)]
        axes = tuple(replace(axis, extent=extent) for axis, extent in zip(stage.axes, shape, strict=True))
        reduced = (replace(axis, extent=extents.get((stage.name, axis.name), axis.extent)) for axis in stage.reduced)
        stages.insert(0, replace(stage, axes=axes, reduced=tuple(reduced)))
        ranges = {axis.name: (0, axis.extent - 1) for axis in (*axes, *stages[0].reduced)}
        for read in reads(stage.value):
            sizes = expression.shape_of(read.tensor)
            ends = [min(size, Facts(ranges).bounds(i)[1] + 1) for i, size in zip(read.indices, sizes, strict=True)]
            before = needed.get(read.tensor, [1] * len(sizes))
            needed[read.tensor] = [max(pair) for pair in zip(before, ends, strict=True)]
    tensors = tuple(replace(t, shape=tuple(needed.get(t.name, t.shape))) for t in expression.tensors)
    return replace(expression, tensors=tensors, stages=tuple(stages))
