"""Declaration of a space: knobs, derived values and requirements; restrictions, unions, and the file format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING, Any

from deepgen.space.definition import (
    FORMAT,
    Knob,
    expr_from_json,
    same_condition,
    space_to_json,
    unnamed,
    value_from_json,
)
from deepgen.space.engine import DEFAULT_MEMORY
from deepgen.space.expr import (
    Expr,
    Operand,
    Requirement,
    Value,
    any_of,
    check_value,
    implies,
    key,
    knob_ref,
    lift,
    points,
    where,
)
from deepgen.space.rows import join_kinds, kind_of_value
from deepgen.vocabulary import BadInput, JsonObject, digest

if TYPE_CHECKING:
    from typing_extensions import Self


class Declared:
    """Knobs and requirements as declared. `Space` answers queries about them."""

    def __init__(self, name: str, memory: int = DEFAULT_MEMORY) -> None:
        """`memory` limits the bytes that compiling may use."""
        self.name, self.memory = name, memory
        self._knobs: dict[str, Knob] = {}
        self._derived: dict[str, Expr] = {}
        self._requirements: list[Requirement] = []
        self._by: str | None = None  # the knob whose values are the alternatives of a union
        self._nested: dict[Value, str] = {}  # that knob of alternatives that are unions themselves

    def __repr__(self) -> str:
        return f"Space({self.name!r}, {len(self._knobs)} knobs, {len(self._requirements)} requirements)"

    def _changed(self) -> None:
        """Called when a knob or a requirement has been added."""

    # Declaring --------------------------------------------------------------------------------------------------------

    def knob(self, name: str, values: Iterable[Value], when: Operand | None = None) -> Expr:
        """A knob with its values in order; with `when`, it exists only where the condition holds."""
        taken = tuple(check_value(v) for v in values)
        _check_text(name, "knob")
        if not name or name in self._knobs or name in self._derived:
            raise BadInput(
                f"space {self.name!r} already has something named {name!r}" if name else "a knob needs a name"
            )
        if not taken:
            raise BadInput(f"knob {name!r} of space {self.name!r} has no values", allowed="at least one")
        if len(set(taken)) < len(taken):
            doubled = next(v for i, v in enumerate(taken) if v in taken[:i])
            raise BadInput(f"knob {name!r} of space {self.name!r} has the value {doubled!r} twice")
        condition = None if when is None else lift(when)
        if condition is not None:
            self._check_names(condition, f"the condition of knob {name!r}")
        self._knobs[name] = Knob(name, taken, condition)
        self._changed()
        return knob_ref(name)

    def permutation(self, name: str, items: Sequence[Value], when: Operand | None = None) -> Expr:
        """A knob whose values are all permutations of `items`, as tuples."""
        return self.knob(name, permutations(items), when)

    def derive(self, name: str, expr: Operand) -> Expr:
        """A named value computed from knobs; use the returned expression in requirements."""
        _check_text(name, "derived value")
        if not name or name in self._knobs or name in self._derived:
            raise BadInput(
                f"space {self.name!r} already has something named {name!r}" if name else "a derived value needs a name"
            )
        inner = lift(expr)
        self._check_names(inner, f"derived value {name!r}")
        self._derived[name] = Expr("named", (inner,), name)
        self._changed()
        return self._derived[name]

    def require(self, expr: Operand, name: str) -> None:
        """Keep only configs for which `expr` holds; `name` describes in words what it requires."""
        self.add(Requirement(name, lift(expr)))

    def add(self, requirement: Requirement) -> None:
        """Add a requirement; allowed at any time."""
        _check_text(requirement.name, "requirement")
        if not requirement.name or any(r.name == requirement.name for r in self._requirements):
            raise BadInput(
                f"space {self.name!r} has two requirements named {requirement.name!r}, or one without a name"
            )
        self._check_names(requirement.expr, f"requirement {requirement.name!r}")
        self._requirements.append(requirement)
        self._changed()

    def _check_names(self, expr: Expr, where: str) -> None:
        unknown = sorted(expr.knobs() - set(self._knobs))
        if unknown:
            raise BadInput(
                f"{where} of space {self.name!r} refers to {', '.join(unknown)}, which is not declared before it",
                allowed="knobs: " + ", ".join(self._knobs),
            )

    # Contents ---------------------------------------------------------------------------------------------------------

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return tuple(self._knobs.values())

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        return tuple(self._requirements)

    @property
    def derivations(self) -> dict[str, Expr]:
        """The derived values by name, as expressions."""
        return dict(self._derived)

    def product_size(self) -> int:
        """The number of combinations of the knobs' values, valid or not."""
        return prod(len(k.values) for k in self.knobs)

    # Parts ------------------------------------------------------------------------------------------------------------

    def restrict(self, values: Mapping[str, Value | Iterable[Value]]) -> Self:
        """The part of the space in which some knobs take only these values."""
        unknown = sorted(set(values) - set(self._knobs))
        if unknown:
            raise BadInput(f"space {self.name!r} has no knob {unknown[0]!r}", allowed=", ".join(self._knobs))
        narrowed = self._copy()
        for name, wanted in values.items():
            listed = [wanted] if isinstance(wanted, (bool, int, float, str)) else list(wanted)
            knob = self._knobs[name]
            if tuple(listed) in knob.values:
                listed = [tuple(listed)]
            foreign = [v for v in listed if v not in knob.values]
            if foreign:
                raise BadInput(f"knob {name!r} has no value {foreign[0]!r}", allowed=", ".join(map(repr, knob.values)))
            kept = tuple(v for v in knob.values if v in listed)
            if not kept:
                raise BadInput(f"knob {name!r} would have no values", allowed=", ".join(map(repr, knob.values)))
            narrowed._knobs[name] = replace(knob, values=kept)
        return narrowed

    def without_derived(self) -> Self:
        """The same configs without names of derived values: such a name may be a knob of another space."""
        plain = type(self)(self.name, self.memory)
        for knob in self.knobs:
            plain.knob(knob.name, knob.values, None if knob.when is None else unnamed(knob.when))
        for requirement in self.requirements:
            plain.require(unnamed(requirement.expr), requirement.name)
        plain._by, plain._nested = self._by, self._nested
        return plain

    def intersect(self, other: Self) -> Self:
        """The configs that are valid in both spaces, which must have the same knobs."""
        if set(self._knobs) != set(other._knobs):
            odd = sorted(set(self._knobs) ^ set(other._knobs))
            raise BadInput(f"spaces {self.name!r} and {other.name!r} differ in knobs: {', '.join(odd)}")
        both = self._copy()
        for knob in self.knobs:
            if not same_condition(knob.when, other._knobs[knob.name].when):
                raise BadInput(f"knob {knob.name!r} exists under different conditions in the two spaces")
            shared = tuple(v for v in knob.values if v in other._knobs[knob.name].values)
            if not shared:
                raise BadInput(f"knob {knob.name!r} has no value in common in the two spaces")
            both._knobs[knob.name] = replace(knob, values=shared)
        for name, expr in other._derived.items():
            both._derived.setdefault(name, expr)
        mine = {r.name: key(r.expr) for r in self._requirements}
        for requirement in other._requirements:
            if mine.get(requirement.name) != key(requirement.expr):
                clash = requirement.name in mine
                both.add(Requirement(f"{requirement.name} ({other.name})", requirement.expr) if clash else requirement)
        return both

    def _with(self, requirements: Sequence[Requirement]) -> Self:
        other = self._copy()
        other._requirements = list(requirements)
        return other

    def _copy(self) -> Self:
        copy = type(self)(self.name, self.memory)
        copy._knobs = dict(self._knobs)
        copy._derived = dict(self._derived)
        copy._requirements = list(self._requirements)
        copy._by, copy._nested = self._by, self._nested
        return copy

    # Points, alternatives and files -----------------------------------------------------------------------------------

    @classmethod
    def from_points(cls, name: str, configs: Iterable[Mapping[str, Value]]) -> Self:
        """A space given as a list of points, such as a recorded space or winners."""
        listed = [{knob: check_value(value) for knob, value in c.items()} for c in configs]
        names = list(dict.fromkeys(n for c in listed for n in c))
        if not names:
            raise BadInput(f"space {name!r} needs at least one point", allowed="at least one config")
        space = cls(name)
        for knob in names:
            values = list(dict.fromkeys(c[knob] for c in listed if knob in c))
            space.knob(knob, _sorted(values))
            space._knobs[knob] = replace(space._knobs[knob], optional=any(knob not in c for c in listed))
        rows = dict.fromkeys(tuple(c.get(n) for n in names) for c in listed)
        space.add(Requirement("is one of the points", points(names, rows)))
        return space

    @classmethod
    def union(cls, name: str, spaces: Mapping[str, Declared], by: str = "sketch", memory: int = DEFAULT_MEMORY) -> Self:
        """A space of alternatives: the knob `by` names the alternative of a config. Each is compiled separately.

        A knob that several spaces have becomes one knob with the values of all; requirements hold in their own space.
        """
        united = cls(name, memory)
        unite(united, spaces, by)
        united._by = by
        united._nested = {label: space._by for label, space in spaces.items() if space._by is not None}
        return united

    def to_json(self) -> JsonObject:
        """The definition and its fingerprint; without a list of points, unless the space was created from points."""
        body = self._definition()
        return {**body, "fingerprint": digest(body)}

    def _definition(self) -> JsonObject:
        body = space_to_json(self.name, self.knobs, self._derived, self._requirements)
        union = {} if self._by is None else {"union": self._by}
        return {**body, **union, **({"unions": {str(k): by for k, by in self._nested.items()}} if self._nested else {})}

    def fingerprint(self) -> str:
        """A hash of the definition: equal for equal definitions."""
        return digest(self._definition())

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A space from its definition. Raises if the fingerprint does not match."""
        if data.get("format") != FORMAT:
            raise BadInput(f"this is not a space file: its format is {data.get('format')!r}", allowed=FORMAT)
        try:
            space = cls(str(data["name"]))
            for item in data["knobs"]:
                when = expr_from_json(item["when"], space._derived) if "when" in item else None
                space.knob(item["name"], [value_from_json(v) for v in item["values"]], when)
                optional = item.get("optional", False) is True
                space._knobs[item["name"]] = replace(space._knobs[item["name"]], optional=optional)
            for name, expr in data["derived"]:
                space.derive(name, expr_from_json(expr, space._derived))
            for name, expr in data["requirements"]:
                space.require(expr_from_json(expr, space._derived), name)
            space._nested = {str(label): str(by) for label, by in dict(data.get("unions", {})).items()}
        except (KeyError, ValueError, TypeError) as error:
            raise BadInput(f"the space file is not complete: {error!r}") from error
        space._by = data.get("union")
        if space._by is not None and not any(k.name == space._by and k.places == len(k.values) for k in space.knobs):
            raise BadInput(f"the union is by {space._by!r}", allowed="the name of a knob without a condition")
        if data.get("fingerprint", space.fingerprint()) != space.fingerprint():
            raise BadInput(f"the file of space {space.name!r} was modified: its fingerprint does not match its content")
        return space


def _check_text(name: object, of: str) -> None:
    if not isinstance(name, str):
        raise BadInput(f"a {of} is called {name!r:.60}", allowed="a word")


def _sorted(values: list[Value]) -> list[Value]:
    numeric = all(isinstance(v, (int, float)) for v in values)
    return sorted(values) if numeric else values


def unite(into: Declared, spaces: Mapping[str, Declared], by: str) -> None:
    """Declare the knob `by`, and everything that the spaces declare, in `into`, which is empty.

    A knob that several of them have becomes one knob with the values of all, so that a model or a user can compare
    configs of different spaces.
    """
    if not spaces:
        raise BadInput(f"union {into.name!r} has no spaces", allowed="at least one")
    sketch = into.knob(by, spaces)
    for name in _in_order([knob for space in spaces.values() for knob in space.knobs]):
        _knob(into, name, spaces, sketch)
    named: dict[str, Expr] = {}
    knobs = {knob.name for knob in into.knobs}
    for name in dict.fromkeys(n for space in spaces.values() for n in space.derivations):
        own = {label: s.derivations[name].args[0] for label, s in spaces.items() if name in s.derivations}
        written = [(label, _renamed(expr, named)) for label, expr in own.items()]
        *others, (_, last) = written
        free = f"{name} (derived)" if name in knobs else name  # of one space, and of a knob of another
        named[name] = into.derive(
            free, reduce(lambda rest, o: where(sketch == o[0], o[1], rest), reversed(others), last)
        )
    for label, space in spaces.items():
        for requirement in space.requirements:
            condition = implies(sketch == label, _renamed(requirement.expr, named))
            into.require(condition, f"{requirement.name} ({label})")


def _in_order(knobs: Sequence[Knob]) -> list[str]:
    """Each name once, in order of appearance, but after the knobs that conditions on it use in any of the spaces."""
    needs: dict[str, set[str]] = {knob.name: set() for knob in knobs}
    for knob in knobs:
        needs[knob.name] |= set() if knob.when is None else unnamed(knob.when).knobs()
    order: list[str] = []
    while left := [name for name in needs if name not in order]:
        ready = [name for name in left if needs[name] <= {*order}]
        if not ready:
            names = " and ".join(left[:2])
            raise BadInput(f"knobs {names} have conditions that depend on each other", allowed="other names")
        order.append(ready[0])
    return order


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
    """The expression, with derived values of its own space replaced by those of the union."""
    if expr.op == "named" and expr.data in named:
        return named[expr.data]
    return Expr(expr.op, tuple(_renamed(a, named) for a in expr.args), expr.data) if expr.args else expr
