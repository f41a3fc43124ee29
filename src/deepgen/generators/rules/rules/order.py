"""Which rules apply on a target, and in which order; users add their own in front of them."""

from __future__ import annotations

from collections.abc import Sequence

from deepgen.generators.rules.rules.padding import with_padding
from deepgen.generators.rules.rules.registry import RULES
from deepgen.generators.rules.rules.rule import Rule, drafts
from deepgen.generators.rules.rules.sketch import Sketch, sketch_of
from deepgen.operators.expr.nodes import Expression
from deepgen.targets import Cpu


def rules_for(own: Sequence[Rule] = ()) -> list[Rule]:
    """The rules for processors: those that are passed, those of plug-ins, then deepgen's own."""
    working = [make() for make in RULES.working()]
    plugged = working[len(RULES.own) :]
    return [*own, *plugged, *working[: len(RULES.own)]]


def sketches(expression: Expression, target: Cpu, own: Sequence[Rule] = ()) -> list[Sketch]:
    """The sketches of an expression on a target, the better ones first."""
    return [sketch_of(draft) for draft in drafts(with_padding(expression), target, rules_for(own))]
