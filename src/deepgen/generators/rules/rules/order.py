"""Which rules apply on a target, and in which order; users add their own in front of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deepgen.generators.rules.rules.draft import Draft
from deepgen.generators.rules.rules.padding import with_padding
from deepgen.generators.rules.rules.rule import Rule, drafts
from deepgen.generators.rules.rules.sketch import Sketch, sketch_of
from deepgen.operators.expr.nodes import Expression
from deepgen.targets import Cpu
from deepgen.vocabulary.registry import Registry

_ROOM = "deepgen.generators.rules.rules"
# In the order of a processor. Rules of plug-ins come first: they know their own expressions best.
RULES: Registry[Callable[[], Rule]] = Registry(
    "deepgen.schedule_rules",
    "schedule rule",
    {
        "Always-Inline": f"{_ROOM}.inline:AlwaysInline",
        "Row-Fusion": f"{_ROOM}.rows:RowFusion",
        "Add-Cache-Stage": f"{_ROOM}.cache_stage:AddCacheStage",
        "Multi-level-Tiling": f"{_ROOM}.tiling:MultiLevelTiling",
        "Reduction-Split": f"{_ROOM}.reduction:ReductionSplit",
        "Place-by-Place": f"{_ROOM}.elementwise:PlaceByPlace",
    },
)


def rules_for(own: Sequence[Rule] = ()) -> list[Rule]:
    """The rules for processors, those that are passed first."""
    working = [make() for make in RULES.working()]
    plugged = working[len(RULES.own) :]
    return [*own, *plugged, *working[: len(RULES.own)]]


def sketches(expression: Expression, target: Cpu, own: Sequence[Rule] = ()) -> list[Sketch]:
    """The sketches of an expression on a target, the better ones first."""
    return [sketch_of(draft) for draft in drafts(with_padding(expression), target, rules_for(own))]


__all__ = ["RULES", "Draft", "Rule", "rules_for", "sketches"]
