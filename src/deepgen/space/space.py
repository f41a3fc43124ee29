"""Space: all queries about the valid configs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from deepgen.space.arrays import Derivations
from deepgen.space.declared import Declared
from deepgen.space.engine import DEFAULT_MEMORY, Size, SpaceEngine, TooWideToCount
from deepgen.space.expr import Config, Value
from deepgen.space.reasons import Removal, Violation, derived_values, explain, smallest_conflict
from deepgen.space.rows import Rows
from deepgen.vocabulary import BadInput

Kind = Literal["adjacent", "any", "repair"]
_REPEATS = 20  # repeated draws per config found after which all of them are assumed found


class Space(Declared):
    """A search space: declare knobs and requirements, then count, sample, rank and explain. Queries are thread-safe."""

    def __init__(self, name: str, memory: int = DEFAULT_MEMORY) -> None:
        """`memory` limits the bytes that compiling may use."""
        super().__init__(name, memory)
        self._lock = Lock()
        self._compiled: tuple[SpaceEngine, Rows] | None = None
        self._derivations: Derivations | None = None
        self._orders: Sequence[Sequence[str]] = ()
        self._union: tuple[Space, Value] | None = None  # the union that it is an alternative of, and its label there

    def _changed(self) -> None:
        self._compiled = self._derivations = self._union = None

    # Queries ----------------------------------------------------------------------------------------------------------

    def _ready(self) -> tuple[SpaceEngine, Rows]:
        """The engine, built at the first query."""
        ready = self._compiled
        if ready is None:
            # Imported at the first query, so that declaring spaces is fast to import.
            from deepgen.space.union import open_engine

            with self._lock:
                ready = self._compiled
                if ready is None:
                    engine = self._shared_engine() or open_engine(
                        self.name, self.knobs, self.requirements, self.memory, self._orders, self._by, self._nested
                    )
                    ready = self._compiled = (engine, Rows(self.knobs))
        return ready

    def within(self, union: Space, label: Value) -> Space:
        """The same space as the alternative with this label in a union. It shares the union's engine, so that both are
        compiled once. Its ranks may differ."""
        member = self._copy()
        member._union = (union, label)
        return member

    def _shared_engine(self) -> SpaceEngine | None:
        from deepgen.space.member import member_engine
        from deepgen.space.union import Union

        if self._union is None:
            return None
        union, label = self._union
        engine, (chosen,) = union._ready()[0], [k for k in union.knobs if k.name == union._by]
        if not isinstance(engine, Union) or label not in chosen.values:
            return None
        return member_engine(engine, union.knobs, chosen.values.index(label), self.knobs)

    def orders(self) -> list[list[str]]:
        """The orders of knobs that compiling had to search for. `arrange` saves an equal space the search."""
        return [list(order) for order in self._ready()[0].orders]

    def arrange(self, orders: Sequence[Sequence[str]]) -> None:
        """Compile with these orders of knobs if they fit. Ranks depend on them."""
        self._orders = orders
        self._compiled = None

    @property
    def uniform(self) -> bool:
        """Whether samples are uniform over the valid configs; false only if a solver is used."""
        return self._ready()[0].uniform

    def count(self) -> int:
        """The exact number of valid configs. Raises TooWideToCount if only `size` is available."""
        return self._ready()[0].count()

    def size(self) -> Size:
        """The number of valid configs: exact, or an estimate marked as such."""
        return self._ready()[0].size()

    def empty(self) -> bool:
        return self._ready()[0].empty()

    @property
    def ranks(self) -> int:
        """An upper limit: all ranks are below it. In an exactly counted space, every number below it is a rank."""
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
            raise BadInput(
                f"no config of space {self.name!r} has rank {rank}", allowed="a rank that belongs to a config"
            )
        return rows.config(row)

    def first(self) -> Config:
        """The config of rank 0; in a space that is not counted exactly, where rank 0 may be invalid, any config."""
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
        """`n` ranks, uniform over the valid configs: independent draws, or all different, if there are enough."""
        engine, _ = self._ready()
        self._check_not_empty(engine, n)
        rng = np.random.default_rng(seed)
        if not distinct:
            return engine.drawn_ranks(n, rng)
        size = engine.size()
        if size.exact and 2 * n >= size.count:
            return rng.permutation(size.count)[:n].tolist()  # type: ignore[no-any-return]
        seen: dict[int, None] = {}
        repeated = 0  # repeated draws: if the number of configs is unknown, it may be less than n
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

    def _check_not_empty(self, engine: SpaceEngine, n: int) -> None:
        if n and engine.empty():
            raise BadInput(f"space {self.name!r} is empty: no config satisfies {'; '.join(self.why_empty())}")

    def __iter__(self) -> Iterator[Config]:
        return self.iterate()

    def iterate(self, start: int = 0) -> Iterator[Config]:
        """The valid configs in rank order, starting from a rank."""
        engine, rows = self._ready()
        for chunk in engine.chunks(start):
            yield from rows.configs(chunk)

    def neighbors(self, config: Mapping[str, Value], kind: Kind = "any") -> list[Config]:
        """Valid configs next to a valid one.

        `adjacent`: one knob at the value before or after; `any`: one knob at any other value; `repair`: one knob at any
        other value that occurs in a valid config, with as few other changed knobs as necessary. Knobs that appear or
        disappear because of the change are not counted.
        """
        engine, rows = self._ready()
        row = rows.row(config)
        if row is None or not engine.contains(row):
            self.rank(config)  # raises with the reason
            raise BadInput(f"this config is not in space {self.name!r}")
        if kind not in ("adjacent", "any", "repair"):
            raise BadInput(f"unknown kind of neighbor {kind!r}", allowed="adjacent, any or repair")
        absent = rows.absent
        near = engine.repaired(row, absent) if kind == "repair" else engine.one_knob_away(row, absent)
        if kind == "adjacent":
            near = [f for f in near if rows.adjacent(row, f)]
        return [rows.config(f) for f in near]

    def neighbor_ranks(self, rank: int) -> list[int]:
        """The ranks of the configs that differ from the given one in one knob."""
        engine, rows = self._ready()
        row = engine.row(rank)
        near = [] if row is None else [engine.rank(other) for other in engine.one_knob_away(row, rows.absent)]
        return [other for other in near if other is not None]

    def draw_within(self, values: Mapping[str, Collection[Value]], seed: int) -> Config | None:
        """One random config of the part that `restrict` would give; None if none is found there.

        The part is not compiled, which is much faster when a single config is wanted from each of many parts.
        """
        from deepgen.space.diagram import Diagram
        from deepgen.space.relax import Partial
        from deepgen.space.union import Union, draw_within

        engine, rows = self._ready()
        if isinstance(engine, (Diagram, Partial, Union)):
            row = draw_within(engine, rows.places(values), np.random.default_rng(seed))
            return None if row is None else rows.config(row)
        part = self.restrict(values)
        return None if part.empty() else part.sample(1, seed)[0]

    # Explaining -------------------------------------------------------------------------------------------------------

    def explain(self, config: Mapping[str, Value]) -> list[Violation]:
        """Every requirement that the config violates, with the values responsible; empty for a valid config."""
        return explain(self.knobs, self._derived, self._requirements, config)

    def derived(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """The derived values of a config, without those that depend on an absent knob."""
        return derived_values(self._derived, config)

    def derived_arrays(self, places: npt.NDArray[Any]) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """The derived values of configs given by `places`, and where each depends on an absent knob."""
        if self._derivations is None:
            self._derivations = Derivations(self.knobs, self._derived)
        return self._derivations(places)

    def why_empty(self) -> list[str]:
        """The names of a smallest unsatisfiable set of requirements; empty if the space is not empty."""
        if not self._ready()[0].empty():
            return []
        own = self._requirements
        conflict = smallest_conflict(
            len(own), lambda some: not self._with([own[i] for i in sorted(some)])._ready()[0].empty()
        )
        return [own[i].name for i in conflict]

    def removed_by(self) -> list[Removal]:
        """For each requirement: how many points it removes on its own, and how many of those that all others leave."""
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
        """The number of configs; None if they cannot be counted."""
        try:
            return self.count()
        except TooWideToCount:
            return None

    # Columns ----------------------------------------------------------------------------------------------------------

    def columns(self, which: Sequence[Mapping[str, Value]] | Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """Configs or ranks as one array per knob, for models; an absent knob is NaN (numbers) or None."""
        return self._ready()[1].columns(self._rows_of(which))

    def places(self, ranks: Sequence[int]) -> npt.NDArray[Any]:
        """One row per rank and one column per knob: the index of its value, or the number of values if it is absent."""
        return self._ready()[0].rows(ranks)

    def _rows_of(self, which: Sequence[Mapping[str, Value]] | Sequence[int]) -> npt.NDArray[Any]:
        engine, rows = self._ready()
        if len(which) == 0 or not isinstance(which[0], Mapping):
            return engine.rows(which)  # type: ignore[arg-type]
        listed = [rows.row(config) for config in which]  # type: ignore[arg-type]
        for config, row in zip(which, listed, strict=True):
            if row is None:
                self.rank(config)  # type: ignore[arg-type]
        return np.array(listed, dtype=np.int64)


def _difference(more: int | None, less: int | None) -> int | None:
    return None if more is None or less is None else more - less
