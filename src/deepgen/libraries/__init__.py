"""Libraries: one folder with the winners of many studies, and the choice of which to use for a shape."""

from __future__ import annotations

from deepgen.libraries.choice import Choice, NotServed
from deepgen.libraries.entry import Entry, Timed
from deepgen.libraries.winners import Library, library

__all__ = ["Choice", "Entry", "Library", "NotServed", "Timed", "library"]
