"""The words after a command: an operator's name, its parameters (`rows=4096`), and the short forms `t=` and `O=`.

Letters before `=` share the value: `MN=1024 K=2048`. Each operator defines its own parameters (`operators/words.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepgen.operators import OPERATORS, Operator, Word, words_of
from deepgen.operators.expr.operator import ExpressionOperator, as_operator, is_expression
from deepgen.operators.words import listed, usage
from deepgen.vocabulary import finding
from deepgen.vocabulary.errors import BadInput

if TYPE_CHECKING:
    from deepgen.kernels.own import OwnKernel

# The short options, unless the operator has a parameter of that name; their values are integers.
_SHORT = {
    "t": Word("t", "the number of trials, at least 1"),
    "O": Word("O", "O=0 detaches, O=65536 stays in the foreground", least=0),
}
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".hip")


@dataclass(frozen=True)
class Extras:
    """Requests in the words that do not concern the operator; None if not given."""

    trials: int | None = None
    detach: bool | None = None


def parse(words: Sequence[str], held: OwnKernel | None = None, /, **options: Any) -> tuple[Operator, Extras]:
    """The operator described by the words and by the `options` named like its parameters, and the other requests.

    `held` is the kernel of the file that the first word names, if it was already read.
    """
    if not words:
        raise BadInput("no operator was given", allowed="one of " + ", ".join(OPERATORS.names()))
    named = held or _held_in(words[0])
    if named is None and Path(words[0]).suffix in _SOURCES:
        raise BadInput(f"{words[0]} is a source file", allowed="a Python file that describes its kernel with dg.kernel")
    kind = OPERATORS.get(words[0]) if named is None else _kind_of(named)
    defined, fields = words_of(kind), _Fields(kind)
    short: dict[str, int] = {}
    for word in words[1:]:
        key, equals, text = word.partition("=")
        if not key or not equals:
            what = f"{word!r} is not of the form NAME=VALUE"
            raise BadInput(what, allowed=usage(kind.name, defined.values()))
        if key in _SHORT and key not in defined:
            if key in short:
                raise BadInput(f"{word!r}: {key} is given twice", allowed="once")
            short[key] = _read(_SHORT[key], text, word, allowed=_SHORT[key].help)
            continue
        fields.say(key, text, partial(_read, text=text, word=word))
    for name, value in options.items():
        fields.option(name, value)
    extras = Extras(trials=short.get("t"), detach=short["O"] == 0 if "O" in short else None)
    return (named if isinstance(named, Operator) else fields.operator()), extras


def another_shape(of: Operator, text: str) -> Operator:
    """The operator with some parameters replaced: `M=64`, or `M=64 N=128`."""
    fields = _Fields(type(of))
    for word in text.split():
        key, _, value = word.partition("=")
        fields.say(key, value, partial(_read, text=value, word=word))
    return type(of).make({**of.parameters(), **fields.values})


def operator(kind: type[Operator], *tables: Mapping[str, Any]) -> Operator:
    """The operator that the tables of a file describe: parameters and their values."""
    fields = _Fields(kind)
    for table in tables:
        for key, value in table.items():
            fields.say(key, value, partial(_check, value=value, key=key))
    return fields.operator()


def find_operator(word: str) -> type[Operator]:
    """The operator class that a word names."""
    held = _held_in(word)
    return OPERATORS.get(word) if held is None else _kind_of(held)


def _kind_of(held: OwnKernel | ExpressionOperator) -> type[Operator]:
    return type(held) if isinstance(held, Operator) else held.kind


def _held_in(word: str) -> OwnKernel | ExpressionOperator | None:
    """What a file holds to be tuned: the kernel of `vadd.py` or of a T1 file, or the kernel or expression
    `vadd.py:name`.

    None if the word names no such file.
    """
    if word.endswith(".json") and Path(word).is_file():
        from deepgen.frontends import formats

        return formats.kernel_of(formats.opened(Path(word)))
    if not names_code(word):
        return None
    from deepgen.kernels.own import OwnKernel

    file, colon, attribute = word.rpartition(":") if not word.endswith(".py") else (word, "", "")
    held = vars(finding.module_at(Path(file)))
    kernels = {name: value for name, value in held.items() if isinstance(value, OwnKernel)}
    expressions = {name: value for name, value in held.items() if is_expression(value)}
    candidates = {**kernels, **expressions}
    if colon and attribute not in candidates:
        what = f"{file} has no kernel or expression {attribute!r}"
        raise BadInput(what, allowed="one of " + (", ".join(candidates) or "none"))
    if not colon and not kernels and len(last := _unread(expressions)) == 1:
        colon, attribute = ":", last[0]
    if not colon and len(kernels) != 1:
        what = f"{file} has {len(kernels) or 'no'} kernels"
        named = ", ".join(f"{file}:{name}" for name in candidates)
        raise BadInput(what, allowed=f"one of {named}" if candidates else "dg.kernel, or dg.compute")
    if not colon:
        return next(iter(kernels.values()))
    return kernels[attribute] if attribute in kernels else as_operator(expressions[attribute])


def _unread(expressions: Mapping[str, Any]) -> list[str]:
    """The expressions whose results no other expression reads."""
    whole = {name: as_operator(value).expression() for name, value in expressions.items()}
    read = {stage.name for one in whole.values() for stage in one.stages if stage.name not in one.outputs}
    return [name for name, one in whole.items() if read.isdisjoint(one.outputs)]


def names_code(word: str) -> bool:
    """Whether a word refers to the user's own code: `vadd.py`, or `vadd.py:kernel` for one object in it."""
    return word.endswith(".py") or ".py:" in word


class _Fields:
    """The parameters given so far; rejects unknown ones and duplicates."""

    def __init__(self, kind: type[Operator]) -> None:
        self.kind, self.values = kind, dict[str, Any]()
        self._defined = words_of(kind)
        self._spelled = {name: word for word in self._defined.values() for name in (word.name, *word.aliases)}
        self._letters = {name: word for name, word in self._defined.items() if word.letter}
        for names in (self._spelled, self._letters):  # case-insensitive, unless that is ambiguous
            folded = Counter(map(str.lower, names))
            names |= {
                other: w for n, w in [*names.items()] for other in (n.lower(), n.upper()) if folded[n.lower()] == 1
            }

    def say(self, key: str, value: Any, read: Callable[[Word], Any]) -> None:
        """Handle `key=value`; `read` converts the value for a parameter, or raises BadInput."""
        for word in self._meant(key, value):
            if word.name in self.values:
                raise BadInput(f"{key}={value}: {word.name} is given twice", allowed="give each parameter once")
            self.values[word.name] = read(word)

    def _meant(self, key: str, value: Any) -> list[Word]:
        """One parameter by its name, or one for each letter."""
        if key in self._spelled:
            return [self._spelled[key]]
        if not key.isalpha() or len(key) > sum(word.letter for word in self._defined.values()):
            raise BadInput(f"{key}={value}: {self.kind.name} has no parameter {key!r}", allowed=self._usage())
        for letter in key:
            if letter not in self._letters:
                raise BadInput(f"{key}={value}: {self.kind.name} has no size {letter!r}", allowed=self._usage())
        return [self._letters[letter] for letter in key]

    def option(self, name: str, value: Any) -> None:
        """Handle the option `--name`."""
        if name not in self._defined:
            its = ", ".join(self._defined) or "none"
            raise BadInput(f"{self.kind.name} has no {name.replace('_', ' ')}", allowed=f"its parameters: {its}")
        if name in self.values:
            raise BadInput(f"{name} is given twice, as NAME=VALUE and as an option", allowed="give each parameter once")
        self.values[name] = self._defined[name].check(value)

    def operator(self) -> Operator:
        missing = [name for name, word in self._defined.items() if word.needed and name not in self.values]
        if missing:
            raise BadInput(f"{self.kind.name} needs a value for {listed(missing)}", allowed=self._usage())
        return self.kind.make(self.values)

    def _usage(self) -> str:
        return usage(self.kind.name, self._defined.values()) if self._defined else "it has no parameters"


def _read(meant: Word, text: str, word: str, allowed: str | None = None) -> Any:
    try:
        return meant.read(text)
    except BadInput as error:
        raise BadInput(f"{word!r}: invalid value {text!r}", allowed=allowed or error.allowed) from error


def _check(meant: Word, value: Any, key: str) -> Any:
    try:
        return meant.check(value)
    except BadInput as error:
        raise BadInput(f"{key} is {value!r}", allowed=error.allowed) from error
