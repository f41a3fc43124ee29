"""The interface of schedule rules, and how rules derive sketches from an expression.

Rules consider one stage at a time, consumers before producers. All that support the target and apply are tried, each on
its own draft, up to the first exclusive one; so their alternatives multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from deepgen.compiler.intrinsics.tiles import Instruction
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft, Useless
from deepgen.operators.expr.nodes import Expression, Stage, reads
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import BadInput, DeepgenError
from deepgen.vocabulary.registry import Registry

_MOST_ROUNDS = 1000
_NEEDED = "an object with `name`, `exclusive`, `declines(draft, stage)` and `apply(draft, stage)`"


@runtime_checkable
class Rule(Protocol):
    """One way to schedule a stage, under a condition.

    A rule also has `declines(draft, stage)`, which returns the reason why it does not apply, or None if it does.
    Instead it may have `applies`, which only returns whether it does. If it serves other targets than CPUs it has
    `targets`, a tuple of classes such as `(Cpu, Gpu)`. It works on a `Draft` on CPUs and on a `Plan` on GPUs. There
    `stage` is the stage that a launch stores, and `draft.part` tells what is computed with it.
    """

    @property
    def name(self) -> str: ...

    @property
    def exclusive(self) -> bool:
        """Whether no later rule is tried if this one applies."""
        ...

    def apply(self, draft: Any, stage: Stage) -> Sequence[Any]:
        """The alternatives, each a branch of the draft in which the stage is scheduled or replaced by another."""
        ...


@dataclass(frozen=True)
class RuleAnswer:
    """A rule's answer about a stage: why it declines, or nothing if it takes part. A rule that was not tried gives no
    answer, and `why` is the reason for that."""

    stage: str
    rule: str
    why: str = ""
    asked: bool = True


Log: TypeAlias = list[RuleAnswer]


def drafts(
    expression: Expression, target: Cpu, rules: Sequence[Rule], dot: Instruction | None = None, log: Log | None = None
) -> list[Draft]:
    """All drafts that the rules derive from an expression, in the order in which the rules offer them.

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
            begun[:0] = ways = ways_of(draft, stage, rules, log)
            if not ways:
                raise DeepgenError(f"no rule applies to stage {stage.name!r} of expression {draft.expression.name!r}")
    raise DeepgenError(f"the rules do not terminate on expression {expression.name!r}")


class Branch(Protocol):
    """The common interface of `Draft` and `Plan`."""

    by: tuple[tuple[str, str], ...]  # which rule scheduled which stage
    useless: str  # why it has no config
    expression: Expression


W = TypeVar("W", bound=Branch)


def ways_of(draft: W, stage: Stage, rules: Sequence[Rule], log: Log | None = None) -> list[W]:
    """The alternatives for a stage: those of all rules that apply, up to the first exclusive one."""
    ways: list[W] = []
    alone = ""
    for rule in rules:
        if alone:
            _note(log, stage, rule, f"{alone} takes it alone", asked=False)
            continue
        try:
            own, why = _asked(rule, draft, stage)
        except DeepgenError:
            raise
        except Exception as error:  # a user's rule may raise anything
            what = f"schedule rule {rule.name} fails on stage {stage.name!r} of {draft.expression.name!r}"
            raise DeepgenError(f"{what}: {type(error).__name__}: {error}") from error
        _note(log, stage, rule, why)
        ways += own
        alone = rule.name if own and rule.exclusive else ""
    return ways


def _asked(rule: Rule, draft: W, stage: Stage) -> tuple[list[W], str]:
    """The alternatives that a rule offers, and the reason if none of them has configs."""
    declines = getattr(rule, "declines", None) or (lambda *of: None if rule.applies(*of) else "it does not apply")  # type: ignore[attr-defined]
    if (why := declines(draft, stage)) is not None:
        return [], str(why)
    try:
        ways = [*rule.apply(draft, stage)]
    except Useless as reason:
        return [], str(reason)
    if any(type(way) is not type(draft) for way in ways):
        raise DeepgenError(
            f"schedule rule {rule.name} gives {ways!r:.80} for stage {stage.name!r}, not a list of branches"
        )
    for way in ways:
        way.by = (*draft.by, (stage.name, rule.name))
    useless = [way.useless for way in ways]
    return ways, "" if not all(useless) else useless[0] if ways else "it offers no schedule"


def _note(log: Log | None, stage: Stage, rule: Rule, why: str, *, asked: bool = True) -> None:
    if log is not None:
        log.append(RuleAnswer(stage.name, rule.name, why, asked))


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
        "Flat-Rows": f"{_ROOM}.gpu.sketches:FlatRows",
        "Matrix-Units": f"{_ROOM}.gpu.sketches:MatrixUnits",
        "Split-Sums": f"{_ROOM}.gpu.sketches:SplitSums",
        "Windows": f"{_ROOM}.gpu.windows:Windows",
        "Row-Windows": f"{_ROOM}.gpu.windows:RowWindows",
        "Scan-Rows": f"{_ROOM}.gpu.scans:ScanRows",
        "Transposed": f"{_ROOM}.gpu.threads:Transposed",
        "Columns": f"{_ROOM}.gpu.columns:Columns",
        "Long-Rows": f"{_ROOM}.gpu.rows:LongRows",
        "Shared-Tiles": f"{_ROOM}.gpu.threads:SharedTiles",
        "Threads": f"{_ROOM}.gpu.threads:ByThreads",
        "Short-Rows": f"{_ROOM}.gpu.rows:ShortRows",
    },
)


def rules_for(target: Target, own: Sequence[Rule] = ()) -> list[Rule]:
    """The rules for a target: those passed in, those of plug-ins, then deepgen's own."""
    others = [*own, *plugged()]
    check_rules(others)
    ours = [RULES.get(name)() for name in RULES.own]
    return [rule for rule in (*others, *ours) if isinstance(target, getattr(rule, "targets", Cpu))]


def plugged() -> list[Rule]:
    """The rules of plug-ins."""
    try:
        return [make() for make in RULES.working()[len(RULES.own) :]]
    except Exception as error:  # a plug-in's class may raise anything
        raise DeepgenError(f"a plug-in's schedule rule cannot be made: {type(error).__name__}: {error}") from error


def check_rules(rules: object) -> None:
    """Raises BadInput if something is not a rule: user rules are checked before anything is tuned."""
    if not isinstance(rules, (list, tuple)):
        raise BadInput(f"rules is {rules!r:.80}", allowed="a list of schedule rules")
    for rule in rules:
        asked = getattr(rule, "declines", getattr(rule, "applies", None))
        if not isinstance(rule, Rule) or not isinstance(rule.name, str) or isinstance(rule, type) or asked is None:
            raise BadInput(f"{rule!r:.80} is not a schedule rule", allowed=_NEEDED)
        targets = getattr(rule, "targets", (Cpu,))
        if not isinstance(targets, tuple) or not all(isinstance(one, type) for one in targets):
            raise BadInput(f"rule {rule.name} serves {targets!r:.80}", allowed="a tuple of classes such as Gpu")
    names = [*RULES.own, *(rule.name for rule in rules)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"two schedule rules are called {twice[0]}", allowed="give each its own name")


class AlwaysInline:
    name, exclusive, targets = "Always-Inline", True, (Cpu,)

    def declines(self, draft: Draft, stage: Stage) -> str | None:
        if not inlinable(draft.expression, stage):
            return "it is a result, or made of many elements"
        if any(draft.scopes.get(read.tensor) == "register" for read in reads(stage.value)):
            return "it is the copy of sums that is to be tiled"  # otherwise Add-Cache-Stage would be repeated
        return None if strictly_inlinable(draft.expression, stage) else "it is read several times, or at other places"

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        way = draft.branch()
        way.inline(stage.name)
        return [way]


def strictly_inlinable(expression: Expression, stage: Stage) -> bool:
    """Whether computing it wherever it is read is never worse than storing it.

    Its readers must read it elementwise and, if it is costly, there must be only one. A stage that is read several
    times, such as padding before a convolution, may be worth storing: that is left to its reader's rule.
    """
    if not inlinable(expression, stage):
        return False
    consumers = facts.readers(expression, stage.name)
    placed = all(facts.same_places(reader, stage) is not None for reader in consumers)
    return placed and (len(consumers) == 1 or not facts.costly(stage))


def inlinable(expression: Expression, stage: Stage) -> bool:
    """Whether it can be inlined into its readers at all."""
    return stage.reduce is None and stage.scan is None and stage.name not in expression.outputs


class AddCacheStage:
    """For a reduction that no stage reads elementwise: a copy to its result is added, and tiled in its place."""

    name, exclusive, targets = "Add-Cache-Stage", True, (Cpu,)

    def declines(self, draft: Draft, stage: Stage) -> str | None:
        if stage.reduce is None or stage.scan is not None or not stage.axes:
            return "it is not a reduction with several results"
        return None if facts.fusible_consumer(draft.expression, stage) is None else "a stage reads it place by place"

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        way = draft.branch()
        way.cache_write(stage.name, f"{stage.name}_sum", "register")
        return [way]
