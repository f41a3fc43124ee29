"""The state of a schedule: its stages, their loops, and where each stage is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deepgen.compiler.schedule.steps import SERIAL, LayoutPlace, MemoryScope, StorageAlign
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Expression, Stage, reads


@dataclass(frozen=True)
class Loop:
    """A loop of a stage. `variable` is its name among the loops of all stages."""

    name: str
    variable: str
    extent: int
    axes: frozenset[str]  # axes of the stage that it runs over, wholly or in part
    reduced: bool
    kind: str = SERIAL


@dataclass(frozen=True)
class Planned:
    """A stage and its loops, the outermost first.

    It computes a region of its tensor: `extents` elements along each axis, starting at `bases`, which depend on the
    enclosing loops. `places` are the current positions in the region. If one of `guards` is negative, there is nothing
    to compute.
    """

    stage: Stage
    loops: tuple[Loop, ...]
    places: Mapping[str, Index]
    bases: Mapping[str, Index]
    extents: Mapping[str, int]
    guards: tuple[Index, ...] = ()
    at: tuple[str, str] | None = None  # the consumer and its loop
    scope: MemoryScope = "global"
    order: tuple[LayoutPlace[int], ...] = ()
    aligned: tuple[StorageAlign, ...] = ()
    depth_of_pipeline: int = 1  # number of its buffers
    swizzle: int = 0
    tensorized: tuple[str, str] | None = None  # the outermost tensorized loop, and the intrinsic
    touched: bool = False  # whether its loops differ from those of its axes

    def loop(self, name: str) -> Loop | None:
        return next((loop for loop in self.loops if loop.name == name), None)

    def depth(self, name: str) -> int:
        """The number of loops down to and including the named one."""
        return next(depth for depth, loop in enumerate(self.loops, 1) if loop.name == name)

    def absolute(self) -> dict[str, Index]:
        """The axes of the stage as indices over loops."""
        return {axis: place + self.bases[axis] for axis, place in self.places.items()}


@dataclass(frozen=True)
class State:
    """Stages in an order in which they can be computed."""

    expression: Expression
    stages: Mapping[str, Planned] = field(default_factory=dict)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.stages[name].stage.shape if name in self.stages else self.expression.shape_of(name)

    def dtype_of(self, name: str) -> str:
        return self.stages[name].stage.dtype if name in self.stages else self.expression.dtype_of(name)

    def readers(self, tensor: str) -> list[Planned]:
        return [p for p in self.stages.values() if any(read.tensor == tensor for read in reads(p.stage.value))]

    def computed_at(self, consumer: str, loop: str) -> list[Planned]:
        return [p for p in self.stages.values() if p.at == (consumer, loop)]

    def around(self, planned: Planned) -> Iterator[Loop]:
        """The loops that enclose a stage, without its own."""
        if planned.at is None:
            return
        consumer, name = planned.at
        yield from self.around(self.stages[consumer])
        yield from self.stages[consumer].loops[: self.stages[consumer].depth(name)]


def unplanned(stage: Stage) -> Planned:
    """A stage before any step: whole, one loop for each axis."""
    kept, reduced = ([(axis, r) for axis in axes] for axes, r in ((stage.axes, False), (stage.reduced, True)))
    loops = tuple(
        Loop(axis.name, f"{stage.name}.{axis.name}", axis.extent, frozenset({axis.name}), r)
        for axis, r in (*kept, *reduced)
    )
    return Planned(
        stage=stage,
        loops=loops,
        places={loop.name: iterator(loop.variable) for loop in loops},
        bases={loop.name: Index() for loop in loops},
        extents={loop.name: loop.extent for loop in loops},
    )
