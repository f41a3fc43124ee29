"""The words by which a command line or a config file describes an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepgen.vocabulary.errors import BadInput

MOST_DIGITS = 18  # more than any machine holds, and it keeps a typing slip from becoming a huge number
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Word:
    """One thing to say of an operator: `rows=4096`, `layout=nchw`.

    `kind` is size (a whole number from `least` up), number, choice, flag or dtype. A word without a default must be
    given. Sizes whose names are single capital letters may share a value: `MN=1024`.
    """

    name: str
    help: str
    kind: str = "size"
    default: Any = None
    needed: bool = False
    choices: tuple[str, ...] = ()
    least: int = 1
    aliases: tuple[str, ...] = ()

    def read(self, text: Any) -> Any:
        """The value that a text or a JSON value stands for. Raises BadInput."""
        value = {"size": self._size, "number": _number, "flag": _flag}.get(self.kind, self._choice)(text)
        if value is None:
            raise BadInput(f"{self.name} is {text!r}", allowed=self.allowed())
        return value

    def allowed(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return {"size": f"a whole number from {self.least} up", "number": "a number", "flag": "true or false"}[
            self.kind
        ]

    def _size(self, given: Any) -> int | None:
        if isinstance(given, str):
            good = given.isascii() and given.isdigit() and len(given) <= MOST_DIGITS
            given = int(given) if good else None
        good = isinstance(given, int) and not isinstance(given, bool) and self.least <= given < 10**MOST_DIGITS
        return int(given) if good else None

    def _choice(self, given: Any) -> str | None:
        return given if given in self.choices else None


def _number(given: Any) -> float | None:
    try:
        value = None if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        return None
    return value if value is not None and abs(value) < float("inf") else None


def _flag(given: Any) -> bool | None:
    if isinstance(given, bool):
        return given
    text = str(given).lower()
    return True if text in _TRUE else False if text in _FALSE else None


def usage(name: str, words: Sequence[Word]) -> str:
    """How the words of an operator are written, by example."""
    needed = [word for word in words if word.needed]
    apart = " ".join(f"{w.name}={w.choices[0] if w.choices else 1024}" for w in needed)
    letters = [w.name for w in needed if len(w.name) == 1 and w.name.isupper()]
    together = f", or {name} {''.join(letters)}=1024" if len(letters) == len(needed) > 1 else ""
    return f"such as: {name} {apart}{together}"
