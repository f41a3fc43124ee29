"""Space: knobs, derived values and requirements, and every question that can be asked of the valid configs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepgen.space.definition import (
    FORMAT,
    Knob,
    expr_from_json,
    expr_to_json,
    knob_to_json,
    same_condition,
    value_from_json,
)
from deepgen.space.evaluate import ABSENT, UNDEFINED, evaluate, holds
from deepgen.space.expr import Config, Expr, Operand, Requirement, Value, check_value, key, knob_ref, lift, points
from deepgen.space.listed import Listed
from deepgen.vocabulary import BadInput, JsonObject, digest

Kind = Literal["adjacent", "any", "repair"]
_CHUNK = 4096


@dataclass(frozen=True)
class Broken:
    """A requirement that a config breaks, and the values that broke it."""

    name: str
    values: dict[str, Value]


@dataclass(frozen=True)
class Removal:
    """How many points of the product a requirement removes: on its own, and that no other requirement removes."""

    name: str
    alone: int
    only: int | None


class Space:
    """Declare knobs and requirements, then count, sample, rank, explain. Reading is safe from several threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._knobs: dict[str, Knob] = {}
        self._derived: dict[str, Expr] = {}
        self._requirements: list[Requirement] = []
        self._lock = Lock()
        self._compiled: Listed | None = None

    # Declaring ------------------------------------------------------------------------------------------------------

    def knob(self, name: str, values: Iterable[Value], when: Operand | None = None) -> Expr:
        """A knob with its values in order; with `when`, one that exists only where the condition holds."""
        taken = tuple(check_value(v) for v in values)
        if not name or name in self._knobs or name in self._derived:
            raise BadInput(f"space {self.name!r} has the name {name!r} already" if name else "a knob needs a name")
        if not taken:
            raise BadInput(f"knob {name!r} of space {self.name!r} has no values", allowed="at least one")
        doubled = [v for i, v in enumerate(taken) if v in taken[:i]]
        if doubled:
            raise BadInput(f"knob {name!r} of space {self.name!r} has the value {doubled[0]!r} twice")
        condition = None if when is None else lift(when)
        if condition is not None:
            self._check_names(condition, f"the condition of knob {name!r}")
        self._knobs[name] = Knob(name, taken, condition)
        self._compiled = None
        return knob_ref(name)

    def permutation(self, name: str, items: Sequence[Value], when: Operand | None = None) -> Expr:
        """A knob whose values are all orders of `items`, as tuples."""
        return self.knob(name, permutations(items), when)

    def derive(self, name: str, expr: Operand) -> Expr:
        """A named value computed from knobs; use what it returns in requirements."""
        if not name or name in self._knobs or name in self._derived:
            raise BadInput(
                f"space {self.name!r} has the name {name!r} already" if name else "a derived value needs a name"
            )
        inner = lift(expr)
        self._check_names(inner, f"derived value {name!r}")
        self._derived[name] = Expr("named", (inner,), name)
        return self._derived[name]

    def require(self, expr: Operand, name: str) -> None:
        """Keep only configs for which `expr` holds; `name` says in words what it demands."""
        self.add(Requirement(name, lift(expr)))

    def add(self, requirement: Requirement) -> None:
        """Add a requirement, at any time."""
        if not requirement.name or any(r.name == requirement.name for r in self._requirements):
            raise BadInput(
                f"space {self.name!r} needs a name of its own for each requirement, not {requirement.name!r}"
            )
        self._check_names(requirement.expr, f"requirement {requirement.name!r}")
        self._requirements.append(requirement)
        self._compiled = None

    def _check_names(self, expr: Expr, where: str) -> None:
        unknown = sorted(expr.knobs() - set(self._knobs))
        if unknown:
            raise BadInput(
                f"{where} of space {self.name!r} speaks of {', '.join(unknown)}, which is no knob declared before",
                allowed="knobs: " + ", ".join(self._knobs),
            )

    # What it is made of -----------------------------------------------------------------------------------------------

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
        """How many combinations the knobs' values have, valid or not."""
        return prod(len(k.values) for k in self.knobs)

    def __repr__(self) -> str:
        return f"Space({self.name!r}, {len(self._knobs)} knobs, {len(self._requirements)} requirements)"

    # Asking -----------------------------------------------------------------------------------------------------------

    def _engine(self) -> Listed:
        with self._lock:
            if self._compiled is None:
                self._compiled = Listed(self.knobs, self.requirements)
            return self._compiled

    @property
    def uniform(self) -> bool:
        """Whether samples are uniform over the valid configs."""
        return self._engine().uniform

    def count(self) -> int:
        """How many valid configs there are, exactly."""
        return self._engine().count()

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True

    def at(self, rank: int) -> Config:
        """The config of a rank, 0 <= rank < count()."""
        engine = self._engine()
        if not 0 <= rank < engine.count():
            raise BadInput(f"rank {rank} is outside space {self.name!r}", allowed=f"0 to {engine.count() - 1}")
        return self._config(engine.row(rank))

    def rank(self, config: Mapping[str, Value]) -> int:
        """The rank of a valid config."""
        row = self._row(config)
        rank = None if row is None else self._engine().rank(row)
        if rank is None:
            reasons = "; ".join(b.name for b in self.explain(config))
            raise BadInput(f"this config is not in space {self.name!r}: {reasons}")
        return rank

    def contains(self, config: Mapping[str, Value]) -> bool:
        row = self._row(config)
        return row is not None and self._engine().rank(row) is not None

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and self.contains(config)

    def sample_ranks(self, n: int, seed: int, distinct: bool = False) -> list[int]:
        """`n` ranks, uniform over the valid configs: independent draws, or all different (at most count())."""
        engine = self._engine()
        if engine.count() == 0 and n:
            raise BadInput(f"space {self.name!r} is empty: {', '.join(self.why_empty())}")
        rng = np.random.default_rng(seed)
        if not distinct:
            return engine.draw(n, rng)
        if 2 * n >= engine.count():
            return rng.permutation(engine.count())[:n].tolist()  # type: ignore[no-any-return]
        seen: dict[int, None] = {}
        while len(seen) < n:
            seen.update(dict.fromkeys(engine.draw(n - len(seen), rng)))
        return list(seen)

    def sample(self, n: int, seed: int, distinct: bool = False) -> list[Config]:
        """`n` configs, uniform over the valid ones; the same for the same seed. With replacement unless `distinct`."""
        return self._configs(self._engine().rows(self.sample_ranks(n, seed, distinct)))

    def __iter__(self) -> Iterator[Config]:
        return self.iterate()

    def iterate(self, start: int = 0) -> Iterator[Config]:
        """Valid configs in rank order, from any rank."""
        engine = self._engine()
        for first in range(start, engine.count(), _CHUNK):
            yield from self._configs(engine.rows(range(first, min(first + _CHUNK, engine.count()))))

    def neighbors(self, config: Mapping[str, Value], kind: Kind = "any") -> list[Config]:
        """Valid configs next to this one: one knob to an adjacent value, or to any value."""
        found = []
        for knob in self.knobs:
            if knob.name not in config:
                continue
            here = knob.values.index(config[knob.name])
            for place, value in enumerate(knob.values):
                if place != here and (kind != "adjacent" or abs(place - here) == 1):
                    other = {**config, knob.name: value}
                    if self.contains(other):
                        found.append(other)
        return found

    def restrict(self, values: Mapping[str, Value | Iterable[Value]]) -> Space:
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

    def intersect(self, other: Space) -> Space:
        """The configs that are valid in both spaces, which have the same knobs."""
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

    def _copy(self) -> Space:
        copy = Space(self.name)
        copy._knobs = dict(self._knobs)
        copy._derived = dict(self._derived)
        copy._requirements = list(self._requirements)
        return copy

    # Explaining -------------------------------------------------------------------------------------------------------

    def explain(self, config: Mapping[str, Value]) -> list[Broken]:
        """Every requirement that the config breaks, with the values that broke it; empty for a valid config."""
        broken = [Broken(f"there is no knob {n}", {n: v}) for n, v in config.items() if n not in self._knobs]
        for knob in self.knobs:
            value = config.get(knob.name)
            if value is not None and value not in knob.values:
                shown = ", ".join(map(repr, knob.values))
                broken.append(Broken(f"knob {knob.name} takes only {shown}", {knob.name: value}))
            exists = _exists(knob, config)
            if value is None and exists and not knob.optional:
                broken.append(Broken(f"knob {knob.name} has no value", {}))
            if value is not None and not exists:
                broken.append(Broken(f"knob {knob.name} exists only when {knob.when}", {knob.name: value}))
        if broken:
            return broken
        return [
            Broken(r.name, self._values_of(r.expr, config)) for r in self._requirements if not holds(r.expr, config)
        ]

    def _values_of(self, expr: Expr, config: Mapping[str, Value]) -> dict[str, Value]:
        used = expr.knobs()
        values = {name: value for name, value in config.items() if name in used}
        for name, derived in self._derived.items():
            if _mentions(expr, name):
                result = evaluate(derived, config)
                if result is not ABSENT and result is not UNDEFINED:
                    values[name] = result
        return values

    def derived(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """The derived values of a config; one that rests on an absent knob is left out."""
        values = {name: evaluate(expr, config) for name, expr in self._derived.items()}
        return {name: value for name, value in values.items() if value is not ABSENT and value is not UNDEFINED}

    def why_empty(self) -> list[str]:
        """The names of a smallest set of requirements that together leave nothing; none if the space is not empty."""
        return [r.name for r in self._requirements] if self.count() == 0 else []

    def removed_by(self) -> list[Removal]:
        """For each requirement, how many points it removes."""
        total = self._with([]).count()
        count = self.count()
        return [
            Removal(
                r.name,
                total - self._with([r]).count(),
                self._with([o for o in self._requirements if o is not r]).count() - count,
            )
            for r in self._requirements
        ]

    def _with(self, requirements: Sequence[Requirement]) -> Space:
        other = self._copy()
        other._requirements = list(requirements)
        return other

    # Columns, points and files ----------------------------------------------------------------------------------------

    def columns(self, which: Sequence[Mapping[str, Value]] | Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """Configs or ranks as one array a knob, for models: numbers as numbers, None where a knob is absent."""
        configs: Sequence[Mapping[str, Value]]
        if len(which) and not isinstance(which[0], Mapping):
            configs = self._configs(self._engine().rows(which))  # type: ignore[arg-type]
        else:
            configs = which  # type: ignore[assignment]
        columns = {}
        for knob in self.knobs:
            listed = [c.get(knob.name) for c in configs]
            plain = knob.when is None and not any(isinstance(v, (str, tuple)) for v in knob.values)
            column = np.array(listed) if plain else np.empty(len(listed), dtype=object)
            if not plain:
                column[:] = listed
            columns[knob.name] = column
        return columns

    @staticmethod
    def from_points(name: str, configs: Iterable[Mapping[str, Value]]) -> Space:
        """A space that is a list of points: a recorded space, or winners."""
        listed = [dict(c) for c in configs]
        names = list(dict.fromkeys(n for c in listed for n in c))
        if not names:
            raise BadInput(f"space {name!r} cannot be made of no points", allowed="at least one config")
        space = Space(name)
        for knob in names:
            found = list(dict.fromkeys(c[knob] for c in listed if knob in c))
            space.knob(knob, _sorted(found))
            space._knobs[knob] = replace(space._knobs[knob], optional=any(knob not in c for c in listed))
        rows = dict.fromkeys(tuple(c.get(n) for n in names) for c in listed)
        space.add(Requirement("is one of the points", points(names, rows)))
        return space

    def to_json(self) -> JsonObject:
        """The definition, and its fingerprint; never a list of points unless it was made of points."""
        body = self._definition()
        return {**body, "fingerprint": digest(body)}

    def _definition(self) -> JsonObject:
        return {
            "format": FORMAT,
            "name": self.name,
            "knobs": [knob_to_json(k) for k in self.knobs],
            "derived": [[name, expr_to_json(expr.args[0])] for name, expr in self._derived.items()],
            "requirements": [[r.name, expr_to_json(r.expr)] for r in self._requirements],
        }

    def fingerprint(self) -> str:
        """A hash of the definition: equal for equal definitions."""
        return digest(self._definition())

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Space:
        """A space from its definition. A fingerprint that does not fit is an error."""
        if data.get("format") != FORMAT:
            raise BadInput(f"this is no space file: its format is {data.get('format')!r}", allowed=FORMAT)
        try:
            space = Space(str(data["name"]))
            for item in data["knobs"]:
                when = expr_from_json(item["when"], space._derived) if "when" in item else None
                space.knob(item["name"], [value_from_json(v) for v in item["values"]], when)
                optional = item.get("optional", False) is True
                space._knobs[item["name"]] = replace(space._knobs[item["name"]], optional=optional)
            for name, expr in data["derived"]:
                space.derive(name, expr_from_json(expr, space._derived))
            for name, expr in data["requirements"]:
                space.require(expr_from_json(expr, space._derived), name)
        except (KeyError, ValueError, TypeError) as error:
            raise BadInput(f"the space file is not complete: {error!r}") from error
        if data.get("fingerprint", space.fingerprint()) != space.fingerprint():
            raise BadInput(f"the file of space {space.name!r} was changed: its fingerprint does not fit its content")
        return space

    # Rows: a config as the place of each value in its knob; an absent knob stands one past the last place

    def _row(self, config: Mapping[str, Value]) -> list[int] | None:
        row = []
        used = 0
        for knob in self._knobs.values():
            if knob.name in config:
                if config[knob.name] not in knob.values:
                    return None
                used += 1
                row.append(knob.values.index(config[knob.name]))
            elif knob.places > len(knob.values):
                row.append(len(knob.values))
            else:
                return None
        return row if used == len(config) else None

    def _config(self, row: Sequence[int]) -> Config:
        return {k.name: k.values[i] for k, i in zip(self._knobs.values(), row, strict=True) if i < len(k.values)}

    def _configs(self, rows: npt.NDArray[np.int64]) -> list[Config]:
        return [self._config(row) for row in rows.tolist()]


def _exists(knob: Knob, config: Mapping[str, Value]) -> bool:
    if knob.when is None:
        return True
    condition = evaluate(knob.when, config)
    return condition is not ABSENT and condition is not UNDEFINED and bool(condition)


def _mentions(expr: Expr, derived: str) -> bool:
    return (expr.op == "named" and expr.data == derived) or any(_mentions(a, derived) for a in expr.args)


def _sorted(values: list[Value]) -> list[Value]:
    numeric = all(isinstance(v, (int, float)) for v in values)
    return sorted(values) if numeric else values
