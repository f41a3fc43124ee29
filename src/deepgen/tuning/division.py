"""How a time budget is divided among studies: each gets time by what it may gain."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.operators import Operator
from deepgen.operators.expr.nodes import HasExpression
from deepgen.vocabulary import BadInput

LEAST_SECONDS = 20.0  # of a study: less is not worth its start and its finals
_ALIKE = 0.5  # of the time is divided equally: what is gained in a study's first seconds is most of what it gains

SHORT_SECONDS = 6.0  # of a study of what has few schedules; it may take half of that
SHORT_SHARE = 0.3  # of the time: once it has passed, other studies begin
_WORTH = 0.0005  # of a model's time that such a study must be able to save


def is_short(operator: Operator) -> bool:
    """Whether it only works on elements: nothing is added up, so there is little to choose, and any choice is good."""
    if not isinstance(operator, HasExpression):
        return False
    try:
        stages = operator.expression().stages
    except BadInput:  # in some forms an operator has none
        return False
    return all(stage.reduce is None and not stage.scan for stage in stages)


def short_ones(operators: Sequence[Operator], gains: Sequence[float]) -> list[int]:
    """Which of them get a short study, those that may gain most first."""
    found = [i for i, operator in enumerate(operators) if is_short(operator) and gains[i] >= _WORTH]
    return sorted(found, key=lambda i: -gains[i])


def divided(gains: Sequence[float], seconds: float, least: float = LEAST_SECONDS) -> list[float]:
    """The seconds of each study, 0 for one that is left out.

    Those that may gain least are left out until each of the others gets enough time. One always stays.
    """
    kept = sorted(range(len(gains)), key=lambda i: -gains[i])
    while len(kept) > 1 and seconds * _share(gains, kept, kept[-1]) < least:
        kept.pop()
    return [seconds * _share(gains, kept, i) if i in kept else 0.0 for i in range(len(gains))]


def _share(gains: Sequence[float], kept: Sequence[int], one: int) -> float:
    equal, total = 1.0 / len(kept), sum(gains[i] for i in kept)
    return _ALIKE * equal + (1.0 - _ALIKE) * (gains[one] / total if total > 0 else equal)
