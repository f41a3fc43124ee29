"""Schedule rules by name: deepgen's own, in the order of a processor, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deepgen.vocabulary.registry import Registry

if TYPE_CHECKING:
    from deepgen.compiler.rules.rule import Rule

_ROOM = "deepgen.compiler.rules"
RULES: Registry[Callable[[], Rule]] = Registry(
    "deepgen.schedule_rules",
    "schedule rule",
    {
        "Always-Inline": f"{_ROOM}.inline:AlwaysInline",
        "Row-Fusion": f"{_ROOM}.rows:RowFusion",
        "Add-Cache-Stage": f"{_ROOM}.cache_stage:AddCacheStage",
        "Tensorize": f"{_ROOM}.tensorize:Tensorize",
        "Multi-level-Tiling": f"{_ROOM}.tiling:MultiLevelTiling",
        "Reduction-Split": f"{_ROOM}.reduction:ReductionSplit",
        "Place-by-Place": f"{_ROOM}.elementwise:PlaceByPlace",
    },
)
