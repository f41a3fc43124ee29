"""Notices that a process was stopped from outside, as by Ctrl-Z or with its whole container.

Time limits keep counting meanwhile, and the kernel is not to blame for that.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

_GAP = 0.5  # seconds between two looks: so long only if this process stood still itself
_STOPPED = ("T", "t")


class Suspension:
    """Of this process or of another one, since now."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = time.monotonic()
        self.noticed = False

    def look(self) -> None:
        """To be called several times in each gap."""
        now = time.monotonic()
        self.noticed = self.noticed or now - self._looked > _GAP or _stopped(self._pid)
        self._looked = now


def _stopped(pid: int) -> bool:
    with suppress(OSError):
        # The name stands in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
    return False
