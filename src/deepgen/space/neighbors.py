"""Configs next to a config, found by walking the diagram along it.

Only the part of the space with the changed knob matters. A knob that appears or disappears because of the change does
not count as a change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from deepgen.space.layers import Ints, Layer
from deepgen.vocabulary.dtypes import distinct

_FAR = 1 << 20


def deviations(layers: Sequence[Layer], row: Sequence[int], absent: Sequence[int]) -> list[dict[int, int]]:
    """The changes of all walks that differ from the row in one knob and otherwise follow it."""
    # By state, the walks in progress: (the changed knob, all changes). None: nothing changed yet.
    walks: list[tuple[int, int | None, dict[int, int]]] = [(0, None, {})]
    for layer in layers:
        variable = layer.variable
        here, gone = row[variable], absent[variable]
        after: list[tuple[int, int | None, dict[int, int]]] = []
        reached: set[tuple[int, int | None, int]] = set()
        for state, origin, changes in walks:
            start, stop = layer.first_view[state], layer.first_view[state + 1]
            if origin is not None and gone < 0:  # the walk must follow the row
                start = bisect_left(layer.place_view, here, start, stop)
                stop = min(start + 1, stop)
            for edge in range(start, stop):
                place, child = layer.place_view[edge], layer.child_view[edge]
                follows = place == here
                # Appearing and disappearing with a condition is free, for knobs before and after the change.
                appears = not follows and gone in (place, here)
                if follows or appears:
                    step = (child, origin, changes if follows else {**changes, variable: place})
                elif origin is None:
                    step = (child, variable, {**changes, variable: place})
                else:
                    continue
                mark = (step[0], step[1], step[2].get(step[1], -1) if step[1] is not None else -1)
                if mark not in reached:
                    reached.add(mark)
                    after.append(step)
        walks = after
    return [changes for _, origin, changes in walks if origin is not None]


def repairs(layers: Sequence[Layer], row: Sequence[int], absent: Sequence[int]) -> list[dict[int, int]]:
    prices = [_price(layer.place, row[layer.variable], absent[layer.variable]) for layer in layers]
    ahead = _cheapest_ahead(layers, prices)
    behind: Ints = np.zeros(1, dtype=np.int64)
    came: list[Ints] = []  # by layer and state: the last edge of the cheapest walk there
    results: list[dict[int, int]] = []
    for level, layer in enumerate(layers):
        parents = np.repeat(np.arange(len(layer.first) - 1), np.diff(layer.first))
        here = behind[parents] + prices[level]
        through = here + ahead[level + 1][layer.child]
        variable = layer.variable
        for place in distinct(layer.place).tolist():
            if place != row[variable] and place != absent[variable]:
                edges = np.flatnonzero(layer.place == place)
                best = int(edges[np.argmin(through[edges])])
                results.append(_trace(layers, row, level, best, int(parents[best]), came, prices, ahead))
        states = int(layer.child.max()) + 1
        order = np.lexsort((here, layer.child))
        _, at = np.unique(layer.child[order], return_index=True)
        arrival = np.zeros(states, dtype=np.int64)
        arrival[layer.child[order[at]]] = order[at]
        came.append(arrival)
        behind = np.full(states, _FAR)
        behind[layer.child[order[at]]] = here[order[at]]
    return results


def nearest(layers: Sequence[Layer], row: Sequence[int], absent: Sequence[int]) -> tuple[int, dict[int, int]]:
    """The fewest changes that turn the row into a valid walk, and the places of that walk."""
    prices = [_price(layer.place, row[layer.variable], absent[layer.variable]) for layer in layers]
    ahead = _cheapest_ahead(layers, prices)
    return int(ahead[0][0]), _onward(layers, 0, 0, prices, ahead)


def _onward(layers: Sequence[Layer], level: int, state: int, prices: list[Ints], ahead: list[Ints]) -> dict[int, int]:
    """The places of the cheapest walk from a state to the end."""
    places = {}
    for on in range(level, len(layers)):
        after = layers[on]
        edges = np.arange(int(after.first[state]), int(after.first[state + 1]))
        best = int(edges[np.argmin(prices[on][edges] + ahead[on + 1][after.child[edges]])])
        places[after.variable] = int(after.place[best])
        state = int(after.child[best])
    return places


def _price(places: Ints, here: int, gone: int) -> Ints:
    price: Ints = ((places != here) & (places != gone) & (here != gone)).astype(np.int64)
    return price


def _cheapest_ahead(layers: Sequence[Layer], prices: list[Ints]) -> list[Ints]:
    """By layer and state: the fewest changes from there to the end."""
    ahead: list[Ints] = [np.zeros(1, dtype=np.int64)]
    for layer, price in zip(reversed(layers), reversed(prices), strict=True):
        ahead.append(np.minimum.reduceat(price + ahead[-1][layer.child], layer.first[:-1]))
    return ahead[::-1]


def _trace(
    layers: Sequence[Layer],
    row: Sequence[int],
    level: int,
    edge: int,
    state: int,
    came: list[Ints],
    prices: list[Ints],
    ahead: list[Ints],
) -> dict[int, int]:
    """The changes of the cheapest walk through an edge."""
    layer = layers[level]
    places = {layer.variable: int(layer.place[edge])}
    child = int(layer.child[edge])
    for back in range(level - 1, -1, -1):
        arrival = int(came[back][state])
        before = layers[back]
        places[before.variable] = int(before.place[arrival])
        state = int(np.searchsorted(before.first, arrival, side="right")) - 1
    places |= _onward(layers, level + 1, child, prices, ahead)
    return {variable: place for variable, place in places.items() if place != row[variable]}
