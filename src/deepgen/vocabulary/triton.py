"""What a Triton kernel is compiled with: the types of its parameters, its constants and options. A kernel's flags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject

# What is known of a parameter's value: a multiple of 16; a tensor of less than 2 GB.
DIVISIBLE, NEAR = "divisible", "near"
_VERSION, _KEY, _ENTRY = "--triton=", "--key=", "--entry="
_PARAMETER, _CONSTANT, _OPTION = "--parameter=", "--constant=", "--option="


@dataclass(frozen=True)
class TritonUnit:
    """`version` is the compiler's, `key` Triton's own digest of the function and of all that it calls."""

    version: str
    key: str
    entry: str
    parameters: Mapping[str, Sequence[str]]  # in their order: the type, such as *fp32, then what is known of the value
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def flags(self) -> tuple[str, ...]:
        return (
            _VERSION + self.version,
            _KEY + self.key,
            _ENTRY + self.entry,
            *(f"{_PARAMETER}{name}:{json.dumps(list(told))}" for name, told in self.parameters.items()),
            *(f"{_CONSTANT}{name}:{json.dumps(value)}" for name, value in self.constants.items()),
            *(f"{_OPTION}{name}:{json.dumps(value)}" for name, value in self.options.items()),
        )

    def to_json(self) -> JsonObject:
        return {
            "entry": self.entry,
            "parameters": {name: list(told) for name, told in self.parameters.items()},
            "constants": dict(self.constants),
            "options": dict(self.options),
        }


def from_flags(flags: Sequence[str]) -> TritonUnit:
    """Raises BadInput where they are no flags of a Triton kernel."""
    try:
        return TritonUnit(
            version=_only(flags, _VERSION),
            key=_only(flags, _KEY),
            entry=_only(flags, _ENTRY),
            parameters=_named(flags, _PARAMETER),
            constants=_named(flags, _CONSTANT),
            options=_named(flags, _OPTION),
        )
    except (StopIteration, ValueError) as error:
        raise BadInput("a Triton kernel lacks what it is compiled with", allowed="a kernel from `dg.kernel`") from error


def _only(flags: Sequence[str], kind: str) -> str:
    return next(flag[len(kind) :] for flag in flags if flag.startswith(kind))


def _named(flags: Sequence[str], kind: str) -> dict[str, Any]:
    pairs = (flag[len(kind) :].partition(":") for flag in flags if flag.startswith(kind))
    return {name: json.loads(value) for name, _, value in pairs}
