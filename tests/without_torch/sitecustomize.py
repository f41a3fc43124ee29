"""Python reads this when it starts, where this folder is in PYTHONPATH: there, torch is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class Others(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "torch" else super().find_spec(fullname, path, target)


sys.meta_path[:] = [Others if finder is PathFinder else finder for finder in sys.meta_path]
