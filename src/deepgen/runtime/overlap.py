"""Whether a result would be written where an input is still read: kernels read and write in an order of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from deepgen.operators import Array
from deepgen.runtime.device_arrays import View
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import DTYPES

# Steps for numpy to find a common byte of arrays whose rows lie between each other; after that there may be one. Real
# arrays need a few. (Of no type, since numpy's annotations know only its two named values.)
_STEPS: Any = 10_000


class Apart:
    """What decides, for arrays of these shapes wherever they lie, whether C overlaps another one.

    It is asked in every call, so that all that the shapes decide is worked out once: how far C may begin before and
    after the others (`within`). Only arrays within each other's reach, as slices of one buffer are, are looked at.
    """

    def __init__(self, views: Mapping[str, View]) -> None:
        self._views = dict(views)
        low, high = _extent(views["C"])
        others = {name: _extent(seen) for name, seen in views.items() if name != "C"}
        self.within = {name: (first - high, last - low) for name, (first, last) in others.items()}
        self._known: Sequence[int] = ()

    def check(self, addresses: Sequence[int]) -> None:
        """Raises when C overlaps another one. `addresses` are in the order of the views."""
        at = dict(zip(self._views, addresses, strict=True))
        if any(before < at["C"] - at[name] < after for name, (before, after) in self.within.items()):
            self.look(addresses)

    def look(self, addresses: Sequence[int]) -> None:
        """The same, byte by byte; what was looked at last is remembered."""
        if addresses == self._known:
            return
        at = dict(zip(self._views, addresses, strict=True))
        result = _bytes(at["C"], self._views["C"])
        for name in self.within:
            if np.may_share_memory(result, _bytes(at[name], self._views[name]), max_work=_STEPS):
                raise _overlapping(name)
        self._known = addresses


def refuse_arrays(out: Array, inputs: Mapping[str, Array]) -> None:
    """The same for arrays of numpy, which are dense."""
    for name, array in inputs.items():
        if out.base is None and array.base is None:  # each has its own memory: asking numpy would take a microsecond
            if out is not array:
                continue
        elif not np.may_share_memory(out, array):
            continue
        raise _overlapping(name)


def _overlapping(name: str) -> BadInput:
    return BadInput(f"out overlaps {name}, which is read while it is written", allowed="an array of its own")


def _extent(seen: View) -> tuple[int, int]:
    """The first byte and the one after the last, from the array's address: a stride may be negative."""
    if 0 in seen.shape:
        return 0, 0
    spans = [(size - 1) * stride for size, stride in zip(seen.shape, seen.strides, strict=True)]
    width = DTYPES[seen.dtype].bytes
    return sum(s for s in spans if s < 0) * width, (sum(s for s in spans if s > 0) + 1) * width


def _bytes(address: int, seen: View) -> Array:
    """An array's bytes, of which numpy sees the addresses and the strides and reads nothing."""
    width = DTYPES[seen.dtype].bytes
    return np.asarray(
        SimpleNamespace(
            __array_interface__={
                "version": 3,
                "data": (address, True),
                "shape": (*seen.shape, width),
                "strides": (*(stride * width for stride in seen.strides), 1),
                "typestr": "|u1",
            }
        )
    )
