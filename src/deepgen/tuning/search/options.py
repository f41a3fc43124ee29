"""Options of strategies, as words: `library=lightgbm`, `population=100`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepgen.vocabulary import BadInput


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Each word a name and a value: true and false, whole numbers, numbers, else text."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise BadInput(f"{word!r} is not an option of a strategy", allowed="name=value")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
