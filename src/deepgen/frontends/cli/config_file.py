"""Tuning config files: what to tune, where, how much of the space and for how long, in TOML or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen import targets
from deepgen.frontends.cli import words
from deepgen.frontends.cli.completion import EVERY_FAMILY
from deepgen.generators import FAMILIES
from deepgen.operators import OPERATORS, Operator, words_of
from deepgen.operators.words import short_example
from deepgen.run.counters import base as counter_names
from deepgen.tuning import search
from deepgen.tuning.formats import Document, FileFormat, TuningFile
from deepgen.vocabulary.errors import BadInput

WHAT = ("operator", "shapes")
RUN = (
    "target",
    "family",
    "threads",
    "one_kernel",
    "knobs",
    "budget",
    "seed",
    "strategy",
    "keep_top",
    "counters",
    "out",
)
OF_A_RUN = ("trials", "time_budget", "seed", "strategy", "keep_top", "counters", "out")  # as Request calls them
CONTENT = f"an object with {', '.join(WHAT)}, the operator's words, {', '.join(RUN)}"


class ConfigFile(FileFormat):
    """deepgen's own. It is asked last, and reports what the file lacks."""

    def claims(self, data: Mapping[str, Any]) -> bool:
        return True

    def tuning(self, document: Document, space_strategy: int) -> TuningFile:
        return read(document)


@dataclass(frozen=True)
class _Table:
    """A table of the file, and where it stands, for the messages."""

    where: str
    items: Mapping[str, Any]
    prefix: str = ""

    def only(self, *keys: str) -> _Table:
        """Refuse any other key."""
        for key in self.items:
            if key not in keys:
                allowed = "one of " + ", ".join(self.prefix + k for k in keys)
                raise BadInput(f"unknown key {self.prefix}{key}", where=self.where, allowed=allowed)
        return self

    def get(
        self,
        key: str,
        convert: Callable[[Any], Any],
        allowed: str,
        *,
        default: Any = None,
        check: Callable[[Any], object] | None = None,
    ) -> Any:
        """The value of a key, converted (None: not possible) and checked; `check` raises its own BadInput."""
        if key not in self.items:
            return default
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
    """The file's content, every key and value checked but for the knobs, which only the space can judge."""
    where = document.name
    if not isinstance(document.data, dict):
        raise BadInput("holds no object", where=where, allowed=CONTENT)
    top = _Table(where, document.data)
    operator = _operator_kind(top)
    shared = [word for word in words_of(operator) if word not in RUN]
    top.only(*WHAT, *shared, *RUN)
    budget = _Table(where, top.get("budget", _table, "a table of trials and time", default={}), "budget.")
    budget.only("trials", "time")
    return TuningFile(
        file=document.path,
        operators=_operators(top, operator, shared),
        one_kernel=top.get("one_kernel", lambda v: v if isinstance(v, bool) else None, "true or false", default=False),
        target=top.get("target", _word, "the name of a target, such as x86:native", check=targets.resolve),
        family=top.get("family", _word, "a family's name, or all", check=_check_family),
        threads=top.get("threads", _whole, "an integer of at least 1"),
        knobs=_knobs(top),
        trials=budget.get("trials", _whole, "must be an integer of at least 1"),
        time_budget=budget.get("time", _seconds, "seconds, a number above 0"),
        seed=top.get("seed", _seed, "a whole number from 0 up"),
        strategy=top.get("strategy", _word, "a strategy's name", check=search.check),
        keep_top=top.get("keep_top", _whole, "must be an integer of at least 1"),
        counters=top.get("counters", _words, counter_names.ALLOWED, check=counter_names.requested),
        # As in the settings file, a relative path is relative to the file that names it.
        out=top.get("out", lambda v: document.path.parent / Path(v).expanduser() if _word(v) else None, "a folder"),
    )


def _operator_kind(top: _Table) -> type[Operator]:
    for key in WHAT:
        if key not in top.items:
            first = OPERATORS.own[0]
            example = f'such as operator = "{first}" and shapes = {_example(OPERATORS.get(first))}'
            raise BadInput(f"{key} is not given", where=top.where, allowed=example)
    name: str = top.get("operator", _word, "an operator's name", check=words.find_operator)
    return words.find_operator(name)


def _operators(top: _Table, kind: type[Operator], shared: Sequence[str]) -> tuple[Operator, ...]:
    """One for each shape, with the words that the file says of all of them."""
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
    """A shape as TOML writes it."""
    example = short_example(words_of(kind).values()).split()
    return "{ " + ", ".join(word.replace("=", " = ") for word in example) + " }"


def _check_family(name: str) -> None:
    if name != EVERY_FAMILY:
        FAMILIES.get(name)


def _knobs(top: _Table) -> dict[str, list[Any]]:
    table = top.get("knobs", _table, "a table: each knob with the values it may take", default={})
    for name, values in table.items():
        if not isinstance(values, list) or not values:
            raise BadInput(f"knobs.{name} is {values!r}", where=top.where, allowed="a list of one value or more")
    return dict(table)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _words(value: Any) -> str | list[Any] | None:
    return value if isinstance(value, (str, list)) and value else None


def _table(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _seed(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(value: Any) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if good else None
