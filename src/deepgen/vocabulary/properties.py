"""What a kernel does at the edges of what it promises: the same words in finals, in libraries and on pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from deepgen.vocabulary.codec import Serializable, coded

_SPECIAL = {"nan": "NaN", "inf": "infinities", "denormals": "denormal numbers"}
KEPT, LOST, FLUSHED = "kept", "lost", "flushed"
ANY, ONE = "any number at once", "one at a time"


@dataclass(frozen=True)
class Properties(Serializable):
    """Each in a word, and empty where it was not tried."""

    nan: str = field(default="", metadata=coded(omit=True))  # kept as the reference keeps them, or lost
    inf: str = field(default="", metadata=coded(omit=True))  # likewise
    denormals: str = field(default="", metadata=coded(omit=True))  # kept or flushed
    threads: str = field(default="", metadata=coded(omit=True))  # how many may call it; ONE: calls take a lock
    alignment: str = field(default="", metadata=coded(omit=True))  # "element", or the bytes that addresses need

    usual: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "nan": (KEPT,), "inf": (KEPT,), "denormals": (KEPT,), "threads": (ANY,), "alignment": ("element", "16 bytes"),
    }  # fmt: skip

    def loses(self) -> list[str]:
        """Special numbers that it does not keep as the reference does, in words."""
        marks = self.marks()
        return [words for name, words in _SPECIAL.items() if name in marks]

    def marks(self) -> dict[str, str]:
        """What a user has to know: the properties that are not as those of any plain kernel."""
        values = {one.name: str(getattr(self, one.name)) for one in fields(self)}
        return {name: value for name, value in values.items() if value and value not in self.usual[name]}
