"""Python functions of a config as expressions: spaces and launches must be data that other processes can read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

from deepgen.extend import BadInput, Expr, knob_ref

Knobs: TypeAlias = "Mapping[str, Sequence[Any]]"
MOST_ROWS = 100_000  # of a lookup table: about a second of calls


def expression_of(function: Callable[..., Any], knobs: Knobs, what: str) -> str:
    """An expression equal to the function for every config. `what` names it in messages."""
    traced = _traced(function, knobs)
    return _tabulated(function, knobs, what) if traced is None else traced


def called(function: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    """The function's value: called with a dictionary, or with parameters named like knobs."""
    names = _parameters(function)
    if names and all(name in config for name in names):
        return function(**{name: config[name] for name in names})
    return function(config)


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _traced(function: Callable[..., Any], knobs: Knobs) -> str | None:
    """The function's result for expressions in place of numbers; None if it needs numbers."""
    try:
        expression = called(function, {name: knob_ref(name) for name in knobs})
    except Exception:  # any error of the user's function on values that are not numbers
        return None
    return str(expression) if isinstance(expression, Expr) else None


def _tabulated(function: Callable[..., Any], knobs: Knobs, what: str) -> str:
    """A lookup table over the knobs that the function reads."""
    read: set[str] = set()
    while True:
        names = [name for name in knobs if name in read]
        if prod(len(knobs[name]) for name in names) > MOST_ROWS:
            allowed = (
                f"use a function of fewer parameters, or an expression as text: {' '.join(names)} have too many values"
            )
            raise BadInput(f"{what} cannot be tabulated", allowed=allowed)
        rows = _rows(function, knobs, names, read, what)
        if rows is not None:
            break
    if not names:
        return repr(rows[()])
    if len(names) == 1:
        return f"table({names[0]}, {{{', '.join(f'{key[0]!r}: {value!r}' for key, value in rows.items())}}})"
    entries = ", ".join(f"{key!r}: {value!r}" for key, value in rows.items())
    return f"table([{', '.join(names)}], {{{entries}}})"


def _rows(
    function: Callable[..., Any], knobs: Knobs, names: Sequence[str], read: set[str], what: str
) -> dict[tuple[Any, ...], Any] | None:
    """The function's value for all values of the named knobs; None if it read another one, which is then in `read`."""
    first = {name: values[0] for name, values in knobs.items()}
    rows = {}
    for key in product(*(knobs[name] for name in names)):
        config = _Watched({**first, **dict(zip(names, key, strict=True))}, read)
        try:
            value = called(function, config)
        except Exception as error:
            raise BadInput(
                f"{what} raised {type(error).__name__}: {error}", allowed="a value for every config"
            ) from error
        if len(read) > len(names):
            return None
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, (bool, int, float, str)):
            raise BadInput(f"{what} gave {value!r}", allowed="a number or a string")
        rows[key] = int(value) if isinstance(value, bool) else value
    return rows


class _Watched(dict[str, Any]):
    """A config that records which entries are read."""

    def __init__(self, config: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(config)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        if name in self:
            self._read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def _all(self) -> None:
        self._read.update(super().keys())

    def __iter__(self) -> Iterator[str]:
        self._all()
        return super().__iter__()

    def keys(self) -> Any:
        self._all()
        return super().keys()

    def values(self) -> Any:
        self._all()
        return super().values()

    def items(self) -> Any:
        self._all()
        return super().items()
