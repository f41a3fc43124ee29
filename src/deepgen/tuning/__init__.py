"""Studies: the tuner's loop, its journal, and the finals that choose the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepgen.vocabulary.registry import lazy

if TYPE_CHECKING:
    from deepgen.tuning.progress import Progress
    from deepgen.tuning.request import Request
    from deepgen.tuning.study.best import Best
    from deepgen.tuning.study.study import Study
    from deepgen.tuning.tuner import tune

# Imported on first use: reading a journal must not wait for everything that tuning needs.
__getattr__, __dir__ = lazy(
    __name__,
    {".progress": "Progress", ".request": "Request", ".study.best": "Best", ".study.study": "Study", ".tuner": "tune"},
)

__all__ = ["Best", "Progress", "Request", "Study", "tune"]
