"""Space: knobs, derived values and requirements, and every question that can be asked of the valid configs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import prod
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepgen.space.columns import evaluate_many
from deepgen.space.definition import FORMAT, Knob, expr_from_json, same_condition, space_to_json, value_from_json
from deepgen.space.engine import DEFAULT_MEMORY, Engine, Size, TooWideToCount
from deepgen.space.evaluate import ABSENT, UNDEFINED
from deepgen.space.expr import Config, Expr, Operand, Requirement, Value, check_value, key, knob_ref, lift, points
from deepgen.space.reasons import Broken, Removal, derived_values, explain, smallest_conflict
from deepgen.space.rows import Rows
from deepgen.space.sketches import unite
from deepgen.vocabulary import BadInput, JsonObject, digest

Kind = Literal["adjacent", "any", "repair"]
_REPEATS = 20  # draws for each config found, after which all of them will have been found


class Space:
    """Declare knobs and requirements, then count, sample, rank, explain. Reading is safe from several threads."""

    def __init__(self, name: str, memory: int = DEFAULT_MEMORY) -> None:
        """`memory` bounds, in bytes, what compiling may use."""
        self.name, self.memory = name, memory
        self._knobs: dict[str, Knob] = {}
        self._derived: dict[str, Expr] = {}
        self._requirements: list[Requirement] = []
        self._lock = Lock()
        self._compiled: tuple[Engine, Rows] | None = None
        self._orders: Sequence[Sequence[str]] = ()
        self._by: str | None = None  # the knob whose values are alternatives

    # Declaring ------------------------------------------------------------------------------------------------------

    def knob(self, name: str, values: Iterable[Value], when: Operand | None = None) -> Expr:
        """A knob with its values in order; with `when`, one that exists only where the condition holds."""
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
        self._compiled = None
        return knob_ref(name)

    def permutation(self, name: str, items: Sequence[Value], when: Operand | None = None) -> Expr:
        """A knob whose values are all orders of `items`, as tuples."""
        return self.knob(name, permutations(items), when)

    def derive(self, name: str, expr: Operand) -> Expr:
        """A named value computed from knobs; use what it returns in requirements."""
        _check_text(name, "derived value")
        if not name or name in self._knobs or name in self._derived:
            raise BadInput(
                f"space {self.name!r} already has something named {name!r}" if name else "a derived value needs a name"
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
        _check_text(requirement.name, "requirement")
        if not requirement.name or any(r.name == requirement.name for r in self._requirements):
            raise BadInput(
                f"space {self.name!r} has two requirements named {requirement.name!r}, or one without a name"
            )
        self._check_names(requirement.expr, f"requirement {requirement.name!r}")
        self._requirements.append(requirement)
        self._compiled = None

    def _check_names(self, expr: Expr, where: str) -> None:
        unknown = sorted(expr.knobs() - set(self._knobs))
        if unknown:
            raise BadInput(
                f"{where} of space {self.name!r} refers to {', '.join(unknown)}, which is not declared before it",
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

    def _ready(self) -> tuple[Engine, Rows]:
        """The engine, built at the first question."""
        ready = self._compiled
        if ready is None:
            # Imported when first asked: declaring spaces stays quick to import.
            from deepgen.space.opening import open_engine

            with self._lock:
                ready = self._compiled
                if ready is None:
                    engine = open_engine(self.name, self.knobs, self.requirements, self.memory, self._orders, self._by)
                    ready = self._compiled = (engine, Rows(self.knobs))
        return ready

    def orders(self) -> list[list[str]]:
        """The orders of knobs that compiling had to search for. `arrange` spares an equal space the search."""
        return [list(order) for order in self._ready()[0].orders]

    def arrange(self, orders: Sequence[Sequence[str]]) -> None:
        """Compile with these orders of knobs where they fit. Ranks depend on them."""
        self._orders = orders
        self._compiled = None

    @property
    def uniform(self) -> bool:
        """Whether samples are uniform over the valid configs: false only where a solver had to be used."""
        return self._ready()[0].uniform

    def count(self) -> int:
        """How many valid configs there are, exactly. Raises TooWideToCount where only `size` can tell."""
        return self._ready()[0].count()

    def size(self) -> Size:
        """How many valid configs there are: exactly, or an estimate that says so."""
        return self._ready()[0].size()

    def empty(self) -> bool:
        return self._ready()[0].empty()

    @property
    def ranks(self) -> int:
        """Every rank is below this number. In a space that is counted exactly, every number below is a rank."""
        return self._ready()[0].ranks

    def are_ranks(self, numbers: Sequence[int]) -> list[bool]:
        """Which of these numbers are ranks of configs."""
        return self._ready()[0].valid(numbers)

    def at(self, rank: int) -> Config:
        """The config of a rank, 0 <= rank < ranks."""
        engine, rows = self._ready()
        if not 0 <= rank < engine.ranks:
            raise BadInput(f"rank {rank} is outside space {self.name!r}", allowed=f"0 to {engine.ranks - 1}")
        row = engine.row(rank)
        if row is None:
            raise BadInput(f"no config of space {self.name!r} has rank {rank}", allowed="a rank that a config has")
        return rows.config(row)

    def first(self) -> Config:
        """The config of rank 0; in a space that is not counted exactly, where that may be none, some config."""
        return self.at(0) if self.size().exact else self.sample(1, 0)[0]

    def rank(self, config: Mapping[str, Value]) -> int:
        """The rank of a valid config."""
        engine, rows = self._ready()
        row = rows.row(config)
        rank = None if row is None else engine.rank(row)
        if rank is None:
            reasons = "; ".join(b.name for b in self.explain(config))
            raise BadInput(f"this config is not in space {self.name!r}: {reasons}")
        return rank

    def contains(self, config: Mapping[str, Value]) -> bool:
        engine, rows = self._ready()
        row = rows.row(config)
        return row is not None and engine.contains(row)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and self.contains(config)

    def sample_ranks(self, n: int, seed: int, distinct: bool = False) -> list[int]:
        """`n` ranks, uniform over the valid configs: independent draws, or all different, as far as these go."""
        engine, _ = self._ready()
        self._check_not_empty(engine, n)
        rng = np.random.default_rng(seed)
        if not distinct:
            return engine.drawn_ranks(n, rng)
        size = engine.size()
        if size.exact and 2 * n >= size.count:
            return rng.permutation(size.count)[:n].tolist()  # type: ignore[no-any-return]
        seen: dict[int, None] = {}
        repeated = 0  # where the number of configs is not known, it may be smaller than n
        while len(seen) < n and (size.exact or repeated < _REPEATS * (len(seen) + 1)):
            drawn = engine.drawn_ranks(n - len(seen), rng)
            repeated += len(drawn) + len(seen)
            seen.update(dict.fromkeys(drawn))
            repeated -= len(seen)
        return list(seen)

    def sample(self, n: int, seed: int, distinct: bool = False) -> list[Config]:
        """`n` configs, uniform over the valid ones; the same for the same seed. With replacement unless `distinct`."""
        engine, rows = self._ready()
        self._check_not_empty(engine, n)
        if distinct:
            return rows.configs(engine.rows(self.sample_ranks(n, seed, distinct=True)))
        return rows.configs(engine.drawn_rows(n, np.random.default_rng(seed)))

    def _check_not_empty(self, engine: Engine, n: int) -> None:
        if n and engine.empty():
            raise BadInput(f"space {self.name!r} is empty: no config meets {'; '.join(self.why_empty())}")

    def __iter__(self) -> Iterator[Config]:
        return self.iterate()

    def iterate(self, start: int = 0) -> Iterator[Config]:
        """Valid configs in rank order, from any rank."""
        engine, rows = self._ready()
        for chunk in engine.chunks(start):
            yield from rows.configs(chunk)

    def neighbors(self, config: Mapping[str, Value], kind: Kind = "any") -> list[Config]:
        """Valid configs next to a valid one.

        `adjacent`: one knob at the value before or after; `any`: one knob at any other value; `repair`: one knob at
        any other value that some valid config has, with as few other knobs changed as that needs. Knobs that begin or
        cease to exist by the change are not counted.
        """
        engine, rows = self._ready()
        row = rows.row(config)
        if row is None or not engine.contains(row):
            self.rank(config)  # says what is wrong with it
            raise BadInput(f"this config is not in space {self.name!r}")
        if kind not in ("adjacent", "any", "repair"):
            raise BadInput(f"unknown kind of neighbor {kind!r}", allowed="adjacent, any or repair")
        absent = rows.absent
        found = engine.repaired(row, absent) if kind == "repair" else engine.one_knob_away(row, absent)
        if kind == "adjacent":
            found = [f for f in found if rows.adjacent(row, f)]
        return [rows.config(f) for f in found]

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

    def draw_within(self, values: Mapping[str, Collection[Value]], seed: int) -> Config | None:
        """One random config of the part that `restrict` would give; None if none is found there.

        The part is not compiled: where one config of each of many parts is wanted, this is far quicker.
        """
        from deepgen.space.diagram import Diagram
        from deepgen.space.partial import Partial
        from deepgen.space.union import Union
        from deepgen.space.within import draw_within

        engine, rows = self._ready()
        if isinstance(engine, (Diagram, Partial, Union)):
            row = draw_within(engine, rows.places(values), np.random.default_rng(seed))
            return None if row is None else rows.config(row)
        part = self.restrict(values)
        return None if part.empty() else part.sample(1, seed)[0]

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
        copy = Space(self.name, self.memory)
        copy._knobs = dict(self._knobs)
        copy._derived = dict(self._derived)
        copy._requirements = list(self._requirements)
        copy._by = self._by
        return copy

    # Explaining -------------------------------------------------------------------------------------------------------

    def explain(self, config: Mapping[str, Value]) -> list[Broken]:
        """Every requirement that the config breaks, with the values that broke it; empty for a valid config."""
        return explain(self.knobs, self._derived, self._requirements, config)

    def derived(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """The derived values of a config; one that rests on an absent knob is left out."""
        return derived_values(self._derived, config)

    def derived_columns(self, which: Sequence[Mapping[str, Value]] | Sequence[int]) -> dict[str, list[Value | None]]:
        """The derived values of many configs or ranks, a list each; None where one rests on an absent knob."""
        found = evaluate_many(self._derived, self._ready()[1].objects(self._rows_of(which)))
        return {name: [None if v is ABSENT or v is UNDEFINED else v for v in values] for name, values in found.items()}

    def why_empty(self) -> list[str]:
        """The names of a smallest set of requirements that together leave nothing; none if the space is not empty."""
        if not self._ready()[0].empty():
            return []
        own = self._requirements
        found = smallest_conflict(
            len(own), lambda some: not self._with([own[i] for i in sorted(some)])._ready()[0].empty()
        )
        return [own[i].name for i in found]

    def removed_by(self) -> list[Removal]:
        """For each requirement, how many points it removes alone, and how many that all others would leave."""
        total, count, own = self._with([])._counted(), self._counted(), self._requirements
        return [
            Removal(
                r.name,
                _difference(total, self._with([r])._counted()),
                _difference(self._with([o for o in own if o is not r])._counted(), count),
            )
            for r in own
        ]

    def _counted(self) -> int | None:
        """How many configs there are; None where that cannot be counted."""
        try:
            return self.count()
        except TooWideToCount:
            return None

    def _with(self, requirements: Sequence[Requirement]) -> Space:
        other = self._copy()
        other._requirements = list(requirements)
        return other

    # Columns, points and files ----------------------------------------------------------------------------------------

    def columns(self, which: Sequence[Mapping[str, Value]] | Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """Configs or ranks as one array per knob, for models: NaN (numbers) or None where a knob is absent."""
        return self._ready()[1].columns(self._rows_of(which))

    def _rows_of(self, which: Sequence[Mapping[str, Value]] | Sequence[int]) -> npt.NDArray[Any]:
        engine, rows = self._ready()
        if len(which) == 0 or not isinstance(which[0], Mapping):
            return engine.rows(which)  # type: ignore[arg-type]
        listed = [rows.row(config) for config in which]  # type: ignore[arg-type]
        for config, row in zip(which, listed, strict=True):
            if row is None:
                self.rank(config)  # type: ignore[arg-type]
        return np.array(listed, dtype=np.int64)

    @staticmethod
    def from_points(name: str, configs: Iterable[Mapping[str, Value]]) -> Space:
        """A space that is a list of points: a recorded space, or winners."""
        listed = [dict(c) for c in configs]
        names = list(dict.fromkeys(n for c in listed for n in c))
        if not names:
            raise BadInput(f"space {name!r} needs at least one point", allowed="at least one config")
        space = Space(name)
        for knob in names:
            found = list(dict.fromkeys(c[knob] for c in listed if knob in c))
            space.knob(knob, _sorted(found))
            space._knobs[knob] = replace(space._knobs[knob], optional=any(knob not in c for c in listed))
        rows = dict.fromkeys(tuple(c.get(n) for n in names) for c in listed)
        space.add(Requirement("is one of the points", points(names, rows)))
        return space

    @staticmethod
    def union(name: str, spaces: Mapping[str, Space], by: str = "sketch", memory: int = DEFAULT_MEMORY) -> Space:
        """A space of alternatives: the knob `by` names the one that a config is from. Each is compiled on its own.

        A knob that several spaces have is one knob, with the values of all; requirements hold where they come from.
        """
        united = Space(name, memory)
        unite(united, spaces, by)
        united._by = by
        return united

    def to_json(self) -> JsonObject:
        """The definition, and its fingerprint; never a list of points unless it was made of points."""
        body = self._definition()
        return {**body, "fingerprint": digest(body)}

    def _definition(self) -> JsonObject:
        body = space_to_json(self.name, self.knobs, self._derived, self._requirements)
        return body if self._by is None else {**body, "union": self._by}

    def fingerprint(self) -> str:
        """A hash of the definition: equal for equal definitions."""
        return digest(self._definition())

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Space:
        """A space from its definition. A fingerprint that does not fit is an error."""
        if data.get("format") != FORMAT:
            raise BadInput(f"this is not a space file: its format is {data.get('format')!r}", allowed=FORMAT)
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
        space._by = data.get("union")
        if space._by is not None and not any(k.name == space._by and k.places == len(k.values) for k in space.knobs):
            raise BadInput(f"the union is by {space._by!r}", allowed="the name of a knob without a condition")
        if data.get("fingerprint", space.fingerprint()) != space.fingerprint():
            raise BadInput(f"the file of space {space.name!r} was changed: its fingerprint does not fit its content")
        return space


def _check_text(name: object, of: str) -> None:
    if not isinstance(name, str):
        raise BadInput(f"a {of} is called {name!r:.60}", allowed="a word")


def _difference(more: int | None, less: int | None) -> int | None:
    return None if more is None or less is None else more - less


def _sorted(values: list[Value]) -> list[Value]:
    numeric = all(isinstance(v, (int, float)) for v in values)
    return sorted(values) if numeric else values
