"""The words after a command: an operator's name, its sizes (`MN=1024 K=2048`), and `t=` and `O=` for short.

Letters before `=` share the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepgen.operators import OPERATORS, Operator, gemm
from deepgen.vocabulary.errors import BadInput

# The sizes of an operator: the letter, the operator's own name for it, and whether it must be given.
_SIZES: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "gemm": {"M": ("m", True), "N": ("n", True), "K": ("k", True), "B": ("batch", False)},
}
_WHOLE_WORDS = {"batch": "B"}
# The short options: the least value and what they mean.
_SHORT = {"t": (1, "the number of trials, from 1 up"), "O": (0, "O=0 detaches, O=65536 stays in the foreground")}


@dataclass(frozen=True)
class Extras:
    """What words other than sizes asked for; None where they said nothing."""

    trials: int | None = None
    detach: bool | None = None


def parse(words: Sequence[str], **fields: Any) -> tuple[Operator, Extras]:
    """The operator that the words describe, with its other `fields`, and the rest of what they ask for."""
    if not words:
        raise BadInput("no operator is named", allowed=usage())
    name = known_operator(words[0])
    pairs: list[tuple[str, int]] = []
    short: dict[str, int] = {}
    for word in words[1:]:
        key, equals, text = word.partition("=")
        if not key or not equals:
            raise BadInput(f"{word!r} is not a word of the form LETTERS=SIZE", allowed=usage(name))
        if key not in _SHORT:
            pairs.append((key, _whole(word, text, 1, "a whole number from 1 up")))
            continue
        if key in short:
            raise BadInput(f"{word!r}: {key} is given twice", allowed="once")
        least, allowed = _SHORT[key]
        short[key] = _whole(word, text, least, allowed)
    extras = Extras(trials=short.get("t"), detach=short["O"] == 0 if "O" in short else None)
    return operator(name, pairs, **fields), extras


def operator(name: str, pairs: Iterable[tuple[str, int]], **fields: Any) -> Operator:
    """The operator of that name with sizes given as (letters, value), and its other fields, such as its dtype."""
    letters = _SIZES[known_operator(name)]
    sizes: dict[str, int] = {}
    for key, value in pairs:
        for letter in _WHOLE_WORDS.get(key, key):
            if letter not in letters:
                raise BadInput(f"{key}={value}: {name} has no size {letter!r}", allowed=usage(name))
            if letters[letter][0] in sizes:
                raise BadInput(f"{key}={value}: {letter} is given twice", allowed="each size once")
            sizes[letters[letter][0]] = value
    missing = [letter for letter, (field, needed) in letters.items() if needed and field not in sizes]
    if missing:
        raise BadInput(f"{name}: no value for {' and '.join(missing)}", allowed=usage(name))
    return gemm(**{**fields, **sizes})


def usage(name: str = "gemm") -> str:
    """How the words of an operator are written."""
    needed = [letter for letter, (_, must) in _SIZES[name].items() if must]
    apart, together = " ".join(f"{letter}=1024" for letter in needed), "".join(needed)
    return f"such as: {name} {apart}, or {name} {together}=1024; B=8 adds a batch"


def known_operator(name: str) -> str:
    if name not in OPERATORS or name not in _SIZES:
        raise BadInput(f"unknown operator {name!r}", allowed="one of " + ", ".join(_SIZES))
    return name


def _whole(word: str, text: str, least: int, allowed: str) -> int:
    # Eighteen digits are more than any machine holds, and keep a typing slip from becoming a huge number.
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= least):
        raise BadInput(f"{word!r}: {text!r} is not possible", allowed=allowed)
    return int(text)
