"""Packed layouts of tensors, as oneDNN and TVM write them: `OIhw4i16o4i`.

First come the dimensions, the outermost first, one letter each. Then blocks, the outermost first: `4i` is a block of 4
along the dimension I, whose outer part then counts blocks. The order of an array's own dimensions is that of the
alphabet (abcd), or for images and filters that of the letters g, n, o, i, c, d, h, w, l. If blocks do not divide a
size, the last one is filled with zeros.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from deepgen.operators.words import NONE, Word
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    import numpy.typing as npt

_ORDER = "gnoicdhwl"  # of the dimensions of images and filters
_MOST_BLOCK = 1 << 16
WEIGHT_LAYOUT = Word("weight_layout", "how the weight is packed, such as OIhw4i16o4i; none: by the layout", "choice",
                     NONE, later=True)  # fmt: skip


@dataclass(frozen=True)
class PackedLayout:
    """`order`: for each outer dimension of the packed array, the dimension it comes from; `blocks`: their sizes and
    dimensions."""

    text: str
    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]

    @property
    def dimensions(self) -> int:
        return len(self.order)

    def _block(self, dimension: int, after: int = -1) -> int:
        """The product of a dimension's block sizes, counting blocks after a position."""
        return prod(size for place, (size, of) in enumerate(self.blocks) if of == dimension and place > after)

    def shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The shape of the packed array, for an array's sizes."""
        return (*(-(-sizes[of] // self._block(of)) for of in self.order), *(size for size, _ in self.blocks))

    def symbols(self, sizes: Sequence[str]) -> tuple[int | str, ...]:
        """The same for symbolic sizes."""
        outer = ((sizes[of], self._block(of)) for of in self.order)
        named = (size if by == 1 else f"ceil_div({size}, {by})" for size, by in outer)
        return (*named, *(size for size, _ in self.blocks))

    def places(self, indices: Sequence[Any]) -> tuple[Any, ...]:
        """The indices in the packed array of the element at an array's indices."""
        inner = []
        for place, (size, of) in enumerate(self.blocks):
            index = _divided(indices[of], self._block(of, place))
            inner.append(index % size)
        return (*(_divided(indices[of], self._block(of)) for of in self.order), *inner)

    def packed(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A new array with this layout."""
        import numpy as np

        around = [(0, -size % self._block(of)) for of, size in enumerate(array.shape)]
        split = np.pad(array, around).reshape([part for of in range(array.ndim) for part in self._parts(array, of)])
        return np.ascontiguousarray(split.transpose(self._axes()))

    def unpacked(self, array: npt.NDArray[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
        """The array of that shape, from its packed form."""
        import numpy as np

        axes = self._axes()
        whole = [-(-size // self._block(of)) * self._block(of) for of, size in enumerate(shape)]
        split = array.transpose(np.argsort(axes)).reshape(whole)
        return np.ascontiguousarray(split[tuple(map(slice, shape))])

    def _parts(self, array: npt.NDArray[Any], dimension: int) -> tuple[int, ...]:
        blocks = tuple(size for size, of in self.blocks if of == dimension)
        return (-(-array.shape[dimension] // prod(blocks)), *blocks)

    def _axes(self) -> list[int]:
        """The axes of an array with its dimensions split into parts, in the order of the packed array."""
        first, firsts = 0, []
        for dimension in range(self.dimensions):
            firsts.append(first)
            first += 1 + sum(of == dimension for _, of in self.blocks)
        axes, seen = [firsts[of] for of in self.order], dict.fromkeys(range(self.dimensions), 0)
        for _, of in self.blocks:
            seen[of] += 1
            axes.append(firsts[of] + seen[of])
        return axes


def _divided(index: Any, by: int) -> Any:
    return index if by == 1 else index // by


@lru_cache(maxsize=256)
def packed_layout(text: str) -> PackedLayout:
    """The layout that a text describes; TVM's capitals for dimensions without blocks are accepted."""
    parts = re.fullmatch(r"([A-Za-z]+)((?:[0-9]{1,6}[a-z])*)", text) if isinstance(text, str) else None
    if parts is None:
        raise _unknown(text)
    outer, inner = parts[1].lower(), [(int(size), of) for size, of in re.findall(r"([0-9]+)([a-z])", parts[2])]
    blocked = {of for _, of in inner}
    letters = sorted(outer) if [*sorted(outer)] == [*map(chr, range(97, 97 + len(outer)))] else _by_letter(outer, text)
    apart = {own.lower() for own in parts[1] if own.isupper()}
    if len(set(outer)) < len(outer) or not blocked <= set(outer) or (apart and not blocked <= apart):
        raise _unknown(text)
    if any(not 1 < size <= _MOST_BLOCK for size, _ in inner):
        raise _unknown(text)
    kept = "".join(own.upper() if own in blocked else own for own in outer) + parts[2]
    return PackedLayout(kept, tuple(map(letters.index, outer)), tuple((size, letters.index(of)) for size, of in inner))


def _by_letter(outer: str, text: str) -> list[str]:
    if any(own not in _ORDER for own in outer):
        raise _unknown(text)
    return sorted(outer, key=_ORDER.index)


def _unknown(text: Any) -> BadInput:
    words = "dimensions once each, then blocks along some of them, such as OIhw4i16o4i, nChw16c or ABcd16b"
    return BadInput(f"the layout {text!r:.60} is not understood", allowed=words)


_FILTERS = {1: ("iow", "ilo"), 2: ("hiow",), 3: ("dhiow",)}  # sorted letters of the dimensions


def filter_layout(text: str, dimensions: int) -> PackedLayout | None:
    """The layout of a packed filter of `dimensions` dimensions, in the order O, I, then space; None if it is not
    packed."""
    if text == NONE:
        return None
    layout = packed_layout(text)
    letters = "".join(sorted(re.match(r"[A-Za-z]+", layout.text)[0].lower()))  # type: ignore[index]
    if letters not in _FILTERS[dimensions]:
        space = {1: "w", 2: "hw", 3: "dhw"}[dimensions]
        allowed = f"such as OI{space}4i16o4i or O{space}I64o4i"
        raise BadInput(f"weight_layout={text} is not of a filter here", allowed=allowed)
    return layout
