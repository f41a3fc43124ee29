"""One layer of a diagram: the edges of one variable.

Edges are sorted by the state they leave and by place; `before` is the number of points below all earlier edges of the
layer, so that one search finds the edge of a rank, whatever the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """The edges of one variable. Lists and views beside the arrays: single look-ups in arrays are slow."""

    variable: int
    first: Ints  # by state: its first edge; one more entry at the end
    place: Ints  # by edge
    child: Ints  # by edge
    before: Ints  # by edge: points below earlier edges; one more entry at the end
    base: Ints  # by state: `before` of its first edge
    unit: bool  # every edge leads to exactly one point
    first_view: Any
    place_view: Any
    child_view: Any
    before_view: Any


def layer(variable: int, first: Ints, place: Ints, child: Ints, before: Ints) -> Layer:
    unit = before.dtype != object and int(before[-1]) == len(place)
    base = before[first[:-1]]
    return Layer(
        variable, first, place, child, before, base, unit, _view(first), _view(place), _view(child), _view(before)
    )


def _view(array: Ints) -> Any:
    return array.tolist() if array.dtype == object else np.ascontiguousarray(array).data
