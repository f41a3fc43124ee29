"""Random small spaces, and the brute force that every answer of the engine is compared to."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import note
from hypothesis import strategies as st

from deepgen.space import (
    Config,
    Expr,
    Space,
    all_of,
    any_of,
    ceil_div,
    divides,
    implies,
    maximum,
    minimum,
    table,
    where,
)
from deepgen.space.evaluate import ABSENT, UNDEFINED, evaluate, holds

NUMBERS = st.lists(st.integers(-2, 9), min_size=1, max_size=4, unique=True)
FLOATS = st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.25, -0.75]), min_size=1, max_size=3, unique=True)
WORDS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True)
BOOLS = st.just([False, True])


def brute_force(space: Space) -> list[Config]:
    """Every valid config, from the definition alone.

    Goes knob by knob: whether a knob must exist is decided once every knob in its condition is set or known to be
    absent.
    """
    place = {knob.name: i for i, knob in enumerate(space.knobs)}
    conditional = [(k.name, k.when) for k in space.knobs if k.when is not None]
    last = {name: max(place[n] for n in (name, *when.knobs())) for name, when in conditional}
    configs: list[Config] = [{}]
    for i, knob in enumerate(space.knobs):
        values: list[Config] = [{knob.name: value} for value in knob.values]
        values += [{}] * (knob.places - len(values))
        asked = [(name, when) for name, when in conditional if last[name] == i]
        longer = (config | value for config in configs for value in values)
        configs = [c for c in longer if all(_sure(when, c) == (name in c) for name, when in asked)]
    return [c for c in configs if all(holds(r.expr, c) for r in space.requirements)]


def _sure(condition: Expr, config: Config) -> bool:
    truth = evaluate(condition, config)
    return truth is not ABSENT and truth is not UNDEFINED and bool(truth)


def frozen(config: Config) -> Any:
    return frozenset(config.items())


@st.composite
def numbers(draw: st.DrawFn, knobs: list[Expr], depth: int = 2) -> Expr:
    """A numeric expression, which may divide by zero or look up missing table keys."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        leaf = draw(st.sampled_from([*knobs, None]))
        return leaf if leaf is not None else knobs[0] * 0 + draw(st.integers(-3, 8))
    a, b = draw(numbers(knobs, depth - 1)), draw(numbers(knobs, depth - 1))
    makers = [
        lambda: a + b,
        lambda: a - b,
        lambda: a * b,
        lambda: a // b,
        lambda: a % b,
        lambda: a / b,
        lambda: ceil_div(a, b),
        lambda: minimum(a, b),
        lambda: maximum(a, b, 1),
        lambda: -a,
        lambda: abs(a),
        lambda: where(a < b, a, b + 1),
        lambda: table(a, {0: 3, 1: 5, 2: 7, 4: 1}),
        lambda: table([a, b], {(1, 1): 3, (2, 1): 5}, 2),
    ]
    return draw(st.sampled_from(makers))()


@st.composite
def conditions(draw: st.DrawFn, knobs: list[Expr], words: list[Expr], depth: int = 2) -> Expr:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        if words and draw(st.integers(0, 3)) == 0:
            word = draw(st.sampled_from(words))
            other = draw(st.sampled_from(words))
            return draw(st.sampled_from([word == "a", word != "b", word.isin(["a", "c"]), word == other]))
        a, b = draw(numbers(knobs)), draw(numbers(knobs))
        return draw(
            st.sampled_from([a <= b, a < b, a == b, a != b, a >= b, a > b, divides(a, b), a.isin([1, 2, 5, 0.5])])
        )
    a, b = draw(conditions(knobs, words, depth - 1)), draw(conditions(knobs, words, depth - 1))
    return draw(st.sampled_from([a & b, a | b, ~a, implies(a, b), all_of(a, b, a), any_of(b, a)]))


@st.composite
def spaces(draw: st.DrawFn, most_requirements: int = 4, prefix: str = "k") -> Space:
    space = Space("random")
    numeric: list[Expr] = []
    words: list[Expr] = []
    for i in range(draw(st.integers(1, 5))):
        domain = draw(st.sampled_from([NUMBERS, NUMBERS, NUMBERS, FLOATS, BOOLS, WORDS]))
        when = None
        if numeric and draw(st.integers(0, 3)) == 0:
            when = draw(conditions(numeric, words, 1))
        knob = space.knob(f"{prefix}{i}", draw(domain), when)
        (words if domain is WORDS else numeric).append(knob)
    if not numeric:
        numeric.append(space.knob(f"{prefix}n", [1, 2, 3]))
    if draw(st.booleans()):
        numeric.append(space.derive("d", draw(numbers(numeric))))
    for i in range(draw(st.integers(0, most_requirements))):
        space.require(draw(conditions(numeric, words)), f"requirement {i}")
    note(json.dumps(space.to_json()))
    return space
