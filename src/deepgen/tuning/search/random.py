"""Random search: uniform over the valid space, no repeats, the starts first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from deepgen.tuning.search.base import Fresh, Setting, check_options
from deepgen.vocabulary import Trial


class Random:
    """Draws configs in a seeded random order of the whole space."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, setting: Setting) -> None:
        check_options("random", setting.options, self.OPTIONS)
        self._fresh = Fresh(setting)

    def ask(self, n: int) -> list[dict[str, Any]]:
        ranks = self._fresh.starts(n)
        return self._fresh.configs(ranks + self._fresh.random(n - len(ranks)))

    def tell(self, trial: Trial) -> None:
        """Chance learns nothing."""
