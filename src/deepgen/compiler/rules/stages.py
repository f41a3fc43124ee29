"""Always-Inline: a stage that costs nothing to compute again is put into what reads it."""

from __future__ import annotations

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.operators.expr.nodes import Binary, Expression, Stage, Unary, walk


class AlwaysInline:
    name, exclusive = "Always-Inline", True

    def applies(self, draft: Draft, stage: Stage) -> bool:
        return strictly_inlinable(draft.expression, stage)

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        way = draft.branch()
        way.inline(stage.name)
        return [way]


def strictly_inlinable(expression: Expression, stage: Stage) -> bool:
    """Whether computing it wherever it is read is never worse than keeping it.

    Its readers read it place by place, and only once if it is costly. What is read several times, as padding before a
    convolution is, may be worth keeping: how is left to the rule of its reader.
    """
    if not inlinable(expression, stage):
        return False
    consumers = facts.readers(expression, stage.name)
    placed = all(facts.same_places(reader, stage) is not None for reader in consumers)
    return placed and (len(consumers) == 1 or not facts.costly(stage))


def inlinable(expression: Expression, stage: Stage) -> bool:
    """Whether it can be put into its readers at all."""
    return stage.reduce is None and stage.scan is None and stage.name not in expression.outputs


def free(stage: Stage) -> bool:
    """Whether it computes nothing: it copies, casts, or chooses."""
    return not any(isinstance(node, (Unary, Binary)) for node in walk(stage.value))


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
