"""Studies: the tuner's loop, its journal, and the finals that choose the winner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepgen.tuning.progress import Progress
    from deepgen.tuning.request import Request
    from deepgen.tuning.study.best import Best
    from deepgen.tuning.study.study import Study
    from deepgen.tuning.tuner import tune

# Imported when first used: reading a journal must not wait for everything that tuning needs.
_WHERE = {"Best": "study.best", "Progress": "progress", "Request": "request", "Study": "study.study", "tune": "tuner"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'deepgen.tuning' has no attribute {name!r}")
    return getattr(import_module(f"deepgen.tuning.{_WHERE[name]}"), name)


__all__ = ["Best", "Progress", "Request", "Study", "tune"]
