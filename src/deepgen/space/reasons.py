"""Explanations: why a config is invalid, why a space is empty, and how much a requirement removes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from deepgen.space.definition import Knob
from deepgen.space.evaluate import ABSENT, UNDEFINED, evaluate, holds
from deepgen.space.expr import Expr, Requirement, Value, walk


@dataclass(frozen=True)
class Violation:
    """A requirement that a config violates, and the values responsible."""

    name: str
    values: dict[str, Value]


@dataclass(frozen=True)
class Removal:
    """How many points a requirement removes: on its own, and of those that all others leave (None: not counted)."""

    name: str
    alone: int | None
    only: int | None


def explain(
    knobs: Sequence[Knob], derived: Mapping[str, Expr], requirements: Sequence[Requirement], config: Mapping[str, Value]
) -> list[Violation]:
    """What is wrong with a config: first its knobs and their values, and if these are correct, the requirements."""
    names = {k.name for k in knobs}
    broken = [Violation(f"there is no knob {n}", {n: v}) for n, v in config.items() if n not in names]
    for knob in knobs:
        broken.extend(_misplaced(knob, config))
    if broken:
        return broken
    return [Violation(r.name, _values_of(r.expr, derived, config)) for r in requirements if not holds(r.expr, config)]


def _misplaced(knob: Knob, config: Mapping[str, Value]) -> list[Violation]:
    value = config.get(knob.name)
    exists = knob.when is None or _sure(evaluate(knob.when, config))
    if value is None:
        return [Violation(f"knob {knob.name} has no value", {})] if exists and not knob.optional else []
    results = []
    if value not in knob.values:
        results.append(
            Violation(f"knob {knob.name} takes only {', '.join(map(repr, knob.values))}", {knob.name: value})
        )
    if not exists:
        results.append(Violation(f"knob {knob.name} exists only when {knob.when}", {knob.name: value}))
    return results


def _sure(truth: object) -> bool:
    return truth is not ABSENT and truth is not UNDEFINED and bool(truth)


def _values_of(expr: Expr, derived: Mapping[str, Expr], config: Mapping[str, Value]) -> dict[str, Value]:
    used = expr.knobs()
    mentioned = {node.data for node in walk(expr) if node.op == "named"}
    values = {name: value for name, value in config.items() if name in used}
    return values | {n: v for n, v in derived_values(derived, config).items() if n in mentioned}


def derived_values(derived: Mapping[str, Expr], config: Mapping[str, Value]) -> dict[str, Value]:
    values = {name: evaluate(expr, config) for name, expr in derived.items()}
    return {name: value for name, value in values.items() if value is not ABSENT and value is not UNDEFINED}


def smallest_conflict(n: int, satisfiable: Callable[[frozenset[int]], bool]) -> list[int]:
    """The smallest unsatisfiable subset of 0..n-1, if the whole set is unsatisfiable.

    Each satisfiable set, grown to a maximal one, has a complement, and every conflict must contain an element of each
    such complement. So the next candidate is the smallest set that intersects all complements found so far, until one
    is a conflict.
    """
    rests: list[frozenset[int]] = []
    while True:
        candidate = _smallest_hitting(rests)
        if not satisfiable(candidate):
            return sorted(candidate)
        grown = candidate
        for item in range(n):
            if item not in grown and satisfiable(grown | {item}):
                grown = grown | {item}
        rests.append(frozenset(range(n)) - grown)


def _smallest_hitting(rests: Sequence[frozenset[int]]) -> frozenset[int]:
    items = sorted(set().union(*rests))
    for size in range(len(items) + 1):
        for chosen in combinations(items, size):
            if all(not rest.isdisjoint(chosen) for rest in rests):
                return frozenset(chosen)
    raise AssertionError("a conflict touches every rest")
