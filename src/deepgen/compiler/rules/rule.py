"""What a schedule rule is, and how rules make sketches of an expression.

Rules look at one stage at a time, consumers before what they read. All that apply are tried, each on a draft of its
own, up to the first exclusive one; so the ways that they offer multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from deepgen.compiler.intrinsics.tiles import Instruction
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.operators.expr.nodes import Binary, Expression, Stage, Unary, walk
from deepgen.targets import Cpu
from deepgen.vocabulary import DeepgenError
from deepgen.vocabulary.registry import Registry

_MOST_ROUNDS = 1000


@runtime_checkable
class Rule(Protocol):
    """One way to schedule a stage, under a condition."""

    @property
    def name(self) -> str: ...

    @property
    def exclusive(self) -> bool:
        """Whether no later rule is asked where this one applies."""
        ...

    def applies(self, draft: Draft, stage: Stage) -> bool: ...

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        """The ways to go on, each a branch of the draft in which a stage is done, or is another one than before."""
        ...


def drafts(expression: Expression, target: Cpu, rules: Sequence[Rule], dot: Instruction | None = None) -> list[Draft]:
    """All drafts that the rules make of an expression, in the order in which the rules offer them.

    `dot` is the instruction that the expression was prepared for.
    """
    begun: list[Draft] = [Draft(expression, target, dot)]
    finished: list[Draft] = []
    for _ in range(_MOST_ROUNDS):
        if not begun:
            return finished
        draft = begun.pop(0)
        stage = draft.next
        if stage is None:
            finished.append(draft)
        else:
            begun[:0] = _ways(draft, stage, rules)
    raise DeepgenError(f"the rules do not come to an end on expression {expression.name!r}")


def _ways(draft: Draft, stage: Stage, rules: Sequence[Rule]) -> list[Draft]:
    ways: list[Draft] = []
    for rule in rules:
        if rule.applies(draft, stage):
            ways += rule.apply(draft, stage)
            if ways and rule.exclusive:
                break
    if not ways:
        raise DeepgenError(f"no rule serves stage {stage.name!r} of expression {draft.expression.name!r}")
    return ways


_ROOM = "deepgen.compiler.rules"
RULES: Registry[Callable[[], Rule]] = Registry(
    "deepgen.schedule_rules",
    "schedule rule",
    {
        "Always-Inline": f"{_ROOM}.rule:AlwaysInline",
        "Row-Fusion": f"{_ROOM}.elementwise:RowFusion",
        "Add-Cache-Stage": f"{_ROOM}.rule:AddCacheStage",
        "Tensorize": f"{_ROOM}.tensorize:TensorizeRule",
        "Multi-level-Tiling": f"{_ROOM}.tiling:MultiLevelTiling",
        "Reduction-Split": f"{_ROOM}.reduction:ReductionSplit",
        "Place-by-Place": f"{_ROOM}.elementwise:PlaceByPlace",
    },
)


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
