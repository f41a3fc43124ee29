"""Only for bundles: adds features of Python 3.10 to Python 3.8 and 3.9, which offline machines may have."""

from __future__ import annotations

import builtins
import dataclasses
import sys
import typing
from typing import Any


def bring_up_to_date() -> None:
    """Call this before importing anything else, and only in processes that do nothing but measure."""
    if sys.version_info >= (3, 10):  # noqa: UP036  this file is for older ones
        return
    plain_zip, plain_dataclass = builtins.zip, dataclasses.dataclass

    def strict_zip(*iterables: Any, strict: bool = False) -> Any:
        if strict:
            iterables = tuple(list(i) for i in iterables)
            if len({len(i) for i in iterables}) > 1:
                raise ValueError("zip() arguments have different lengths")
        return plain_zip(*iterables)

    def dataclass_of_any_version(*classes: Any, **options: Any) -> Any:
        return plain_dataclass(*classes, **{k: v for k, v in options.items() if k not in ("slots", "kw_only")})

    typing.TypeAlias = Any
    builtins.zip = strict_zip  # type: ignore[misc]
    dataclasses.dataclass = dataclass_of_any_version
