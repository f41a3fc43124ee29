"""Schedule templates: steps with knobs in place of numbers, and steps that depend on a knob's value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepgen.compiler.schedule.steps import Schedule, Step
from deepgen.operators.expr.index import Index
from deepgen.space import Expr, Value, divides, minimum
from deepgen.space import ceil_div as _ceil_div
from deepgen.space.expr import key


@dataclass(frozen=True)
class Choose:
    """The steps of one of several alternatives, by the value of a knob; no steps for a value that is not listed."""

    knob: str
    ways: tuple[tuple[Value, Template], ...]


Template: TypeAlias = "tuple[Step | Choose, ...]"


def chosen(template: Template, config: Mapping[str, Any]) -> Schedule:
    """The steps that a config selects, still with knobs for numbers."""
    return tuple(_steps(template, config))


def _steps(template: Template, config: Mapping[str, Any]) -> Iterator[Step]:
    for step in template:
        if isinstance(step, Choose):
            yield from _steps(dict(step.ways).get(config[step.knob], ()), config)
        else:
            yield step


Extent: TypeAlias = int | Expr


def times(factors: Iterable[Extent]) -> Extent:
    """The product, with all integers combined."""
    number, rest = 1, []
    for factor in factors:
        if isinstance(factor, int):
            number *= factor
        else:
            rest.append(factor)
    if not rest:
        return number
    product = rest[0]
    for factor in rest[1:]:
        product = product * factor
    return product if number == 1 else product * number


def plus(terms: Iterable[Extent]) -> Extent:
    """The sum: like terms are combined, integers come last."""
    constant = 0
    counted: dict[Any, tuple[Expr, int]] = {}
    for term in terms:
        constant += _collect(term, 1, counted)
    total: Extent | None = None
    for expr, count in counted.values():
        if count:
            part = expr if count == 1 else expr * count
            total = part if total is None else total + part
    if total is None:
        return constant
    if not constant:
        return total
    return total + constant if constant > 0 else total - -constant


def covered(extent: Extent, by: Extent) -> Extent:
    """How many pieces of that size cover the extent."""
    if by == 1 if isinstance(by, int) else False:
        return extent
    if isinstance(extent, int) and isinstance(by, int):
        return -(-extent // by)
    return _ceil_div(extent, by)


def divided(extent: Extent, by: int) -> Expr | bool:
    """Whether it is a multiple of a number."""
    return extent % by == 0 if isinstance(extent, int) else divides(by, extent)


def least(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return minimum(a, b)


def span(index: Index, extents: dict[str, Extent]) -> Extent:
    """How many places an index reaches while iterators run over these extents and others are fixed."""
    return plus([index.span(extents, least)])


def text(number: Extent) -> int | str:
    """A number as it is written in a schedule's step."""
    return number if isinstance(number, int) else str(number)


def _collect(term: Any, count: int, terms: dict[Any, tuple[Expr, int]]) -> int:
    """Adds `count` times the term to `terms`; returns its constant part."""
    if isinstance(term, int):
        return term * count
    if term.op == "const":
        return int(term.data) * count
    if term.op in ("+", "-"):
        sign = 1 if term.op == "+" else -1
        return _collect(term.args[0], count, terms) + _collect(term.args[1], sign * count, terms)
    if term.op == "*":
        for number, other in (term.args, term.args[::-1]):
            if number.op == "const":
                return _collect(other, count * int(number.data), terms)
    _, before = terms.get(key(term), (term, 0))
    terms[key(term)] = (term, before + count)
    return 0
