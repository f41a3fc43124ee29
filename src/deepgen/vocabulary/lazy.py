"""Lazy imports: names of a package that are imported on first use, so that importing the package stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`. `names`: for each module, its names separated by spaces.

    Type checkers and editors get the same names from imports under TYPE_CHECKING, and `__all__`.
    """
    where = {name: module for module, listed in names.items() for name in listed.split()}

    def __getattr__(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(where[name], package), name)

    def __dir__() -> list[str]:
        return sorted({*vars(import_module(package)), *where})

    return __getattr__, __dir__
