"""Strategies: one small file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.tuning.search.base import Past, Setting, Strategy, StrategyKind, check_options
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.registry import Registry

STRATEGIES: Registry[StrategyKind] = Registry(
    "deepgen.strategies",
    "strategy",
    {
        "model": "deepgen.tuning.search.model:Model",
        "random": "deepgen.tuning.search.plain:Random",
        "exhaustive": "deepgen.tuning.search.plain:Exhaustive",
        "annealing": "deepgen.tuning.search.plain:Annealing",
        "evolution": "deepgen.tuning.search.plain:Evolution",
        "constrained_ga": "deepgen.tuning.search.constrained_ga:ConstrainedGA",
    },
)
DEFAULT = "model"


def make(strategy: str | StrategyKind, setting: Setting) -> Strategy:
    """The strategy, ready for its first ask; a portfolio of strategies if several families compete."""
    kind = _kind(strategy)
    if not setting.members or name_of(strategy) == "exhaustive":
        return kind(setting)
    from deepgen.tuning.search.portfolio import Portfolio

    return Portfolio(kind, setting)


def name_of(strategy: str | StrategyKind) -> str:
    """The name of a strategy as recorded in studies."""
    if isinstance(strategy, str):
        return strategy
    own = str(getattr(strategy, "name", None) or getattr(strategy, "__name__", "strategy"))
    if own in STRATEGIES and STRATEGIES.get(own) is not strategy:
        raise BadInput(
            f"a strategy of your own is named {own!r}",
            allowed="choose another name: deepgen already has one called that",
        )
    return own


def _kind(strategy: str | StrategyKind) -> StrategyKind:
    if isinstance(strategy, str):
        return STRATEGIES.get(strategy)
    if not callable(strategy) or not isinstance(getattr(strategy, "OPTIONS", None), Mapping):
        raise BadInput(f"{strategy!r} is not a strategy", allowed="a name, or a class with OPTIONS, `ask` and `tell`")
    return strategy


def check(name: str) -> None:
    """Raise for an unknown name before any work is done."""
    STRATEGIES.get(name)


def settle(strategy: str | StrategyKind, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with all defaults, to be recorded with a study, so that later changes of the defaults do not affect
    it.

    Raises at once for an unknown option, a value of another type, or a library that is not installed.
    """
    settled = check_options(name_of(strategy), options, _kind(strategy).OPTIONS)
    if "library" in settled:
        from deepgen.tuning.search.regressors import check_library

        check_library(settled["library"])
    return settled


__all__ = ["DEFAULT", "STRATEGIES", "Past", "Setting", "Strategy", "StrategyKind", "check", "make", "name_of", "settle"]
