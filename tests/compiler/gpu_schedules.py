"""Random legal schedules for GPUs: loops bound to blocks and threads, stages in shared memory and in registers."""

from __future__ import annotations

from random import Random

from schedules import Scheduling

from deepgen.compiler.passes.ir import For, Program, Stmt, children
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    Inline,
    Pipeline,
    Schedule,
    SetScope,
    Swizzle,
)
from deepgen.operators.expr.nodes import Expression, reads
from deepgen.vocabulary.errors import BadInput

_THREADS = ("thread.x", "thread.x", "thread.y", "thread.z")
_BLOCKS = ("block.x", "block.y")
MOST_ITERATIONS = 1 << 12  # of a thread: the interpreter runs those with barriers in them one after the other


class _GpuScheduling(Scheduling):
    def change_stages(self) -> None:
        for name in list(self.state.stages):
            stage = self.state.stages[name].stage
            if self.chance(0.3):
                self.propose(Inline(name))
            elif self.chance(0.2):
                self.split_reduction(name)
            elif self.chance(0.4):
                self.propose(CacheWrite(name, f"{name}.w", "global"))
            tensors = sorted({read.tensor for read in reads(stage.value)})
            if name in self.state.stages and tensors and self.chance(0.5):
                tensor, reader = self.random.choice(tensors), f"{name}.w" if f"{name}.w" in self.state.stages else name
                self.propose(CacheRead(tensor, f"{tensor}.{name}", "global", (reader,)))

    def bind(self, name: str) -> None:
        planned = self.state.stages[name]
        root = planned.at is None
        for loop in planned.loops:
            if self.chance(0.5):
                kinds = (*_THREADS, *_BLOCKS) if root else _THREADS
                self.propose(Annotate(name, loop.name, self.random.choice(kinds)))


def _random_steps(expression: Expression, random: Random) -> Schedule:
    made = _GpuScheduling(expression, random)
    made.change_stages()
    for name in reversed(list(made.state.stages)):
        if made.chance(0.7) and name not in expression.outputs:
            before, steps = made.state, list(made.steps)
            scope = random.choice(["shared", "shared", "register"])
            made.propose(SetScope(name, scope))
            made.place(name)
            if made.state.stages[name].at is None:
                made.state, made.steps = before, steps
        made.arrange(name, ("split", "split", "reorder", "fuse", "unroll"))
        if made.state.stages[name].scope != "register" or made.chance(0.2):
            made.bind(name)
        made.lay_out(name, scopes=())
        if made.state.stages[name].scope == "shared":
            if made.chance(0.3):
                made.propose(Pipeline(name, random.randint(2, 4)))
            if made.chance(0.3):
                made.propose(Swizzle(name, random.randint(1, 3)))
    return tuple(made.steps)


def _iterations(statement: Stmt) -> int:
    """Of all loops of a thread together."""
    inside = sum(map(_iterations, children(statement))) or 1
    return inside * statement.extent if isinstance(statement, For) else inside


def random_program(expression: Expression, random: Random, warp: int = 32) -> tuple[Schedule, Program]:
    """Programs that are refused only once all steps are known are redrawn, and those of too many iterations."""
    for _ in range(100):
        steps = _random_steps(expression, random)
        try:
            program = lower(expression, steps, warp=warp)
        except BadInput:
            continue
        if all(_iterations(part.body) <= MOST_ITERATIONS for launch in program.launches for part in launch.parts):
            return steps, program
    return (), lower(expression, (), warp=warp)
