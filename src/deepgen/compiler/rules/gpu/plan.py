"""A partial sketch for GPUs: steps whose numbers may be knobs, and the chip's requirements on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from deepgen.compiler.costs import Counts
from deepgen.compiler.rules.draft import Tuned, Useless, unused
from deepgen.compiler.rules.gpu.groups import StageGroup, changed
from deepgen.compiler.rules.sketch import Sketch
from deepgen.compiler.rules.template import Extent, Template, text
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Expression, Stage, reads
from deepgen.space import Expr, Requirement, Value
from deepgen.space.expr import knob_ref
from deepgen.targets import Gpu

BORDER = "operands have a border of zeros: they are kept in shared memory, or in registers"
WIDEST = 16  # bytes that a thread loads or stores at once
LEAST_ROWS = 32  # of a column, for a thread or block that reduces a part of it


@dataclass(frozen=True)
class Form:
    """An expression that was prepared for a rule, and the stages that are kept as its operands: those of matrix units,
    or those with a border of zeros. Without a rule it is for plain arithmetic."""

    expression: Expression
    kept: frozenset[str] = frozenset()
    by: str = ""
    facts: Any = None  # the rule's own facts about it


@dataclass
class Plan:
    """The state that GPU rules work on, one part of an expression at a time, the last one first: each part is its own
    launch.

    Mutable while a rule works on it; `branch` copies it to try another alternative. `base` is the expression that all
    steps apply to, `expression` the result: stages are inlined where possible, and a rule may add others for its part.
    """

    form: Form
    target: Gpu
    expression: Expression
    part: StageGroup
    names: tuple[str, ...] = ()
    knobs: tuple[Tuned, ...] = ()
    derived: dict[str, Expr] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
    lanes: str = ""  # the loop of a warp's lanes
    counts: Counts | None = None  # of the launch with the most work
    suffix: str = ""  # appended to its name
    workspace: int = 0  # bytes that a launch leaves for the next one
    by: tuple[tuple[str, str], ...] = ()  # which rule scheduled which stage
    useless: str = ""  # why it has no config
    stages: tuple[s.Step, ...] = ()  # steps of this part that create stages: they precede all loop steps
    steps: tuple[s.Step, ...] = ()
    after: tuple[tuple[tuple[s.Step, ...], tuple[s.Step, ...]], ...] = ()  # `stages` and `steps` of later parts

    @property
    def base(self) -> Expression:
        return self.form.expression

    @property
    def reads_kept(self) -> bool:
        """Whether its reduction reads operands that are kept as stages, and so have to be computed with it."""
        reduction = self.part.reduction
        return reduction is not None and bool(self.form.kept & {read.tensor for read in reads(reduction.value)})

    def branch(self, *names: str) -> Plan:
        return replace(self, names=(*self.names, *names), derived=dict(self.derived))

    def tried(self, *ways: Callable[[Plan], None]) -> list[Plan]:
        """A branch for each alternative; one without any config records the reason."""
        plans = []
        for go in ways:
            plan = self.branch()
            try:
                go(plan)
            except Useless as reason:
                plan.useless = str(reason)
            plans.append(plan)
        return plans

    def before(self, part: StageGroup, expression: Expression) -> Plan:
        """The same for the preceding part."""
        plan = self.branch()
        plan.after = (*self.after, (self.stages, self.steps))
        plan.part, plan.expression, plan.stages, plan.steps = part, expression, (), ()
        return plan

    def finish(self, *names: str) -> None:
        """Nothing to do, as a part is finished as a whole: rules for any target call it."""

    def stage(self, name: str) -> Stage:
        return self.expression.stage(name)

    def knob(self, name: str, values: Sequence[Value], usual: Value) -> Expr | int:
        """A knob, or the number itself if there is only one."""
        choices = [*dict.fromkeys(values)]
        if not choices:
            raise Useless(f"there is no value for {name}")
        if len(choices) == 1 and isinstance(choices[0], int):
            return choices[0]
        name = unused(re.sub(r"\W", "_", name), "{}_{}", [knob.name for knob in self.knobs])
        self.knobs = (*self.knobs, Tuned(name, tuple(choices), usual if usual in choices else choices[0]))
        return knob_ref(name)

    def shared_knob(self, name: str, values: Sequence[Value], usual: Value) -> Expr | int:
        """A knob that may already exist."""
        exists = any(knob.name == name for knob in self.knobs)
        return knob_ref(name) if exists else self.knob(name, values, usual)

    def require(self, expr: Expr | bool, words: str) -> None:
        if isinstance(expr, bool):
            # Already decided: no config satisfies it, and the sketch is useless.
            if not expr:
                raise Useless(f"no config satisfies: {words}")
            return
        words = unused(words, "{} ({})", [requirement.name for requirement in self.requirements])
        self.requirements = (*self.requirements, Requirement(words, expr))

    def derive(self, name: str, value: Extent) -> None:
        if not isinstance(value, int):
            self.derived[unused(name, "{}_{}", list(self.derived))] = value

    def restructure(self, *steps: s.Step) -> None:
        """Adds steps that create stages, or inline them."""
        self.stages = (*self.stages, *steps)
        self.expression = changed(self.expression, steps) if steps else self.expression

    def cache_read(self, tensor: str, name: str, readers: Sequence[str], scope: s.MemoryScope = "shared") -> None:
        self.restructure(s.CacheRead(tensor, name, scope, tuple(readers)))

    def cache_write(self, stage: str, name: str, scope: s.MemoryScope) -> None:
        self.restructure(s.CacheWrite(stage, name, scope))

    def added_up(self, sums: Stage, scope: s.MemoryScope) -> str:
        """The name of the stage that accumulates in that scope: a new one if the sums themselves are stored."""
        if self.part.last.name != sums.name:
            return sums.name
        self.cache_write(sums.name, f"{sums.name}.sums", scope)
        return f"{sums.name}.sums"

    def step(self, *steps: s.Step) -> None:
        self.steps = (*self.steps, *steps)

    def split(self, stage: str, loop: str, factors: Sequence[Extent]) -> list[str]:
        """The names of the loops, the outermost first."""
        self.step(s.Split(stage, loop, tuple(text(factor) for factor in factors)))
        return s.split_names(loop, len(factors) + 1)

    def reorder(self, stage: str, names: Sequence[str]) -> None:
        self.step(s.Reorder(stage, tuple(names)))

    def fuse(self, stage: str, loops: Sequence[str]) -> str:
        if len(loops) > 1:
            self.step(s.Fuse(stage, tuple(loops)))
        return s.fused_name(loops)

    def annotate(self, stage: str, kind: str, *loops: str) -> None:
        """Binds loops to `block.x`, `thread.x` and so on, unrolls them, or makes them vectors."""
        self.step(*(s.Annotate(stage, loop, kind) for loop in loops))

    def deal(self, stage: str, loops: Sequence[str], *parts: tuple[str, Extent]) -> list[str]:
        """Fuses loops and divides them among threads, vectors and so on: each part has a kind and an extent."""
        outer, *names = self.split(stage, self.fuse(stage, loops), [factor for _, factor in parts])
        for name, (kind, _) in zip(names, parts, strict=True):
            self.annotate(stage, kind, name)
        return [outer, *names]

    def compute_at(self, stage: str, consumer: str, loop: str, scope: s.MemoryScope | None = None) -> None:
        self.step(*([s.SetScope(stage, scope)] if scope else []), s.ComputeAt(stage, consumer, loop))

    def sketch(self, first: tuple[s.Step, ...] = ()) -> Sketch:
        """The resulting sketch; `first` are steps before those of all parts.

        If two parts have copies of the same tensors, those of the second are renamed.
        """
        parts = [*self.after, (self.stages, self.steps)][::-1]  # in order of computation
        others = _other_names([[step.name for step in stages if isinstance(step, s.CacheRead)] for stages, _ in parts])
        renamed = [
            [tuple(_renamed(step, names) for step in steps) for steps in part]
            for part, names in zip(parts, others, strict=True)
        ]
        template: Template = (
            *first,
            *(step for stages, _ in renamed for step in stages),
            *(step for _, steps in reversed(renamed) for step in steps),
        )
        counts = self.counts
        if counts is not None and self.workspace:
            counts = replace(counts, packed=counts.packed + self.workspace)  # the second launch reads the workspace
        return Sketch(
            ("_".join(self.names) or "plain") + self.suffix,
            self.base,
            template,
            self.knobs,
            tuple(self.derived.items()),
            self.requirements,
            counts,
            self.by,
        )


def _other_names(copies: Sequence[Iterable[str]]) -> list[dict[str, str]]:
    """New names for the copies of each part of an expression, if an earlier part has copies of the same tensors."""
    taken: list[str] = []
    renamed = []
    for names in map(dict.fromkeys, copies):
        renamed.append({name: other for name in names if (other := unused(name, "{}_{}", taken)) != name})
        taken += [renamed[-1].get(name, name) for name in names]
    return renamed


def _renamed(step: s.Step, names: Mapping[str, str]) -> s.Step:
    def renamed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        return names.get(value, value) if isinstance(value, str) else value

    return replace(step, **{one.name: renamed(getattr(step, one.name)) for one in fields(step)}) if names else step


def powers(most: int, least: int = 1) -> list[int]:
    """Powers of two up to the first that covers `most`."""
    numbers = [least]
    while numbers[-1] < most:
        numbers.append(numbers[-1] * 2)
    return numbers
