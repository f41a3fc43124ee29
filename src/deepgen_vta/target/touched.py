"""Which instructions touched the places of the buffers last."""

from __future__ import annotations

import numpy as np

from deepgen_vta.target.chip import Vta
from deepgen_vta.target.program import Places


class Touched:
    """By which instruction of each module each place was last read and last written."""

    def __init__(self, target: Vta) -> None:
        self._target = target
        self._last: dict[tuple[str, str, bool], Places] = {}  # what is not here was never touched

    def last(self, module: str, buffer: str, places: Places, writes: bool) -> int:
        """The last instruction that must come before one that reads or writes these places; -1: none."""
        kinds = (False, True) if writes else (True,)
        found = (self._last.get((module, buffer, kind)) for kind in kinds)
        return max((int(one[places].max()) for one in found if one is not None), default=-1)

    def note(self, module: str, buffer: str, places: Places, writes: bool, number: int) -> None:
        if (module, buffer, writes) not in self._last:
            self._last[module, buffer, writes] = np.full(self._target.depth(buffer), -1)
        self._last[module, buffer, writes][places] = number
