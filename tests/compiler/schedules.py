"""Random legal schedules of an expression: steps are proposed, and refused ones are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from deepgen.compiler.passes.lower import lower
from deepgen.compiler.schedule.apply import applied, apply
from deepgen.compiler.schedule.state import State
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Layout,
    LayoutPlace,
    Reorder,
    RFactor,
    Schedule,
    SetScope,
    Split,
    Step,
    StorageAlign,
)
from deepgen.operators.expr.nodes import Expression, reads
from deepgen.vocabulary.errors import BadInput

SCOPES = ("global", "register")
WAYS = ("split", "split", "reorder", "fuse", "annotate", "unroll")


class Scheduling:
    def __init__(self, expression: Expression, random: Random) -> None:
        self.state: State = apply(expression, ())
        self.random = random
        self.steps: list[Step] = []

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def propose(self, step: Step) -> bool:
        try:
            self.state = applied(step, self.state)
        except BadInput:
            return False
        self.steps.append(step)
        return True

    def change_stages(self) -> None:
        for name in list(self.state.stages):
            stage = self.state.stages[name].stage
            if self.chance(0.3):
                self.propose(Inline(name))
            elif self.chance(0.2):
                self.split_reduction(name)
            elif self.chance(0.3):
                self.propose(CacheWrite(name, f"{name}.w", self.random.choice(SCOPES)))
            tensors = sorted({read.tensor for read in reads(stage.value)})
            if name in self.state.stages and tensors and self.chance(0.3):
                tensor, reader = self.random.choice(tensors), f"{name}.w" if f"{name}.w" in self.state.stages else name
                to = self.state.stages[reader].stage.dtype if self.chance(0.5) else None
                copy = CacheRead(tensor, f"{tensor}.{name}", self.random.choice(SCOPES), (reader,), to)
                self.propose(copy) or self.propose(replace(copy, dtype=None))

    def split_reduction(self, name: str) -> None:
        reduced = [loop.name for loop in self.state.stages[name].loops if loop.reduced]
        if reduced:
            loop = self.random.choice(reduced)
            if self.chance(0.7) and self.propose(Split(name, loop, (self.random.randint(1, 4),))):
                loop = f"{loop}.{self.random.randint(0, 1)}"
            self.propose(RFactor(name, loop, f"{name}.f"))

    def place(self, name: str) -> None:
        readers = [p for p in self.state.readers(name) if p.loops]
        for _ in range(3):
            if readers:
                consumer = self.random.choice(readers)
                # A stage around the consumer is possible, too.
                while consumer.at and self.chance(0.4):
                    consumer = self.state.stages[consumer.at[0]]
                loop = self.random.choice(consumer.loops).name
                if self.propose(ComputeAt(name, consumer.stage.name, loop)):
                    return

    def arrange(self, name: str, ways: Sequence[str] = WAYS) -> None:
        for _ in range(self.random.randint(0, 6)):
            loops = [loop.name for loop in self.state.stages[name].loops]
            if not loops:
                return
            way = self.random.choice(ways)
            at = self.random.randrange(len(loops))
            if way == "split":
                factors = tuple(self.random.randint(1, 5) for _ in range(self.random.choice([1, 1, 2])))
                self.propose(Split(name, loops[at], factors))
            elif way == "reorder":
                self.propose(Reorder(name, tuple(self.random.sample(loops, self.random.randint(1, len(loops))))))
            elif way == "fuse":
                self.propose(Fuse(name, tuple(loops[at : at + self.random.choice([2, 2, 3])])))
            elif way == "unroll":
                self.propose(Annotate(name, loops[at], "unroll"))
            else:
                self.propose(Annotate(name, loops[at], self.random.choice(["parallel", "unroll", "vector", "vector"])))
        if self.chance(0.5):
            self.propose(Annotate(name, self.state.stages[name].loops[-1].name, "vector"))

    def lay_out(self, name: str, scopes: Sequence[str] = SCOPES) -> None:
        dimensions = list(range(len(self.state.stages[name].stage.axes)))
        if scopes and self.chance(0.4):
            self.propose(SetScope(name, self.random.choice(scopes)))
        if self.chance(0.3):
            order = []
            for dimension in dimensions:
                by = self.random.randint(2, 4)
                order += (
                    [LayoutPlace(dimension, by), LayoutPlace(dimension, 1, by)]
                    if self.chance(0.5)
                    else [LayoutPlace(dimension, 1)]
                )
            self.random.shuffle(order)
            self.propose(Layout(name, tuple(order)))
        if self.chance(0.2):
            factor = self.random.randint(1, 8)
            at = self.random.choice(dimensions)
            self.propose(StorageAlign(name, at, factor, self.random.randrange(factor)))


def random_schedule(expression: Expression, random: Random) -> Schedule:
    made = Scheduling(expression, random)
    made.change_stages()
    for name in reversed(list(made.state.stages)):
        if made.chance(0.6):
            made.place(name)
        made.arrange(name)
        made.lay_out(name)
    try:
        lower(expression, tuple(made.steps))
    except BadInput as error:  # the only check that cannot be made step by step
        assert "parallel" in str(error), error
        return tuple(s for s in made.steps if not isinstance(s, Annotate) or s.kind != "parallel")
    return tuple(made.steps)
