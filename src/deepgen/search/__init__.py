"""Strategies: one small file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deepgen.search.annealing import Annealing
from deepgen.search.base import Past, Setting, Strategy
from deepgen.search.constrained_ga import ConstrainedGA
from deepgen.search.evolution import Evolution
from deepgen.search.exhaustive import Exhaustive
from deepgen.search.model import Model
from deepgen.search.random import Random
from deepgen.vocabulary import BadInput

STRATEGIES: Mapping[str, Callable[[Setting], Strategy]] = {
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


__all__ = ["DEFAULT", "STRATEGIES", "Past", "Setting", "Strategy", "check", "make"]
