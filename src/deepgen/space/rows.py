"""Knobs as arrays, the kinds of their values (bool, int, float, or object for others), and configs as rows.

A row has the index of each knob's value among its values. An absent knob has the number of values as its index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space.definition import Knob
from deepgen.space.expr import Config, Value

_TOGETHER = 1000  # configs filled at a time: so many stay in the cache


class Rows:
    """Converts configs to rows and back, one at a time or many at once."""

    def __init__(self, knobs: Sequence[Knob]) -> None:
        self.knobs = tuple(knobs)
        # (name, place by value, place when absent: -1 if the knob must have a value)
        self._places = [
            (k.name, {v: i for i, v in enumerate(k.values)}, len(k.values) if k.places > len(k.values) else -1)
            for k in knobs
        ]
        self.absent = [gone for _, _, gone in self._places]
        self._values = [(k.name, k.values, len(k.values)) for k in knobs]
        self._optional = any(k.places > len(k.values) for k in knobs)
        self._arrays = [as_array([*k.values, None], "object") for k in knobs]
        self._blank: Config = {k.name: k.values[0] for k in knobs}

    def adjacent(self, row: Sequence[int], other: Sequence[int]) -> bool:
        """Whether the only difference is one knob, by one place; knobs that appeared or disappeared do not matter."""
        pairs = zip(row, other, self.absent, strict=True)
        return [abs(a - b) for a, b, gone in pairs if a != b and gone not in (a, b)] == [1]

    def row(self, config: Mapping[str, Value]) -> list[int] | None:
        """The row; None for a config with an unknown knob or value, or without a required knob."""
        row = []
        absent = 0
        get = config.get
        try:
            for name, places, gone in self._places:
                value = get(name)
                if value is not None:
                    row.append(places[value])
                elif gone >= 0:
                    absent += 1
                    row.append(gone)
                else:
                    return None
        except (KeyError, TypeError):  # not a value of the knob, or unhashable such as a list
            return None
        return row if len(config) == len(row) - absent else None

    def places(self, values: Mapping[str, Collection[Value]]) -> dict[int, list[int]]:
        """By knob, the places of some of its values, and the place for an absent one."""
        return {
            i: [places[v] for v in values[name]] + ([gone] if gone >= 0 else [])
            for i, (name, places, gone) in enumerate(self._places)
            if name in values
        }

    def config(self, row: Sequence[int]) -> Config:
        return {name: values[i] for (name, values, gone), i in zip(self._values, row, strict=True) if i != gone}

    def configs(self, rows: npt.NDArray[Any]) -> list[Config]:
        """Many rows, column by column: several times as fast as one by one."""
        if not self.knobs:
            return [{} for _ in rows]
        configs: list[Config] = []
        for start in range(0, len(rows), _TOGETHER):
            configs += self._together(rows[start : start + _TOGETHER])
        for i, (name, _, gone) in enumerate(self._places):
            if gone >= 0:
                for n in np.flatnonzero(rows[:, i] == gone).tolist():
                    del configs[n][name]
        return configs

    def _together(self, rows: npt.NDArray[Any]) -> list[Config]:
        """A few rows, filled knob by knob into copies of a full dictionary, which never have to grow.

        With sixty knobs that takes half the time of creating each dictionary from its items.
        """
        configs: list[Config] = [self._blank.copy() for _ in range(len(rows))]
        for i, (knob, array) in enumerate(zip(self.knobs, self._arrays, strict=True)):
            name = knob.name
            for config, value in zip(configs, array[rows[:, i]].tolist(), strict=True):
                config[name] = value
        return configs

    def columns(self, rows: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """One array per knob: numbers as numbers, text and tuples as objects; an absent knob is NaN or None."""
        columns = {}
        for i, knob in enumerate(self.knobs):
            kind = join_kinds([kind_of_value(v) for v in knob.values])
            gap = rows[:, i] == len(knob.values)
            if kind != "object" and gap.any():
                columns[knob.name] = as_array([*(float(v) for v in knob.values), float("nan")], "float")[rows[:, i]]  # type: ignore[arg-type]
            elif kind == "object":
                columns[knob.name] = self._arrays[i][rows[:, i]]
            else:
                columns[knob.name] = as_array(list(knob.values), kind)[rows[:, i]]
        return columns


Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Variable:
    """A knob as arrays: the meaning of each of its places. The place after the last value means absent."""

    name: str
    values: Array  # numbers if all values are numbers, objects otherwise; the absent place has an arbitrary value
    present: Array
    kind: str

    @property
    def size(self) -> int:
        return len(self.present)


def variable(knob: Knob) -> Variable:
    kind = join_kinds([kind_of_value(v) for v in knob.values])
    padded = [*knob.values, *([knob.values[0]] * (knob.places - len(knob.values)))]
    present = np.arange(len(padded)) < len(knob.values)
    return Variable(knob.name, as_array(padded, kind), present, kind)


def kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else "object"


def join_kinds(kinds: list[str]) -> str:
    for widest in ("object", "float", "int"):
        if widest in kinds:
            return widest
    return "bool"


def as_array(values: list[Any], kind: str) -> Array:
    dtype = {"bool": np.bool_, "int": np.int64, "float": np.float64}.get(kind, object)
    if kind == "int" and any(abs(v) >= 1 << 62 for v in values):
        dtype = object
    array: Array = np.empty(len(values), dtype=dtype)
    for place, value in enumerate(values):  # one by one: numpy would expand tuples into another axis
        array[place] = value
    return array
