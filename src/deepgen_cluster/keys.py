"""Tables of a file, read key by key, so that errors name the place and what would be correct."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.vocabulary import BadInput

Check = Callable[[Any], Any]  # gives the value as it is used; None: not allowed


@dataclass(frozen=True)
class Kind:
    """What a key may hold."""

    check: Check
    allowed: str


def _count(least: int) -> Check:
    return lambda value: value if type(value) is int and value >= least else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value and "\n" not in value and "\0" not in value else None


def _folder(value: Any) -> str | None:
    word = _word(value)
    return word.rstrip("/") or "/" if word and word.startswith(("/", "~/")) else None


def _words(value: Any) -> tuple[str, ...] | None:
    good = isinstance(value, list) and value and all(_word(v) for v in value)
    return tuple(value) if good else None


def _devices(value: Any) -> tuple[int, ...] | None:
    good = isinstance(value, list) and value and all(type(v) is int and v >= 0 for v in value)
    return tuple(value) if good and len(set(value)) == len(value) else None


def _seconds(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < float("inf") else None


WORD = Kind(_word, "a word")
WORDS = Kind(_words, "a list of words, one or more")
FOLDER = Kind(_folder, "a folder's whole path, such as /home/me/deepgen")
COUNT = Kind(_count(1), "must be an integer of at least 1")
COUNT0 = Kind(_count(0), "a whole number from 0 up")
PORT = Kind(lambda v: v if type(v) is int and 0 < v < 65536 else None, "a port, 1 to 65535")
DEVICES = Kind(_devices, "a list of device numbers, each once, such as [0, 1]")
STRATEGY = Kind(lambda v: v if type(v) is int and v in (0, 1) else None, "0 or 1")
TABLE = Kind(lambda v: v if isinstance(v, dict) else None, "a table")
TABLES = Kind(lambda v: v if isinstance(v, list) and v and all(isinstance(t, dict) for t in v) else None, "tables")
SECONDS = Kind(_seconds, "a number of seconds above 0")


@dataclass(frozen=True)
class Table:
    """A table and its place, such as `tasks.json: workgroups[0].compiler`."""

    where: str
    items: Mapping[str, Any]
    keys: Mapping[str, Kind]

    def __post_init__(self) -> None:
        for key in self.items:
            if key not in self.keys:
                raise BadInput(f"unknown key {key!r}", where=self.where, allowed="one of " + ", ".join(self.keys))

    def need(self, key: str) -> Any:
        if key not in self.items:
            raise BadInput(f"key {key!r} is missing", where=self.where, allowed=self.keys[key].allowed)
        return self.get(key)

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self.items:
            return default
        value = self.keys[key].check(self.items[key])
        if value is None:
            # The value is shown, except where it might be a password.
            shown = "not that" if key == "password" else repr(self.items[key])[:60]
            raise BadInput(f"key {key!r} is {shown}", where=self.where, allowed=self.keys[key].allowed)
        return value

    def given(self, *keys: str) -> dict[str, Any]:
        """The keys that the file gives."""
        return {key: self.get(key) for key in keys if key in self.items}
