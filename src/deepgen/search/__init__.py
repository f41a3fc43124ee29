"""Strategies: one small file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.search.base import Kind, Past, Setting, Strategy, check_options
from deepgen.vocabulary.registry import Registry

STRATEGIES: Registry[Kind] = Registry(
    "deepgen.strategies",
    "strategy",
    {
        "model": "deepgen.search.model:Model",
        "random": "deepgen.search.random:Random",
        "exhaustive": "deepgen.search.exhaustive:Exhaustive",
        "annealing": "deepgen.search.annealing:Annealing",
        "evolution": "deepgen.search.evolution:Evolution",
        "constrained_ga": "deepgen.search.constrained_ga:ConstrainedGA",
    },
)
DEFAULT = "model"


def make(name: str, setting: Setting) -> Strategy:
    """The strategy of that name, ready for its first ask."""
    return STRATEGIES.get(name)(setting)


def check(name: str) -> None:
    """Refuse an unknown name before any work is done."""
    STRATEGIES.get(name)


def settle(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with all defaults, to be recorded with a study: a later version's defaults do not change it.

    Also says at once what is wrong: an unknown option, a value of another type, a library that is not installed.
    """
    settled = check_options(name, options, STRATEGIES.get(name).OPTIONS)
    if "library" in settled:
        from deepgen.search.regressors import check_library

        check_library(settled["library"])
    return settled


__all__ = ["DEFAULT", "STRATEGIES", "Past", "Setting", "Strategy", "check", "make", "settle"]
