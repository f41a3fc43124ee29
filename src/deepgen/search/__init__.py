"""Strategies: one small file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.search.annealing import Annealing
from deepgen.search.base import Kind, Past, Setting, Strategy, check_options
from deepgen.search.constrained_ga import ConstrainedGA
from deepgen.search.evolution import Evolution
from deepgen.search.exhaustive import Exhaustive
from deepgen.search.model import Model
from deepgen.search.random import Random
from deepgen.search.regressors import check_library
from deepgen.vocabulary import BadInput

STRATEGIES: Mapping[str, Kind] = {
    "model": Model,
    "random": Random,
    "exhaustive": Exhaustive,
    "annealing": Annealing,
    "evolution": Evolution,
    "constrained_ga": ConstrainedGA,
}
DEFAULT = "model"


def make(name: str, setting: Setting) -> Strategy:
    """The strategy of that name, ready for its first ask."""
    check(name)
    return STRATEGIES[name](setting)


def check(name: str) -> None:
    """Refuse an unknown name before any work is done."""
    if name not in STRATEGIES:
        raise BadInput(f"unknown strategy {name!r}", allowed="one of " + ", ".join(STRATEGIES))


def settle(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with all defaults, to be recorded with a study: a later version's defaults do not change it.

    Also says at once what is wrong: an unknown option, a value of another type, a library that is not installed.
    """
    check(name)
    settled = check_options(name, options, STRATEGIES[name].OPTIONS)
    if "library" in settled:
        check_library(settled["library"])
    return settled


__all__ = ["DEFAULT", "STRATEGIES", "Past", "Setting", "Strategy", "check", "make", "settle"]
