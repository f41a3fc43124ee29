"""Configs as numbers for models: the place of each knob's value, and how far two values of a knob are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space import Space

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Encoding:
    """A config becomes one small integer a knob: the place of its value, one past the last where the knob is absent.

    Knobs with a single place tell nothing and are left out.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.knobs = [k for k in space.knobs if k.places > 1]
        self._places: list[dict[Any, int]] = [{v: i for i, v in enumerate(k.values)} for k in self.knobs]
        self.distances = [_distances(k.values, k.places) for k in self.knobs]
        # Where a value stands on its knob's own scale, for trees: only the order matters to them.
        self._scales = [_scale(k.values, k.places) for k in self.knobs]

    @property
    def width(self) -> int:
        return len(self.knobs)

    def codes(self, which: Sequence[int] | Sequence[Mapping[str, Any]]) -> Ints:
        """One row a config or rank, one column a knob."""
        if not len(which):
            return np.empty((0, self.width), dtype=np.int64)
        columns = self.space.columns(which)
        rows = np.empty((len(which), self.width), dtype=np.int64)
        for i, knob in enumerate(self.knobs):
            places, absent = self._places[i], len(knob.values)
            rows[:, i] = [places.get(value, absent) for value in columns[knob.name].tolist()]
        return rows

    def features(self, codes: Ints) -> Floats:
        """Codes as numbers in the order of the knobs' values, for models that split."""
        return np.stack([scale[codes[:, i]] for i, scale in enumerate(self._scales)], axis=1)


def _scale(values: Sequence[Any], places: int) -> Floats:
    numeric = all(isinstance(v, (int, float)) for v in values)
    return np.array([float(v) for v in values] + [-1.0] * (places - len(values)) if numeric else range(places))


def _distances(values: Sequence[Any], places: int) -> Floats:
    """How far apart the values of a knob are, from 0 to 1; an absent one is far from all."""
    table = np.ones((places, places))
    n = len(values)
    if all(isinstance(v, (int, float)) for v in values):
        at = _positions([float(v) for v in values])
        table[:n, :n] = np.abs(at[:, None] - at[None, :])
    elif all(isinstance(v, tuple) for v in values):
        table[:n, :n] = [[_differing(a, b) for b in values] for a in values]
    np.fill_diagonal(table, 0.0)
    return table


def _positions(values: list[float]) -> Floats:
    """Numbers on a line from 0 to 1: half by their order, half by their logarithm, as sizes mostly double."""
    if len(values) == 1:
        return np.zeros(1)
    order = np.argsort(np.argsort(values)) / (len(values) - 1)
    lowest = min(values)
    logs = np.array([math.log(v) if lowest > 0 else math.log1p(v - lowest) for v in values])
    return np.asarray(0.5 * order + 0.5 * (logs - logs.min()) / (logs.max() - logs.min()))


def _differing(a: Sequence[Any], b: Sequence[Any]) -> float:
    longest = max(len(a), len(b), 1)
    return (abs(len(a) - len(b)) + sum(1 for x, y in zip(a, b, strict=False) if x != y)) / longest
