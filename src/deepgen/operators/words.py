"""The parameters that describe an operator on the command line or in a config file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Integral
from typing import Any

from deepgen.vocabulary.dtypes import DTYPES, our_name
from deepgen.vocabulary.errors import BadInput

NONE = "none"
# Format of the inputs -> formats of the sums and of the result.
FORMATS = {"f32": ("f32", "f32"), "f64": ("f64", "f64"), "f16": ("f32", "f16"), "bf16": ("f32", "bf16"),
           "i8": ("i32", "i32")}  # fmt: skip
MOST_DIGITS = 18  # more than any machine can hold; it catches typing errors
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Word:
    """A parameter of an operator on the command line: `rows=4096`, `layout=nchw`.

    `kind` is size (an integer of at least `least`), number, flag or choice (one of `choices`, or any text if there are
    none; capitals and other libraries' names of dtypes are understood). A word that is not `needed` may be omitted;
    `default` describes in the help what happens then. Sizes whose names are single capital letters may share a value:
    `MN=1024`. A size with `sides` may have a number for each of these dimensions, `k=1x7` or k=(1, 7); equal ones are
    one number. A word that is `later` was added when there were already studies without it, so its default is not
    written. A `usual` value stands in examples, also of a word that is not needed.
    """

    name: str
    help: str
    kind: str = "size"
    default: Any = None
    needed: bool = False
    choices: tuple[str, ...] = ()
    least: int = 1
    aliases: tuple[str, ...] = ()
    sides: tuple[str, ...] = ()
    later: bool = False
    usual: int | None = None

    @property
    def letter(self) -> bool:
        """Whether it may share its value with others."""
        return self.kind == "size" and len(self.name) == 1 and self.name.isupper()

    def read(self, text: str) -> Any:
        """The value that a text stands for. Raises BadInput."""
        kinds = {"size": self._sized if self.sides else _whole, "number": _number, "flag": _flag}
        return self.check(kinds[self.kind](text) if self.kind in kinds else text, text)

    def _sized(self, text: str) -> Any:
        """`1x7` as one number per dimension."""
        sizes = tuple(map(_whole, text.split("x")))
        return sizes[0] if len(sizes) == 1 else sizes

    def check(self, value: Any, shown: Any = None) -> Any:
        """The value itself, if it is valid for this word. Raises BadInput, which shows `shown`."""
        meant = self._choice(value) if self.choices else self._one(value) if self.sides else value
        if not self._fits(meant):
            raise BadInput(f"{self.name} is {value if shown is None else shown!r}", allowed=self.allowed())
        return meant

    def _one(self, value: Any) -> Any:
        """Equal numbers for all dimensions as one; text as in files."""
        sizes = self._sized(value) if isinstance(value, str) else value
        if not isinstance(sizes, (list, tuple)):
            return plain(sizes)
        sizes = tuple(map(plain, sizes))
        return sizes[0] if len(sizes) == len(self.sides) and len(set(sizes)) == 1 else sizes

    def _choice(self, value: Any) -> Any:
        """The choice that a text or an integer stands for: `NT` for nt, `float32` for f32, 1 for "1"."""
        value = str(value) if type(value) is int else value
        spellings = (value, value.lower(), our_name(value)) if isinstance(value, str) else ()
        return next((one for one in spellings if one in self.choices), value)

    def allowed(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        several = "x".join(str(n + 1) for n in range(len(self.sides)))
        each = f", or one for each of {', '.join(self.sides)}: {several}" if len(self.sides) > 1 else ""
        size = f"must be an integer of at least {self.least}{each}"
        return {"size": size, "number": "a number", "flag": "true or false"}.get(self.kind, "a text")

    def example(self, size: int = 1024) -> str:
        value = self.choices[0] if self.choices else self.default or self.usual or (3 if self.sides else size)
        return f"{self.name}={value}"

    def _fits(self, value: Any) -> bool:
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "size":
            sizes = value if isinstance(value, tuple) and len(value) == len(self.sides) else (value,)
            return all(type(size) is int and self.least <= size < 10**MOST_DIGITS for size in sizes)
        if self.kind == "number":
            return type(value) in (int, float) and abs(value) < float("inf")
        return value in self.choices if self.choices else isinstance(value, str) and bool(value)


def plain(size: Any) -> Any:
    """An integer of another library as a Python int; anything else unchanged."""
    return int(size) if isinstance(size, Integral) and not isinstance(size, bool) else size


def of_sides(word: Word, value: Any) -> dict[str, int]:
    """The sizes that a value stands for, by name: k, or k_h and k_w if they differ."""
    if not isinstance(value, tuple):
        return {word.name: value}
    return {f"{word.name}_{side}": size for side, size in zip(word.sides, value, strict=True)}


def shown(value: Any) -> Any:
    """A value as it is written: 1x7 if there is one number per dimension."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else value


def words_of(operator: type[Any]) -> Mapping[str, Word]:
    """The parameters of an operator by name: its own `words`, or else the fields of its dataclass."""
    return {word.name: word for word in operator.words or _from_fields(operator)}


def usage(name: str, words: Iterable[Word]) -> str:
    """An example of how an operator's parameters are written."""
    words = list(words)
    apart = " ".join(word.example(_example_size(words)) for word in words if word.needed or word.usual)
    written = ", or ".join(f"{name} {example}".rstrip() for example in dict.fromkeys((apart, short_example(words))))
    others = ", ".join(word.name for word in words if not (word.needed or word.usual))
    return f"such as: {written}" + (f"; it also takes {others}" if others else "")


def short_example(words: Iterable[Word]) -> str:
    """All needed parameters, in as few words as possible."""
    needed = [word for word in words if word.needed or word.usual]
    size, letters = _example_size(needed), dict[int, str]()
    for word in needed:
        if word.letter:
            letters[word.usual or size] = letters.get(word.usual or size, "") + word.name
    others = (word.example(size) for word in needed if not word.letter)
    return " ".join([*(f"{names}={value}" for value, names in letters.items()), *others])


def _example_size(words: Iterable[Word]) -> int:
    """Tensors of many dimensions are smaller along each."""
    return 1024 if sum(word.needed and not word.usual for word in words) <= 3 else 64


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: `M, N and K`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _from_fields(operator: type[Any]) -> list[Word]:
    """A word for every field, except lists and tables."""
    kinds = {"int": "size", "float": "number", "bool": "flag", "str": "choice"}
    words = []
    for field in fields(operator):
        kind = kinds.get(field.type if isinstance(field.type, str) else getattr(field.type, "__name__", ""))
        if kind is not None:
            needed = field.default is MISSING and field.default_factory is MISSING
            choices = tuple(DTYPES) if field.name == "dtype" else ()
            default = None if field.default is MISSING else field.default
            words.append(Word(field.name, "", kind, default, needed, choices))
    return words


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _flag(text: str) -> bool | None:
    return True if text.lower() in _TRUE else False if text.lower() in _FALSE else None
