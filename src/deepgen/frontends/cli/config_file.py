"""Tuning config files in TOML or JSON: what to tune, on which target, which part of the space and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from deepgen import targets
from deepgen.frontends.cli import words
from deepgen.frontends.cli.completion import EVERY_FAMILY
from deepgen.frontends.cli.options import IN_FILES, OptionSpec
from deepgen.frontends.formats import Document, FileFormat, TuningFile
from deepgen.generators import FAMILIES
from deepgen.operators import OPERATORS, Operator, words_of
from deepgen.operators.words import short_example
from deepgen.run import counters as counter_names
from deepgen.tuning import search
from deepgen.vocabulary.errors import BadInput

_Check: TypeAlias = "Callable[[Any], object]"  # raises BadInput
WHAT = ("operator", "shapes")
RUN = tuple(dict.fromkeys(option.key.partition(".")[0] for option in IN_FILES))
CONTENT = f"an object with {', '.join(WHAT)}, the operator's parameters, {', '.join(RUN)}"


class ConfigFile(FileFormat):
    """deepgen's own format. It is tried last, and reports what the file lacks."""

    def claims(self, data: Mapping[str, Any]) -> bool:
        return True

    def tuning(self, document: Document, space_strategy: int) -> TuningFile:
        return read(document)


@dataclass(frozen=True)
class _Table:
    """A table of the file, and its location for messages."""

    where: str
    items: Mapping[str, Any]
    prefix: str = ""

    def only(self, *keys: str) -> _Table:
        """Raise BadInput for any other key."""
        for key in self.items:
            if key not in keys:
                allowed = "one of " + ", ".join(self.prefix + k for k in keys)
                raise BadInput(f"unknown key {self.prefix}{key}", where=self.where, allowed=allowed)
        return self

    def get(self, key: str, convert: Callable[[Any], Any], allowed: str, check: _Check | None = None) -> Any:
        """The value of a key, converted (None: not possible) and checked; `check` raises its own BadInput."""
        if key not in self.items:
            return None
        value = convert(self.items[key])
        if value is None:
            raise BadInput(f"{self.prefix}{key} is {self.items[key]!r}", where=self.where, allowed=allowed)
        try:
            if check is not None:
                check(value)
        except BadInput as error:
            raise BadInput(f"{self.prefix}{key}: {error.what}", where=self.where, allowed=error.allowed) from error
        return value


def read(document: Document) -> TuningFile:
    """The file's content. All keys and values are checked except knobs, which only the space can check."""
    where = document.name
    if not isinstance(document.data, dict):
        raise BadInput("is not an object", where=where, allowed=CONTENT)
    top = _Table(where, document.data)
    operator = _operator_kind(top)
    shared = [word for word in words_of(operator) if word not in RUN]
    top.only(*WHAT, *shared, *RUN)
    tables = {"": top, "budget": _budget(top)}
    operators = _operators(top, operator, shared)
    asked: dict[str, Any] = {"one_kernel": False, "knobs": {}}
    for option in IN_FILES:
        table, _, key = option.key.rpartition(".")
        convert = partial(_value, option, document.path.parent)
        allowed = option.allowed or counter_names.ALLOWED
        value = tables[table].get(key, convert, allowed, _CHECKS.get(option.name))
        if value is not None:
            asked[option.name] = value
    for name, values in asked["knobs"].items():
        if not isinstance(values, list) or not values:
            raise BadInput(f"knobs.{name} is {values!r}", where=where, allowed="a list of at least one value")
    return TuningFile(document.path, operators, **asked)


def _budget(top: _Table) -> _Table:
    keys = [option.key.partition(".")[2] for option in IN_FILES if option.key.startswith("budget.")]
    items = top.get("budget", lambda value: value if isinstance(value, dict) else None, "a table of trials and time")
    return _Table(top.where, items or {}, "budget.").only(*keys)


def _check_family(name: str) -> None:
    if name != EVERY_FAMILY:
        FAMILIES.get(name)


_CHECKS: Mapping[str, _Check] = {
    "target": targets.resolve, "family": _check_family, "strategy": search.check, "counters": counter_names.requested,
}  # fmt: skip


def _value(option: OptionSpec, folder: Path, value: Any) -> Any:
    """The value of an option's key, converted to the option's type; None if it is invalid."""
    if option.kind in (bool, dict):
        return value if isinstance(value, option.kind) else None
    if option.kind is float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < inf
        return float(value) if good else None
    if option.kind is int:
        return value if type(value) is int and value >= (option.least or 0) else None
    if option.name == "counters" and isinstance(value, list):
        return value or None
    # As in the settings file, a relative path is relative to the folder of the file.
    return folder / Path(value).expanduser() if option.kind is Path and _text(value) else _text(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _operator_kind(top: _Table) -> type[Operator]:
    for key in WHAT:
        if key not in top.items:
            first = OPERATORS.own[0]
            example = f'such as operator = "{first}" and shapes = {_example(OPERATORS.get(first))}'
            raise BadInput(f"{key} is not given", where=top.where, allowed=example)
    name = top.get("operator", _text, "an operator's name", words.find_operator)
    return words.find_operator(name)


def _operators(top: _Table, kind: type[Operator], shared: Sequence[str]) -> tuple[Operator, ...]:
    """One operator per shape, with the parameters that the file sets for all of them."""
    common = {name: top.items[name] for name in shared if name in top.items}
    listed = top.items["shapes"]
    shapes = listed if isinstance(listed, list) else [listed]
    allowed = f"a table of sizes, such as {_example(kind)}"
    if not shapes:
        raise BadInput("shapes is empty", where=top.where, allowed=allowed)
    operators = []
    for i, shape in enumerate(shapes):
        where = f"{top.where}: shapes[{i}]"
        if not isinstance(shape, dict):
            raise BadInput(f"is {shape!r}", where=where, allowed=allowed)
        try:
            operators.append(words.operator(kind, common, shape))
        except BadInput as error:
            raise BadInput(error.what, where=where, allowed=error.allowed) from error
    return tuple(operators)


def _example(kind: type[Operator]) -> str:
    """An example shape in TOML."""
    example = short_example(words_of(kind).values()).split()
    return "{ " + ", ".join(word.replace("=", " = ") for word in example) + " }"
