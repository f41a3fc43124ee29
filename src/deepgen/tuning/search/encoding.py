"""Configs as numbers for models: small integers for each config, and the distance of two configs in each column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deepgen.space import Space
from deepgen.vocabulary.dtypes import distinct

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ALIGNMENTS = 6  # above 2**6, divisibility by a higher power of two makes no difference
_LEVELS = 16  # of a derived value
_SAMPLE = 512  # configs sampled to set the levels of derived values


@dataclass(frozen=True)
class Aligned:
    """A column for the alignment of an integer knob: the largest power of two that divides the value.

    48 lies between 32 and 64, but hardware treats it differently from both.
    """

    knob: int
    levels: Ints  # for each of the knob's places
    distances: Floats


@dataclass(frozen=True)
class Derived:
    """A column for a derived value, divided into levels."""

    name: str
    edges: npt.NDArray[Any]  # the value at which each level ends
    distances: Floats

    def levels(self, values: npt.NDArray[Any], holes: npt.NDArray[np.bool_]) -> Ints:
        """The level of each value; an absent value counts as 0."""
        return np.searchsorted(self.edges, np.where(holes, 0, values))


class Column(Protocol):
    """A column computed from the columns before it."""

    @property
    def distances(self) -> Floats: ...

    def levels(self, codes: Ints) -> Ints: ...


class Encoding:
    """Encodes a config as one small integer per column: the knobs first, then derived columns for a model.

    A knob's integer is the index of its value, or the number of values if the knob is absent. Knobs with a single
    possible place carry no information and are omitted.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.knobs = [k for k in space.knobs if k.places > 1]
        self._columns = [i for i, k in enumerate(space.knobs) if k.places > 1]
        self._places: list[dict[Any, int]] = [{v: i for i, v in enumerate(k.values)} for k in self.knobs]
        self._aligned = [a for i, k in enumerate(self.knobs) if (a := _aligned(i, k.values, k.places))]
        self._derived = _derived(space)
        self.distances: list[Floats] = [_distances(k.values, k.places) for k in self.knobs]
        self.distances += [a.distances for a in self._aligned] + [d.distances for d in self._derived]
        self.names = [k.name for k in self.knobs]
        self.names += [f"alignment of {self.knobs[a.knob].name}" for a in self._aligned]
        self.names += [d.name for d in self._derived]
        self._added: list[Column] = []
        self._near: dict[int, list[int]] = {}
        self._scales = [_scale(k.values, k.places) for k in self.knobs]

    @property
    def order(self) -> list[int]:
        """The columns in an order in which each alignment follows its knob."""
        beside = {a.knob: len(self.knobs) + i for i, a in enumerate(self._aligned)}
        own = [j for i in range(len(self.knobs)) for j in ((i, beside[i]) if i in beside else (i,))]
        return [*own, *range(len(own), len(self.distances))]

    def codes(self, ranks: Sequence[int]) -> Ints:
        """One row per rank, with one column for each of `distances`."""
        if not len(ranks):
            return np.empty((0, len(self.distances)), dtype=np.int64)
        places = self.space.places(ranks)
        rows = self.with_alignments(places[:, self._columns].astype(np.int64))
        if self._derived:
            values = self.space.derived_arrays(places)
            rows = np.column_stack([rows, *(derived.levels(*values[derived.name]) for derived in self._derived)])
        for column in self._added:
            rows = np.column_stack([rows, column.levels(rows)])
        return rows

    def neighbors(self, rank: int) -> list[int]:
        """The ranks that differ in one knob. Cached, as the best configs of a search are looked up repeatedly."""
        if rank not in self._near:
            self._near[rank] = self.space.neighbor_ranks(rank)
        return self._near[rank]

    def codes_of(self, configs: Sequence[Mapping[str, Any]]) -> Ints:
        """One row per config, with only knobs and their alignments; the configs may have other knobs too."""
        rows = [
            [codes.get(config.get(knob.name), len(knob.values)) for config in configs]
            for codes, knob in zip(self._places, self.knobs, strict=True)
        ]
        return self.with_alignments(np.array(rows, dtype=np.int64).reshape(len(self.knobs), len(configs)).T)

    def with_alignments(self, places: Ints) -> Ints:
        """Add the columns of alignments to the places of the knobs' values."""
        return np.column_stack([places, *(a.levels[places[:, a.knob]] for a in self._aligned)])

    def add(self, name: str, column: Column) -> None:
        """Add a column computed from those before it."""
        self._added.append(column)
        self.distances.append(column.distances)
        self.names.append(name)

    def features(self, codes: Ints) -> Floats:
        """Codes as numbers in the order of the knobs' values, for tree models."""
        columns = [scale[codes[:, i]] for i, scale in enumerate(self._scales)]
        return np.column_stack([*columns, codes[:, len(self.knobs) :]])

    def of_knobs(self, shares: Floats) -> Floats:
        """Convert shares of columns to shares of knobs: an alignment belongs to its knob, a derived value to none."""
        total = shares[: len(self.knobs)].copy()
        for i, aligned in enumerate(self._aligned):
            total[aligned.knob] += shares[len(self.knobs) + i]
        return np.asarray(total / max(float(total.sum()), 1e-12))


def _distances(values: Sequence[Any], places: int) -> Floats:
    """The distance between the values of a knob, from 0 to 1; an absent value is far from all others.

    A Gaussian process needs distances that can be embedded in a Euclidean space: numbers are points on a line, words
    the corners of a simplex, and orders (by the root of their differing places) the corners of a cube.
    """
    table = np.ones((places, places))
    n = len(values)
    if all(isinstance(v, (int, float)) for v in values):
        at = _positions([float(v) for v in values])
        table[:n, :n] = _apart(at)
        if places > n:  # at a distance from the middle of the line
            table[n, :n] = table[:n, n] = np.sqrt(0.75 + (at - 0.5) ** 2)
    elif all(isinstance(v, tuple) for v in values):
        table[:n, :n] = [[_differing(a, b) for b in values] for a in values]
    np.fill_diagonal(table, 0.0)
    return table


def _apart(positions: Floats) -> Floats:
    return np.abs(positions[:, None] - positions[None, :])


def _positions(values: list[float]) -> Floats:
    """Numbers on a line from 0 to 1: half by rank and half by logarithm, as sizes usually double."""
    if len(values) == 1:
        return np.zeros(1)
    order = np.argsort(np.argsort(values)) / (len(values) - 1)
    lowest = min(values)
    logs = np.array([math.log(v) if lowest > 0 else math.log1p(v - lowest) for v in values])
    return np.asarray(0.5 * order + 0.5 * (logs - logs.min()) / (logs.max() - logs.min()))


def _differing(a: Sequence[Any], b: Sequence[Any]) -> float:
    longest = max(len(a), len(b), 1)
    return math.sqrt((abs(len(a) - len(b)) + sum(1 for x, y in zip(a, b, strict=False) if x != y)) / longest)


def _scale(values: Sequence[Any], places: int) -> Floats:
    """The position of each value on its knob's scale; an absent value is below all others."""
    numeric = all(isinstance(v, (int, float)) for v in values)
    listed = [float(v) for v in values] if numeric else [float(i) for i in range(len(values))]
    return np.array(listed + [min(listed) - 1.0] * (places - len(values)))


def _aligned(knob: int, values: Sequence[Any], places: int) -> Aligned | None:
    """The alignment column; None unless some values are not powers of two: otherwise the size implies the alignment."""
    if len(values) < 3 or not all(type(v) is int for v in values):
        return None
    if all(v & (v - 1) == 0 for v in values if v > 0):
        return None
    powers = [min((v & -v).bit_length() - 1, _ALIGNMENTS) if v else 0 for v in values]
    distinct = sorted(set(powers))
    if len(distinct) < 2:
        return None
    levels = np.array([distinct.index(p) for p in powers] + [0] * (places - len(values)))
    at = np.array([(p - distinct[0]) / (distinct[-1] - distinct[0]) for p in distinct])
    return Aligned(knob, levels, _apart(at))


def _derived(space: Space) -> list[Derived]:
    """The numeric derived values that vary, divided into levels with about equally many configs each."""
    if not space.derivations or space.empty():
        return []
    sample = space.derived_arrays(space.places(space.sample_ranks(_SAMPLE, 0)))
    derived = []
    for name, (drawn, holes) in sample.items():
        values = drawn[~holes]
        if values.dtype.kind not in "biuf" and not all(isinstance(v, (int, float)) for v in values.tolist()):
            continue
        shares = np.linspace(0.0, 1.0, _LEVELS + 1)[1:-1]
        edges = distinct(np.sort(values)[(shares * (len(values) - 1)).astype(np.int64)]) if len(values) else values
        if len(edges) > 1:
            derived.append(Derived(name, edges, _apart(np.linspace(0.0, 1.0, len(edges) + 1))))
    return derived
