"""The JSON types that files and messages may contain."""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias, Union

Json: TypeAlias = Union[bool, int, float, str, "list[Json]", "dict[str, Json]", None]
JsonObject: TypeAlias = "dict[str, Json]"


def canonical(value: object) -> str:
    """The canonical text of a JSON value: equal values have equal texts, and so equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: object, length: int = 64) -> str:
    """The SHA-256 of the canonical text, in hexadecimal, cut to `length` characters."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]
