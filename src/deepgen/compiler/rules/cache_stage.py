"""Add-Cache-Stage: results that are summed up are summed up in registers and stored once."""

from __future__ import annotations

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.operators.expr.nodes import Stage


class AddCacheStage:
    name, exclusive = "Add-Cache-Stage", True

    def applies(self, draft: Draft, stage: Stage) -> bool:
        """A reduction that nothing reads place by place: the copy to its result is to be tiled in its place."""
        return (
            stage.reduce is not None
            and stage.scan is None
            and bool(stage.axes)
            and facts.fusible_consumer(draft.expression, stage) is None
        )

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        way = draft.branch()
        way.cache_write(stage.name, f"{stage.name}_sum", "register")
        return [way]
