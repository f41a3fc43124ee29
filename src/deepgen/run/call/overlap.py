"""Whether a result would be written where another array still lies: kernels read and write in an order of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from deepgen.operators import Signature
from deepgen.run.call.arrays import View, as_bytes
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import DTYPES

# Steps for numpy to find a common byte of arrays whose rows lie between each other; after that there may be one. Real
# arrays need a few. (Of no type, since numpy's annotations know only its two named values.)
_STEPS: Any = 10_000


class Apart:
    """What decides, for arrays of these shapes wherever they lie, whether one that is written overlaps another.

    It is asked in every call, so that all that the shapes decide is worked out once: how far one may begin before and
    after the other (`within`). Only arrays within each other's reach, as slices of one buffer are, are looked at.
    """

    def __init__(self, views: Mapping[str, View], signature: Signature) -> None:
        self._views, self._signature = dict(views), signature
        self._places = {name: place for place, name in enumerate(views)}
        written = [p.name for p in signature.outputs if p.name in views]
        self._only = len(written) == 1
        extents = {name: _extent(seen) for name, seen in views.items()}
        # (written, other) -> the least and the greatest distance of their addresses at which they may overlap
        self.within: dict[tuple[str, str], tuple[int, int]] = {}
        for name in written:
            low, high = extents[name]
            for other, (first, last) in extents.items():
                if other != name and (other, name) not in self.within:
                    self.within[name, other] = first - high, last - low
        self._known: Sequence[int] = ()

    def check(self, addresses: Sequence[int]) -> None:
        """Raises when one that is written overlaps another one. `addresses` are in the order of the views."""
        places = self._places
        for (name, other), (before, after) in self.within.items():
            if before < addresses[places[name]] - addresses[places[other]] < after:
                self.look(addresses)
                return

    def look(self, addresses: Sequence[int]) -> None:
        """The same, byte by byte; what was looked at last is remembered."""
        if addresses == self._known:
            return
        at = {
            name: replace(seen, address=address)
            for (name, seen), address in zip(self._views.items(), addresses, strict=True)
        }
        for name, other in self.within:
            if self._in_place(at[name], name, at[other], other):
                continue
            if np.may_share_memory(as_bytes(at[name]), as_bytes(at[other]), max_work=_STEPS):
                raise self._refusal(name, other)
        self._known = addresses

    def _in_place(self, seen: View, name: str, other: View, of: str) -> bool:
        """Whether each element is written where the element of the same place is read, and may be."""
        declared = of in self._signature[name].aliases or name in self._signature[of].aliases
        return declared and replace(seen, writeable=True) == replace(other, writeable=True)

    def _refusal(self, name: str, other: str) -> BadInput:
        does = "written too" if self._signature[other].written else "read while it is written"
        return BadInput(
            f"{'out' if self._only else name} overlaps {other}, which is {does}", allowed="pass a separate array"
        )


def _extent(seen: View) -> tuple[int, int]:
    """The first byte and the one after the last, from the array's address: a stride may be negative."""
    if 0 in seen.shape:
        return 0, 0
    spans = [(size - 1) * stride for size, stride in zip(seen.shape, seen.strides, strict=True)]
    width = DTYPES[seen.dtype].bytes
    return sum(s for s in spans if s < 0) * width, (sum(s for s in spans if s > 0) + 1) * width
