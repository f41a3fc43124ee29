"""One space of several: a knob chooses among them, and what belongs to one exists only where it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from deepgen.space.definition import unnamed
from deepgen.space.expr import Expr, Value, any_of, implies, where
from deepgen.space.kinds import join_kinds, kind_of_value
from deepgen.vocabulary import BadInput

if TYPE_CHECKING:
    from deepgen.space.declared import Declared


def unite(into: Declared, spaces: Mapping[str, Declared], by: str) -> None:
    """Declare the knob `by` and all that the spaces declare in `into`, which is new.

    A knob that several of them have is one knob with the values of all. So configs of different spaces can be compared,
    by a model or by a user.
    """
    if not spaces:
        raise BadInput(f"union {into.name!r} has no spaces", allowed="at least one")
    sketch = into.knob(by, spaces)
    for name in dict.fromkeys(k.name for space in spaces.values() for k in space.knobs):
        _knob(into, name, spaces, sketch)
    named: dict[str, Expr] = {}
    for name in dict.fromkeys(n for space in spaces.values() for n in space.derivations):
        own = {label: s.derivations[name].args[0] for label, s in spaces.items() if name in s.derivations}
        written = [(label, _renamed(expr, named)) for label, expr in own.items()]
        *others, (_, last) = written
        named[name] = into.derive(
            name, reduce(lambda rest, o: where(sketch == o[0], o[1], rest), reversed(others), last)
        )
    for label, space in spaces.items():
        for requirement in space.requirements:
            condition = implies(sketch == label, _renamed(requirement.expr, named))
            into.require(condition, f"{requirement.name} ({label})")


def _knob(into: Declared, name: str, spaces: Mapping[str, Declared], sketch: Expr) -> None:
    own = {label: k for label, space in spaces.items() for k in space.knobs if k.name == name}
    if any(knob.optional for knob in own.values()):
        raise BadInput(f"knob {name!r} comes from a list of points", allowed="spaces of knobs and requirements")
    if len({join_kinds([kind_of_value(v) for v in knob.values]) for knob in own.values()}) > 1:
        kinds = "; ".join(f"{label}: {', '.join(map(repr, knob.values))}" for label, knob in own.items())
        raise BadInput(f"knob {name!r} has values of different kinds ({kinds})", allowed="another name, or one kind")
    values: dict[Value, None] = {v: None for knob in own.values() for v in knob.values}
    if len(own) == len(spaces) and all(knob.when is None for knob in own.values()):
        declared = into.knob(name, values)
    else:
        exists = [
            sketch == label if knob.when is None else (sketch == label) & unnamed(knob.when)
            for label, knob in own.items()
        ]
        declared = into.knob(name, values, any_of(*exists) if len(exists) > 1 else exists[0])
    for label, knob in own.items():
        if len(knob.values) < len(values):
            into.require(implies(sketch == label, declared.isin(knob.values)), f"values of {name} ({label})")


def _renamed(expr: Expr, named: Mapping[str, Expr]) -> Expr:
    """The expression with the derived values of the union in place of those of its own space."""
    if expr.op == "named" and expr.data in named:
        return named[expr.data]
    return Expr(expr.op, tuple(_renamed(a, named) for a in expr.args), expr.data) if expr.args else expr
