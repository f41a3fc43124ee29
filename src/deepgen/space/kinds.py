"""Knobs as arrays, and the kinds of values: bool, int, float, and object for all else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space.definition import Knob

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Variable:
    """A knob as arrays: what each of its places means. The place after the last value means absent."""

    name: str
    values: Array  # numbers where all values are numbers, objects otherwise; any value stands at the absent place
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
    for place, value in enumerate(values):  # one by one: numpy would spread tuples over another axis
        array[place] = value
    return array
